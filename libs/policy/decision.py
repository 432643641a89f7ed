"""May this call happen: allow, ask a person, or deny.

Invariant: of all rules that match a call, deny wins over ask and ask over allow; the same call gets the same decision
from the executor (before the intent) and from the host (before the effect), because both ask this one function.
"""

from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from libs.contracts.tools import Semantics, ToolSpec


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

    An `allow` rule takes a call out of what the mode alone would ask or deny.
    """

    verb: Verb
    reason: str
    tool: str = "*"
    tenant: str = "*"
    risk: str | None = None
    semantics: Semantics | None = None

    def matches(self, spec: ToolSpec, tenant: str) -> bool:
        return (
            fnmatchcase(spec.name, self.tool)
            and fnmatchcase(tenant, self.tenant)
            and self.risk in (None, spec.risk)
            and self.semantics in (None, spec.semantics)
        )


# A shell line can do anything that its user can, so people see it first (contract, section 5).
DEFAULT_RULES = (
    Rule(verb=Verb.ASK, tool="run_command", reason="a shell line is run only after somebody approved it"),
    # Tools of other services say by their risk that a person should look first.
    Rule(verb=Verb.ASK, risk="high", reason="a tool of high risk is called only after somebody approved it"),
)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The table in force. Rules are unordered: see the module's invariant."""

    mode: Mode = Mode.TRUSTED
    rules: tuple[Rule, ...] = DEFAULT_RULES


_RANK = {Verb.ALLOW: 0, Verb.ASK: 1, Verb.DENY: 2}


def decide(spec: ToolSpec, arguments: dict[str, object], *, tenant: str, policy: Policy) -> Decision:
    """The decision for one call of `spec` with its full arguments.

    Rules on arguments (paths, command lines) come with the tool set that needs them; they will match here.
    """
    del arguments
    matching = [rule for rule in policy.rules if rule.matches(spec, tenant)]
    if matching:
        strictest = max(matching, key=lambda rule: _RANK[rule.verb])
        return Decision(verb=strictest.verb, reason=strictest.reason)
    return _by_mode(spec, policy.mode)


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
