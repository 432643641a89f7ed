"""The policy of a deployment as data: which calls are allowed, asked about and denied. PURE.

Invariant: a rule says whether it speaks about a call and never looks at other rules; how they add up stands in
`decision.py`, how a policy is read and what is wrong with one in `reading.py`.

    {"mode": "ask-risky",
     "rules": [{"effect": "deny", "path": ["secrets/", "*.pem"], "reason": "keys are no business of a model"},
               {"effect": "allow", "tool": "run_command", "command": ["git status *", "git log *", "ls *"]}],
     "tenants": {"acme": {"mode": "read-only"}}}
"""

import hashlib
import unicodedata
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.globs import matches
from libs.policy.risk import Risk, risk_of


class Mode(StrEnum):
    """What holds where no rule speaks; see `decision.py`."""

    TRUSTED = "trusted"
    ASK_RISKY = "ask-risky"
    READ_ONLY = "read-only"


class Verb(StrEnum):
    """What is done about a call; people know it as the effect of a rule."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


Patterns = str | tuple[str, ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the table: about all calls that fit every field; what is not named fits everything.

    `tool` and `tenant` are shell patterns. `path` holds patterns of files (`globs.py`), those that begin with `!` taken
    out again. `command` is about the commands of a shell line (`git log *`: words, each a shell pattern; `*` at the end
    is any further ones; `> FILE` writes a file, `< FILE` reads one). Several patterns are a list: one has to fit.
    """

    verb: Verb = msgspec.field(name="effect")
    reason: str = ""
    tool: Patterns = "*"
    tenant: str = "*"
    risk: Risk | None = None
    semantics: Semantics | None = None
    path: Patterns | None = None
    command: Patterns | None = None

    def is_about(self, spec: ToolSpec, tenant: str) -> bool:
        """Whether it speaks about calls of this tool by this tenant, as far as that depends on no argument."""
        return (
            any(fnmatchcase(spec.name, pattern) for pattern in each(self.tool))
            and fnmatchcase(tenant, self.tenant)
            and self.risk in (None, risk_of(spec))
            and self.semantics in (None, spec.semantics)
        )

    @property
    def is_about_any_arguments(self) -> bool:
        return self.path is None and self.command is None

    def covers(self, path: str) -> bool:
        """Whether it speaks about a file. What restricts takes two spellings for one where some file system does; what
        allows, and what is taken out again, is exact."""
        found = False
        for pattern in each(self.path):
            if pattern.startswith("!"):
                if matches(path, pattern[1:]):
                    return False
            elif not found:
                found = matches(path, pattern) or (self.verb is not Verb.ALLOW and _alike(path, pattern))
        return found


class TenantPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for one tenant: a mode instead of the deployment's, rules beside the deployment's."""

    mode: Mode | None = None
    rules: tuple[Rule, ...] = ()


class PlacedRule(NamedTuple):
    """A rule and where it stands in the policy."""

    place: str
    rule: Rule


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy in force. The order of its rules has no meaning."""

    mode: Mode = Mode.TRUSTED
    rules: tuple[Rule, ...] = ()
    tenants: dict[str, TenantPolicy] = {}

    def mode_of(self, tenant: str) -> Mode:
        own = self.tenants.get(tenant)
        return self.mode if own is None or own.mode is None else own.mode

    def about(self, spec: ToolSpec, tenant: str) -> list[PlacedRule]:
        """The rules that speak about calls of this tool by this tenant, as they stand in the policy."""
        own = self.tenants.get(tenant, TenantPolicy())
        return [
            PlacedRule(f"{place}[{index}]", rule)
            for place, rules in (("rules", self.rules), (f"tenants.{tenant}.rules", own.rules))
            for index, rule in enumerate(rules)
            if rule.is_about(spec, tenant)
        ]

    @property
    def digest(self) -> str:
        """Names the policy: the same digest, the same decisions."""
        return hashlib.sha256(_canonical.encode(self)).hexdigest()[:12]


def each(patterns: Patterns | None) -> tuple[str, ...]:
    """The patterns of a field, one or several."""
    if patterns is None:
        return ()
    return (patterns,) if isinstance(patterns, str) else patterns


def _alike(path: str, pattern: str) -> bool:
    one, other = (unicodedata.normalize("NFC", text).casefold() for text in (path, pattern))
    return matches(one, other)


_canonical = msgspec.json.Encoder(order="sorted")
