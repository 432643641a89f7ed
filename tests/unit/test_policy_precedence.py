"""How rules add up, for any rules: a deny always wins, saying more never surprises, and order has no meaning."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from libs.contracts.tools import RUN_TOOLS, Semantics, ToolSpec
from libs.policy.decision import decide, explain
from libs.policy.risk import Risk
from libs.policy.rules import Mode, Patterns, Policy, Rule, TenantPolicy, Verb

RANK = {Verb.ALLOW: 0, Verb.ASK: 1, Verb.DENY: 2}
TENANTS = ("acme", "local")
PATHS = ("a.py", "src/a.py", "src/key.pem", "Secrets/x", "secrets/x")
LINES = (
    "ls", "ls src", "git log -1 && ls", "rm a.py", "cat secrets/x", "cat *", "python3 x", "ls > src/a.py",
    "cat < secrets/x", "$x", "ls '", "", "ls | $(rm x)",
)  # fmt: skip

risks: st.SearchStrategy[Risk] = st.sampled_from(["low", "medium", "high"])
specs = st.one_of(
    st.builds(
        ToolSpec,
        name=st.sampled_from(["read_file", "write_file", "deploy", "mcp_docs_find", "delegate"]),
        description=st.just(""),
        parameters=st.just({}),
        semantics=st.sampled_from(Semantics),
        risk=st.sampled_from(["low", "medium", "high", "unheard of"]),
    ),
    st.just(ToolSpec(name="run_command", description="", parameters={}, semantics=Semantics.NON_IDEMPOTENT)),
)
CALLS: list[dict[str, object]] = [
    {},
    *({"path": path} for path in PATHS),
    *({"command": line} for line in LINES),
]
calls = st.sampled_from(CALLS)
paths: st.SearchStrategy[Patterns] = st.sampled_from(
    ["*.pem", "secrets/", ("**", "!src/**"), "src/**", "a.py"]
)
commands: st.SearchStrategy[Patterns] = st.sampled_from(
    ["ls *", "git log *", ("rm *", "> *"), "*", "cat *", "> src/*", "< *"]
)


@st.composite
def rules(draw: st.DrawFn, verbs: tuple[Verb, ...] = tuple(Verb)) -> Rule:
    about = draw(st.integers(0, 2))
    return Rule(
        verb=draw(st.sampled_from(verbs)),
        reason="because",
        tool=draw(st.sampled_from(["*", "*", "run_*", ("write_file", "mcp_*"), "deploy"])),
        tenant=draw(st.sampled_from(["*", "*", "acme", "l*"])),
        risk=draw(st.none() | risks),
        semantics=draw(st.none() | st.sampled_from(Semantics)),
        path=draw(paths) if about == 1 else None,
        command=draw(commands) if about == 2 else None,
    )


several = st.lists(rules(), max_size=4).map(tuple)
policies = st.builds(
    Policy,
    mode=st.sampled_from(Mode),
    rules=several,
    tenants=st.dictionaries(
        st.sampled_from(TENANTS),
        st.builds(TenantPolicy, mode=st.none() | st.sampled_from(Mode), rules=several),
        max_size=1,
    ),
)
tenants = st.sampled_from(TENANTS)


def rank(spec: ToolSpec, arguments: dict[str, object], tenant: str, policy: Policy) -> int:
    return RANK[decide(spec, arguments, tenant=tenant, policy=policy).verb]


def with_rule(policy: Policy, rule: Rule, index: int = 0) -> Policy:
    return msgspec.structs.replace(policy, rules=(*policy.rules[:index], rule, *policy.rules[index:]))


@given(specs, calls, tenants, policies, rules(), st.integers(0, 4), st.randoms(use_true_random=False))
def test_a_further_deny_or_ask_never_widens_an_allow_never_narrows_and_order_has_no_meaning(
    spec: ToolSpec,
    call: dict[str, object],
    tenant: str,
    policy: Policy,
    rule: Rule,
    index: int,
    random: Random,
) -> None:
    before = rank(spec, call, tenant, policy)
    for verb in Verb:
        more = with_rule(policy, msgspec.structs.replace(rule, verb=verb), index)
        after = rank(spec, call, tenant, more)
        assert after <= before if verb is Verb.ALLOW else after >= before
        shuffled = msgspec.structs.replace(more, rules=tuple(random.sample(more.rules, len(more.rules))))
        assert rank(spec, call, tenant, shuffled) == after


@given(specs, calls, tenants, policies)
@example(
    ToolSpec(name="run_command", description="", parameters={}, semantics=Semantics.NON_IDEMPOTENT),
    {"command": "ls"},
    "local",
    Policy(mode=Mode.READ_ONLY, rules=(Rule(verb=Verb.ALLOW), Rule(verb=Verb.ALLOW, command="*"))),
)
def test_the_strictest_rule_and_the_strictest_command_decide_and_read_only_lets_no_effect_through(
    spec: ToolSpec, call: dict[str, object], tenant: str, policy: Policy
) -> None:
    denied = with_rule(policy, Rule(verb=Verb.DENY, reason="never", tool=spec.name))
    assert decide(spec, call, tenant=tenant, policy=denied).verb is Verb.DENY
    found = explain(spec, call, tenant=tenant, policy=policy)
    strictest = RANK[found.decision.verb]
    order = [RANK[one.rule.verb] for one in found.matched]
    assert order == sorted(order, reverse=True)
    assert strictest >= max(order, default=0)
    assert strictest >= max((RANK[segment.decision.verb] for segment in found.segments), default=0)
    assert all(said.reason for said in (found.decision, *(segment.decision for segment in found.segments)))
    if policy.mode_of(tenant) is Mode.READ_ONLY and spec.name not in RUN_TOOLS:
        assert found.decision.verb is Verb.DENY or spec.semantics is Semantics.READ_ONLY
