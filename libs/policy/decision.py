"""May this call happen: allow, ask a person, or deny. PURE.

Invariant: the executor (before the intent) and the host (before the effect) ask this one function; and the more a
policy says, the clearer it gets: a further `deny` or `ask` never widens what is possible, a further `allow` never
narrows it, and the order of rules never matters. It is so because a decision is the strictest of three:

- what the mode says, or `allow` where a rule allows the call;
- `ask` and `deny` of every rule that speaks about it;
- in the mode `read-only`: `deny` for whatever has an effect, which no rule lifts.

A shell line is decided command by command, and the strictest decides about the line.
"""

import posixpath
from collections.abc import Callable, Iterable, Sequence

import msgspec

from libs.contracts.tools import RUN_TOOLS, Semantics, ToolSpec
from libs.policy.commandlines import (
    READS,
    NotUnderstood,
    ShellCommand,
    commands_of,
    fits,
    is_interpreter,
    may_fit,
)
from libs.policy.reach import paths_of_call
from libs.policy.risk import SHELL_LINES, risk_of
from libs.policy.rules import Mode, PlacedRule, Policy, Rule, Verb, each

# Folders of an absolute path that are looked at.
_FOLDERS_MAX = 64
# Stands for the files in a folder; no pattern but one for all of them fits it.
_ANY_FILE = "\N{FULL BLOCK}"
_RANK = {Verb.ALLOW: 0, Verb.ASK: 1, Verb.DENY: 2}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is for the model and for people: which rule or mode decided."""

    verb: Verb
    reason: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a shell line with its own decision. `matched`: the strictest rule first."""

    command: str
    decision: Decision
    matched: tuple[PlacedRule, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A decision with what it came from. `matched`: the rules that speak about the call, the strictest first, else as
    they stand in the policy; `segments`: the commands of a shell line that is understood, as they stand in it."""

    decision: Decision
    mode: Mode
    matched: tuple[PlacedRule, ...] = ()
    segments: tuple[Segment, ...] = ()


def decide(spec: ToolSpec, arguments: dict[str, object], *, tenant: str, policy: Policy) -> Decision:
    """The decision for one call of `spec` with its full arguments."""
    return explain(spec, arguments, tenant=tenant, policy=policy).decision


def explain(spec: ToolSpec, arguments: dict[str, object], *, tenant: str, policy: Policy) -> Explanation:
    """The same decision, and why."""
    mode, rules = policy.mode_of(tenant), policy.about(spec, tenant)
    base = _by_mode(spec, mode)
    line = arguments.get(SHELL_LINES.get(spec.name, ""))
    if isinstance(line, str):
        found = _line(line, rules, base, mode)
    else:
        paths = [path for path in paths_of_call(spec.name, arguments) if path]
        matched = _strictest_first(one for one in rules if _speaks(one.rule, paths))
        found = Explanation(decision=_weighed(base, matched), mode=mode, matched=matched)
    if mode is Mode.READ_ONLY and not _only_reads(spec) and found.decision.verb is not Verb.DENY:
        return msgspec.structs.replace(found, decision=base)
    return found


def hides(spec: ToolSpec, *, tenant: str, policy: Policy, approved: bool) -> Callable[[str], bool] | None:
    """Which files a call that looks at many must pass over: those that a rule denies, or asks about when nobody approved
    this call. `None` when there are none."""
    verbs = (Verb.DENY,) if approved else (Verb.DENY, Verb.ASK)
    rules = [one.rule for one in policy.about(spec, tenant) if one.rule.path and one.rule.verb in verbs]
    if not rules:
        return None
    return lambda path: any(rule.covers(path) for rule in rules)


def _speaks(rule: Rule, paths: Sequence[str]) -> bool:
    """Whether a rule about the tool is about a call that names these files."""
    if rule.command is not None:
        return False
    if rule.path is None:
        return True
    covered = [rule.covers(path) for path in paths]
    return bool(covered) and (all(covered) if rule.verb is Verb.ALLOW else any(covered))


def _weighed(base: Decision, matched: Sequence[PlacedRule]) -> Decision:
    """What the mode and the rules that speak, the strictest first, come to."""
    strict = [_said(one) for one in matched if one.rule.verb is not Verb.ALLOW]
    allowed = [_said(one) for one in matched if one.rule.verb is Verb.ALLOW]
    return max([*strict[:1], *(allowed[:1] or [base])], key=_rank)


def _line(line: str, rules: Sequence[PlacedRule], base: Decision, mode: Mode) -> Explanation:
    of_parts = [one for one in rules if not one.rule.is_about_any_arguments]
    whole = _strictest_first(one for one in rules if one.rule.is_about_any_arguments)
    commands = commands_of(line)
    if isinstance(commands, NotUnderstood):
        decision = _weighed(base, whole)
        forbidding = any(one.rule.verb is not Verb.ALLOW for one in of_parts)
        if forbidding or (of_parts and decision.verb is Verb.ASK):
            # What a rule would forbid may stand in it: somebody has to read it.
            decision = max(Decision(verb=Verb.ASK, reason=commands.reason), decision, key=_rank)
        return Explanation(decision=decision, mode=mode, matched=whole)
    segments = tuple(_segment(command, whole, of_parts, base) for command in commands)
    strictest = max((segment.decision for segment in segments), key=_rank)
    if len({segment.decision.reason for segment in segments}) > 1 and strictest.verb is Verb.ALLOW:
        strictest = Decision(verb=Verb.ALLOW, reason="every command of the line is allowed")
    matched = [one for segment in segments for one in segment.matched]
    unique = {one.place: one for one in matched}.values()
    in_order = [one for one in rules if one in unique]
    return Explanation(decision=strictest, mode=mode, matched=_strictest_first(in_order), segments=segments)


def _segment(
    command: ShellCommand, whole: Sequence[PlacedRule], of_parts: Sequence[PlacedRule], base: Decision
) -> Segment:
    matched = _strictest_first([*whole, *(one for one in of_parts if _is_about(one.rule, command))])
    decision = _weighed(_base_of(command, of_parts, base), matched)
    about_paths = any(one.rule.path is not None and one.rule.verb is not Verb.ALLOW for one in of_parts)
    if about_paths and None in command.words[1:]:
        told = f"`{command.text}` may name a file that a rule is about"
        decision = max(decision, Decision(verb=Verb.ASK, reason=told), key=_rank)
    return Segment(command=command.text, decision=decision, matched=matched)


def _is_about(rule: Rule, command: ShellCommand) -> bool:
    """Whether a rule about commands or paths speaks about a command. Allowing needs all to be known, and never a program
    that runs what it is told; which files a program opens nobody sees, so that no rule about paths allows one."""
    if rule.verb is Verb.ALLOW:
        return not is_interpreter(command) and any(fits(command, pattern) for pattern in each(rule.command))
    if rule.command is not None:
        return any(may_fit(command, pattern) for pattern in each(rule.command))
    return any(rule.covers(path) for word in command.words[1:] if word for path in _paths_in(word))


def _base_of(command: ShellCommand, of_parts: Sequence[PlacedRule], base: Decision) -> Decision:
    """What holds for a command that no rule allows; reading a file is for the rules about paths alone."""
    if command.words[0] == READS:
        return Decision(verb=Verb.ALLOW, reason="the shell reads a file")
    if base.verb is not Verb.ASK or not any(one.rule.command for one in of_parts):
        return base
    if is_interpreter(command):
        return Decision(verb=Verb.ASK, reason=f"`{command.text}` may run anything")
    return Decision(verb=Verb.ASK, reason=f"no rule allows `{command.text}`")


def _paths_in(word: str) -> set[str]:
    """The paths that a word of a command may be: itself, behind a `=`, below each folder of an absolute one; and for a
    folder what lies in it, because programs go through folders."""
    found: set[str] = set()
    for text in {word, word.partition("=")[2]} - {""}:
        path = posixpath.normpath(text)
        parts = path.strip("/").split("/")[-_FOLDERS_MAX:]
        if path.startswith(("/", "..")):
            found |= {"/".join(parts[start:]) for start in range(len(parts))}
        else:
            found.add(path)
    found -= {"", "."}
    return found | {f"{path}/{_ANY_FILE}" for path in found}


def _by_mode(spec: ToolSpec, mode: Mode) -> Decision:
    risk = risk_of(spec)
    match mode:
        case Mode.READ_ONLY if not _only_reads(spec):
            told = f"{spec.name} changes something, and the policy is read-only"
            return Decision(verb=Verb.DENY, reason=told)
        case Mode.READ_ONLY if risk != "low":
            told = (
                f"only {spec.name} itself says that it reads; the policy is read-only and no rule allows it"
            )
            return Decision(verb=Verb.DENY, reason=told)
        case Mode.READ_ONLY:
            return Decision(verb=Verb.ALLOW, reason=f"{spec.name} only reads")
        case Mode.TRUSTED | Mode.ASK_RISKY if risk == "high":
            told = f"{spec.name} is of high risk, so that somebody has to approve the call"
            return Decision(verb=Verb.ASK, reason=told)
        case Mode.ASK_RISKY if spec.semantics is Semantics.NON_IDEMPOTENT:
            told = f"{spec.name} does something that cannot be repeated, so that somebody has to approve the call"
            return Decision(verb=Verb.ASK, reason=told)
        case Mode.TRUSTED | Mode.ASK_RISKY:
            return Decision(verb=Verb.ALLOW, reason=f"{spec.name} is of {risk} risk")


def _only_reads(spec: ToolSpec) -> bool:
    """Whether the world is the same afterwards: what changes the run alone is no effect."""
    return spec.semantics is Semantics.READ_ONLY or spec.name in RUN_TOOLS


def _strictest_first(rules: Iterable[PlacedRule]) -> tuple[PlacedRule, ...]:
    return tuple(sorted(rules, key=lambda one: -_RANK[one.rule.verb]))


def _said(one: PlacedRule) -> Decision:
    return Decision(verb=one.rule.verb, reason=one.rule.reason or f"{one.place} of the policy allows it")


def _rank(decision: Decision) -> int:
    return _RANK[decision.verb]
