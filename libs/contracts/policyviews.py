"""What the HTTP API says of a policy: in health, and when a decision is explained.

Invariant: as in `views.py`, fields are only ever added.
"""

from typing import Literal

from libs.contracts.views import View

Effect = Literal["allow", "ask", "deny"]


class RuleView(View):
    """A rule and its `place` in the policy, such as `rules[2]`. A field that it leaves open is null."""

    place: str
    effect: Effect
    reason: str
    tool: list[str] | None = None
    tenant: str | None = None
    risk: str | None = None
    semantics: str | None = None
    path: list[str] | None = None
    command: list[str] | None = None


class PolicyView(View):
    """The policy that a gateway knows. `rules` are those for all tenants, `tenant_rules` counts the others; `differing`
    names the executors and tool hosts that go by another one."""

    mode: str
    digest: str
    rules: list[RuleView]
    tenant_rules: int
    differing: list[str]


class SegmentView(View):
    """One command of a shell line. `rules` are the places of those that speak about it, the strictest first."""

    command: str
    effect: Effect
    reason: str
    rules: list[str]


class DecisionView(View):
    """What would be decided about a call, and why: `rules` speak about it, the strictest first; `mode` is what holds
    where none does. `arguments_problem`: what the tool's schema has against the arguments, which comes first."""

    tool: str
    tenant: str
    effect: Effect
    reason: str
    mode: str
    semantics: str
    risk: str
    rules: list[RuleView]
    segments: list[SegmentView]
    arguments_problem: str | None
    policy: str
