"""Reads a policy, and finds what is wrong with one. PURE.

Invariant: a policy that was read is whole. Every key is known and every pattern can match something; whatever is wrong
is named by its place (`tenants.acme.rules[2].path`), so that nobody learns from an accident that a rule never held.
"""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from libs.contracts.ids import is_token
from libs.policy.commandlines import ShellCommand, is_interpreter
from libs.policy.rules import Patterns, Policy, Rule, TenantPolicy, Verb, each

# A decision looks at all of them; whoever needs more has written a program.
RULES_MAX = 1_000
PATTERNS_MAX = 200
PATTERN_CHARS_MAX = 500
REASON_CHARS_MAX = 500
# More than these problems are read by nobody at once.
_TOLD_MAX = 10

_TOOL_CHARS = re.compile(r"[A-Za-z0-9_.*?\[\]!-]+")
_TENANT_CHARS = re.compile(r"[a-z0-9_*?\[\]!-]+")
# What makes several commands of a line, or a value of a name; a pattern is held against one command, and against texts.
_OPERATORS = frozenset({"|", "||", "&&", "&", ";", "|&", "<<", "<<<"})
_NOT_A_TEXT = re.compile(r"[$`\"']|;$")
_WHERE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


_T = TypeVar("_T", bound=msgspec.Struct)


class _Tenants(msgspec.Struct):
    tenants: dict[str, msgspec.Raw]


def parse_policy(text: str | bytes) -> Policy:
    """The policy in JSON. Raises `ValueError` naming each place and what is wrong there."""
    policy = _decoded(text, Policy, "")
    problems = list(_problems(policy))
    if problems:
        more = [f"and {len(problems) - _TOLD_MAX} more"] if len(problems) > _TOLD_MAX else []
        raise ValueError("; ".join([*problems[:_TOLD_MAX], *more]))
    return policy


def _decoded(text: str | bytes | msgspec.Raw, into: type[_T], place: str) -> _T:
    try:
        return msgspec.json.decode(text, type=into)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        told = str(error)
        where = _WHERE.search(told)
        if where is None:
            raise ValueError(f"{place or 'is not JSON of a policy'}: {told}") from error
        if not place and where["place"].startswith("tenants[...]"):
            # Which one it is stands in no path.
            for tenant, own in msgspec.json.decode(text, type=_Tenants).tenants.items():
                _decoded(own, TenantPolicy, f"tenants.{tenant}")
        inside = ".".join(filter(None, (place, where["place"])))
        raise ValueError(f"{inside}: {told[: where.start()]}") from error


def _problems(policy: Policy) -> Iterator[str]:
    count = len(policy.rules) + sum(len(own.rules) for own in policy.tenants.values())
    if count > RULES_MAX:
        yield f"rules: there are {count}, at most {RULES_MAX} may be; lists of patterns make one rule of many"
        return
    for index, rule in enumerate(policy.rules):
        yield from _of_rule(f"rules[{index}]", rule)
    for tenant, own in policy.tenants.items():
        if not is_token(tenant):
            yield f"tenants: {tenant!r} is no tenant, whose name matches [a-z0-9_-]{{1,64}}"
        for index, rule in enumerate(own.rules):
            place = f"tenants.{tenant}.rules[{index}]"
            if rule.tenant != "*":
                yield f"{place}.tenant: the rule is this tenant's already; leave it out"
            yield from _of_rule(place, rule)


def _of_rule(place: str, rule: Rule) -> Iterator[str]:
    if rule.verb is not Verb.ALLOW and not rule.reason.strip():
        yield f"{place}.reason: is missing; say why, the model and people read it"
    if len(rule.reason) > REASON_CHARS_MAX:
        yield f"{place}.reason: has more than {REASON_CHARS_MAX} characters"
    if rule.path is not None and rule.command is not None:
        yield f"{place}: speaks about paths and about commands; make two rules of it"
    yield from _of_field(f"{place}.tool", rule.tool, _tool)
    yield from _of_field(f"{place}.tenant", rule.tenant, _tenant)
    yield from _of_field(f"{place}.path", rule.path, _path)
    if rule.path is not None and all(pattern.startswith("!") for pattern in each(rule.path)):
        yield f"{place}.path: only takes out; name what it is about, too, such as '**'"
    yield from _of_field(f"{place}.command", rule.command, _command)
    if rule.verb is Verb.ALLOW:
        yield from _of_field(f"{place}.command", rule.command, _allowed_command)


def _of_field(place: str, patterns: Patterns | None, judge: Callable[[str], str | None]) -> Iterator[str]:
    if patterns is None:
        return
    several = each(patterns)
    if not 1 <= len(several) <= PATTERNS_MAX:
        yield f"{place}: is a pattern, or a list of 1 to {PATTERNS_MAX}"
        return
    for pattern in several:
        problem = "is too long" if len(pattern) > PATTERN_CHARS_MAX else judge(pattern) or _brackets(pattern)
        if problem is not None:
            yield f"{place}: {pattern[:100]!r} {problem}"


def _tool(pattern: str) -> str | None:
    if _TOOL_CHARS.fullmatch(pattern) is None:
        return "names no tool: letters, digits, '_', '-', and '*', '?', '[...]' for any; several names are a list"
    return None


def _tenant(pattern: str) -> str | None:
    if _TENANT_CHARS.fullmatch(pattern) is None:
        return "names no tenant: small letters, digits, '_', '-', and '*', '?', '[...]' for any"
    return None


def _path(pattern: str) -> str | None:
    path = pattern.removeprefix("!")
    if not path.strip("/. "):
        return "names no path"
    if path.startswith("/") or ".." in path.split("/"):
        return "leads out of the workspace, where nothing is; write it relative to its root and without '..'"
    if any(not char.isprintable() for char in path):
        return "holds characters that cannot be seen"
    if path.count("{") != path.count("}"):
        return "has a brace without its partner"
    if any("**" in part and part != "**" for part in path.split("/")):
        return "has '**' in a name; it stands for folders, and alone between slashes"
    return None


def _command(pattern: str) -> str | None:
    words = pattern.split()
    if not words:
        return "names no command; '*' is any"
    if any(word in _OPERATORS or _NOT_A_TEXT.search(word) for word in words):
        return "is not one command as it is when quotes and variables are gone; several commands are several patterns"
    if words[0] in (">", "<") and len(words) != 2:
        return "writes or reads no file; it is '> FILE' or '< FILE'"
    return None


def _allowed_command(pattern: str) -> str | None:
    words = pattern.split()
    if words and words[0] not in (">", "<") and is_interpreter(ShellCommand((words[0],))):
        return "runs whatever it is told, so that allowing it would allow everything; such lines are always asked about"
    return None


def _brackets(pattern: str) -> str | None:
    """A bracket that is not closed matches itself, which nobody means."""
    rest = pattern
    while "[" in rest:
        inside = rest.partition("[")[2].removeprefix("!")
        if "]" not in inside[1:]:
            return "has a '[' that is not closed"
        rest = inside[1:].partition("]")[2]
    return None
