"""The policy over HTTP: what is in force, and what it would decide about a call.

Invariant: nothing is called or recorded; the answer comes from the function by which executors and hosts decide, over the
policy that this gateway has read, and names the tenant that it is about.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.ports import Replica
from libs.contracts.errors import NotFound, ValidationFailed
from libs.contracts.http import PolicyQuestion
from libs.contracts.policyviews import DecisionView, PolicyView, RuleView, SegmentView
from libs.contracts.tools import RUN_TOOLS, HostCatalog, ToolSpec
from libs.policy.decision import Explanation, Segment, explain
from libs.policy.risk import risk_of
from libs.policy.rules import Patterns, PlacedRule, Policy, each
from libs.policy.schemas import Schemas
from services.gateway import edge
from services.gateway.auth import OPERATOR
from services.gateway.roster import Roster

# Those that decide about calls; a gateway only explains.
DECIDING = ("executor", "toolhost")


class PoliciesApi:
    """`POST /api/policy/explain`."""

    def __init__(self, policy: Policy, roster: Roster, *, secure: bool) -> None:
        self._policy, self._roster, self._secure = policy, roster, secure

    async def explain(self, request: Request, asker: str) -> Response:
        """`asker` is a tenant, who asks for itself, or an operator."""
        question = await edge.body_of(request, PolicyQuestion)
        tenant = self._tenant(asker, question.tenant)
        spec = _spec(question.tool, tenant, await self._roster.catalogs())
        found = explain(spec, question.arguments, tenant=tenant, policy=self._policy)
        problem = Schemas({spec.name: spec}).problem(spec.name, question.arguments)
        return edge.answer(_decision(spec, tenant, found, problem, self._policy.digest))

    def _tenant(self, asker: str, wanted: str | None) -> str:
        if asker == OPERATOR and wanted is None:
            problem = "is missing: name the tenant whose call it would be"
            raise ValidationFailed(f"tenant {problem}", details=[{"field": "tenant", "message": problem}])
        if wanted is None or asker in (wanted, OPERATOR) or not self._secure:
            return wanted or asker
        raise NotFound(f"there is no tenant {wanted!r} that you may ask for; leave it out")


def policy_view(policy: Policy, replicas: Sequence[Replica]) -> PolicyView:
    """What everybody may know of the policy: nothing about single tenants."""
    placed = [PlacedRule(f"rules[{index}]", rule) for index, rule in enumerate(policy.rules)]
    for_all = [one for one in placed if one.rule.tenant == "*"]
    own = sum(len(tenant.rules) for tenant in policy.tenants.values())
    return PolicyView(
        mode=policy.mode,
        digest=policy.digest,
        rules=[_rule(one) for one in for_all],
        tenant_rules=len(placed) - len(for_all) + own,
        differing=sorted(
            one.replica
            for one in replicas
            if one.service in DECIDING and one.info.get("policy", policy.digest) != policy.digest
        ),
    )


def _spec(name: str, tenant: str, catalogs: Sequence[HostCatalog]) -> ToolSpec:
    """The tool as it is offered to the tenant now. Raises `ValidationFailed` naming those that are."""
    if name in RUN_TOOLS:
        return ToolSpec(name=name, description="", parameters={}, semantics=RUN_TOOLS[name])
    found = {
        spec.name: spec
        for catalog in catalogs
        if not catalog.shared
        for spec in catalog.tools
        if spec.is_for(tenant)
    }
    if name not in found:
        offered = ", ".join(sorted({*found, *RUN_TOOLS}))
        problem = f"no live tool host offers it; the tools are: {offered}"
        raise ValidationFailed(f"tool: {problem}", details=[{"field": "tool", "message": problem}])
    return found[name]


def _decision(
    spec: ToolSpec, tenant: str, found: Explanation, problem: str | None, digest: str
) -> DecisionView:
    return DecisionView(
        tool=spec.name,
        tenant=tenant,
        effect=found.decision.verb.value,
        reason=found.decision.reason,
        mode=found.mode,
        semantics=spec.semantics,
        risk=risk_of(spec),
        rules=[_rule(one) for one in found.matched],
        segments=[_segment(one) for one in found.segments],
        arguments_problem=problem,
        policy=digest,
    )


def _segment(segment: Segment) -> SegmentView:
    return SegmentView(
        command=segment.command,
        effect=segment.decision.verb.value,
        reason=segment.decision.reason,
        rules=[one.place for one in segment.matched],
    )


def _rule(one: PlacedRule) -> RuleView:
    rule = one.rule
    return RuleView(
        place=one.place,
        effect=rule.verb.value,
        reason=rule.reason,
        tool=_patterns(rule.tool),
        tenant=None if rule.tenant == "*" else rule.tenant,
        risk=rule.risk,
        semantics=rule.semantics,
        path=_patterns(rule.path),
        command=_patterns(rule.command),
    )


def _patterns(patterns: Patterns | None) -> list[str] | None:
    return None if patterns in (None, "*") else list(each(patterns))
