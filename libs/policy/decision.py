"""May this call happen: allow, ask a person, or deny.

Invariant: of all rules that match a call, deny wins over ask and ask over allow; the same call gets the same decision
from the executor (before the intent) and from the host (before the effect), because both ask this one function.
"""

from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.commandlines import NotUnderstood, commands_of, fits, is_interpreter, may_fit


class Mode(StrEnum):
    """What holds when no rule speaks about a call."""

    TRUSTED = "trusted"
    ASK_RISKY = "ask-risky"
    READ_ONLY = "read-only"


class Verb(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is for the model and for people: which rule or mode decided."""

    verb: Verb
    reason: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. `tool` and `tenant` are shell patterns; `None` fields match everything.

    An `allow` rule takes a call out of what the mode alone would ask or deny. With `command` a rule is about the
    commands of a shell line (`git log *`: words, each a shell pattern; `*` at the end is any further ones; writing a
    file is the command `> FILE`). A line is allowed when each of its commands is, and never because of a program that
    runs what it is told. A rule that `yields` counts only for lines that no such rule allows.
    """

    verb: Verb
    reason: str
    tool: str = "*"
    tenant: str = "*"
    risk: str | None = None
    semantics: Semantics | None = None
    command: str | None = None
    yields: bool = False

    def matches(self, spec: ToolSpec, tenant: str) -> bool:
        return (
            fnmatchcase(spec.name, self.tool)
            and fnmatchcase(tenant, self.tenant)
            and self.risk in (None, spec.risk)
            and self.semantics in (None, spec.semantics)
        )


# A shell line can do anything that its user can, so people see it first (contract, section 5).
DEFAULT_RULES = (
    Rule(
        verb=Verb.ASK,
        tool="run_command",
        yields=True,
        reason="a shell line is run only after somebody approved it",
    ),
    # Tools of other services say by their risk that a person should look first.
    Rule(
        verb=Verb.ASK,
        risk="high",
        yields=True,
        reason="a tool of high risk is called only after somebody approved it",
    ),
)
# The tools that run a shell line, and the argument that it is.
_SHELL_LINES = {"run_command": "command"}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The table in force. Rules are unordered: see the module's invariant."""

    mode: Mode = Mode.TRUSTED
    rules: tuple[Rule, ...] = DEFAULT_RULES


_RANK = {Verb.ALLOW: 0, Verb.ASK: 1, Verb.DENY: 2}


def decide(spec: ToolSpec, arguments: dict[str, object], *, tenant: str, policy: Policy) -> Decision:
    """The decision for one call of `spec` with its full arguments."""
    matching = [rule for rule in policy.rules if rule.matches(spec, tenant)]
    line = arguments.get(_SHELL_LINES.get(spec.name, ""))
    by_line = _by_line(line, [rule for rule in matching if rule.command]) if isinstance(line, str) else None
    plain = [
        Decision(verb=rule.verb, reason=rule.reason)
        for rule in matching
        if rule.command is None and not (rule.yields and by_line is not None and by_line.verb is Verb.ALLOW)
    ]
    found = [*([by_line] if by_line is not None else []), *plain]
    return max(found, key=lambda decision: _RANK[decision.verb]) if found else _by_mode(spec, policy.mode)


def _by_line(line: str, rules: list[Rule]) -> Decision | None:
    """What the rules about commands say of a shell line; nothing when there are none."""
    if not rules:
        return None
    commands = commands_of(line)
    if isinstance(commands, NotUnderstood):
        return Decision(verb=Verb.ASK, reason=commands.reason)
    for verb in (Verb.DENY, Verb.ASK):
        for rule in rules:
            if rule.verb is verb and any(may_fit(command, rule.command or "") for command in commands):
                return Decision(verb=verb, reason=rule.reason)
    for command in commands:
        if is_interpreter(command):
            return Decision(verb=Verb.ASK, reason=f"`{command.text}` may run anything")
        if not any(rule.verb is Verb.ALLOW and fits(command, rule.command or "") for rule in rules):
            return Decision(verb=Verb.ASK, reason=f"no rule allows `{command.text}`")
    return Decision(verb=Verb.ALLOW, reason="rules allow every command of the line")


def _by_mode(spec: ToolSpec, mode: Mode) -> Decision:
    match mode:
        case Mode.TRUSTED:
            return Decision(verb=Verb.ALLOW, reason="the deployment trusts its tools")
        case Mode.ASK_RISKY if spec.risk == "high" or spec.semantics is Semantics.NON_IDEMPOTENT:
            return Decision(
                verb=Verb.ASK, reason=f"{spec.name} is risky, and risky calls are approved by a person"
            )
        case Mode.ASK_RISKY:
            return Decision(verb=Verb.ALLOW, reason=f"{spec.name} is not risky")
        case Mode.READ_ONLY if spec.semantics is Semantics.READ_ONLY:
            return Decision(verb=Verb.ALLOW, reason=f"{spec.name} only reads")
        case Mode.READ_ONLY:
            return Decision(
                verb=Verb.DENY, reason=f"{spec.name} changes something, and this deployment only reads"
            )
