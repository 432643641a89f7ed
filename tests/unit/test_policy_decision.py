"""The policy: strictest rule wins, the mode speaks when no rule does, an approval fits one call only."""

import pytest

from libs.contracts.tools import RUN_TOOLS, Semantics, ToolSpec
from libs.policy.approval import approval_hash
from libs.policy.decision import decide, explain, hides
from libs.policy.risk import risk_of
from libs.policy.rules import Mode, Policy, Rule, TenantPolicy, Verb


def spec(
    name: str = "write_file", semantics: Semantics = Semantics.IDEMPOTENT, risk: str = "low"
) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={}, semantics=semantics, risk=risk)


@pytest.mark.parametrize(
    "mode,semantics,risk,verb",
    [
        (Mode.TRUSTED, Semantics.NON_IDEMPOTENT, "medium", Verb.ALLOW),
        (Mode.ASK_RISKY, Semantics.NON_IDEMPOTENT, "low", Verb.ASK),
        (Mode.ASK_RISKY, Semantics.IDEMPOTENT, "high", Verb.ASK),
        (Mode.ASK_RISKY, Semantics.IDEMPOTENT, "low", Verb.ALLOW),
        (Mode.READ_ONLY, Semantics.READ_ONLY, "low", Verb.ALLOW),
        (Mode.READ_ONLY, Semantics.IDEMPOTENT, "low", Verb.DENY),
    ],
)
def test_the_mode_decides_when_no_rule_speaks(
    mode: Mode, semantics: Semantics, risk: str, verb: Verb
) -> None:
    decision = decide(spec(semantics=semantics, risk=risk), {}, tenant="local", policy=Policy(mode=mode))
    assert decision.verb is verb
    assert decision.reason


def test_deny_wins_over_ask_and_ask_over_allow() -> None:
    rules = (
        Rule(verb=Verb.ALLOW, reason="yes", tool="write_*"),
        Rule(verb=Verb.DENY, reason="no", tenant="acme"),
        Rule(verb=Verb.ASK, reason="perhaps", semantics=Semantics.IDEMPOTENT),
    )
    policy = Policy(rules=rules)
    assert decide(spec(), {}, tenant="acme", policy=policy).verb is Verb.DENY
    assert decide(spec(), {}, tenant="local", policy=policy).verb is Verb.ASK
    assert decide(spec(semantics=Semantics.READ_ONLY), {}, tenant="local", policy=policy).reason == "yes"


def test_an_allow_rule_takes_a_call_out_of_its_mode() -> None:
    risky = spec("deploy", Semantics.NON_IDEMPOTENT)
    policy = Policy(mode=Mode.ASK_RISKY, rules=(Rule(verb=Verb.ALLOW, reason="known", tool="deploy"),))
    assert decide(risky, {}, tenant="local", policy=policy).verb is Verb.ALLOW
    assert decide(spec("destroy", risky.semantics), {}, tenant="local", policy=policy).verb is Verb.ASK


def test_nothing_with_an_effect_gets_through_a_read_only_policy() -> None:
    policy = Policy(mode=Mode.READ_ONLY, rules=(Rule(verb=Verb.ALLOW), Rule(verb=Verb.ASK, reason="look")))
    for semantics in (Semantics.IDEMPOTENT, Semantics.NON_IDEMPOTENT):
        assert decide(spec("deploy", semantics), {}, tenant="local", policy=policy).verb is Verb.DENY


def test_a_shell_line_is_asked_about_by_default() -> None:
    command = spec("run_command", Semantics.NON_IDEMPOTENT)
    assert decide(command, {"command": "ls"}, tenant="local", policy=Policy()).verb is Verb.ASK


def test_an_approval_fits_the_same_arguments_in_any_order_and_nothing_else() -> None:
    bound = approval_hash("run_command", {"command": "ls", "timeout_s": 1}, "call_1_0")
    assert bound == approval_hash("run_command", {"timeout_s": 1, "command": "ls"}, "call_1_0")
    assert bound != approval_hash("run_command", {"command": "ls ", "timeout_s": 1}, "call_1_0")
    assert bound != approval_hash("run_command", {"command": "ls", "timeout_s": 1}, "call_1_1")
    assert bound != approval_hash("run_program", {"command": "ls", "timeout_s": 1}, "call_1_0")


@pytest.mark.parametrize(
    "name,semantics,said,risk",
    [
        ("read_file", Semantics.READ_ONLY, "low", "low"),
        ("write_file", Semantics.IDEMPOTENT, "low", "low"),
        ("write_file", Semantics.IDEMPOTENT, "medium", "medium"),
        ("deploy", Semantics.NON_IDEMPOTENT, "low", "medium"),
        ("deploy", Semantics.READ_ONLY, "critical", "high"),
        ("run_command", Semantics.READ_ONLY, "low", "high"),
        ("mcp_docs_find", Semantics.READ_ONLY, "low", "medium"),
        ("mcp_docs_find", Semantics.NON_IDEMPOTENT, "low", "high"),
        ("mcp_docs_find", Semantics.IDEMPOTENT, "high", "high"),
    ],
)
def test_no_silence_and_no_word_of_a_stranger_makes_a_tool_harmless(
    name: str, semantics: Semantics, said: str, risk: str
) -> None:
    assert risk_of(spec(name, semantics, said)) == risk


@pytest.mark.parametrize(
    "mode,verb", [(Mode.TRUSTED, Verb.ASK), (Mode.ASK_RISKY, Verb.ASK), (Mode.READ_ONLY, Verb.DENY)]
)
def test_a_tool_of_a_foreign_server_is_asked_about_until_a_rule_vouches_for_it(
    mode: Mode, verb: Verb
) -> None:
    unknown = spec("mcp_forge_merge", Semantics.NON_IDEMPOTENT)
    reading = spec("mcp_forge_find", Semantics.READ_ONLY)
    vouched = Policy(mode=mode, rules=(Rule(verb=Verb.ALLOW, tool="mcp_forge_*"),))
    assert decide(unknown, {}, tenant="local", policy=Policy(mode=mode)).verb is verb
    assert decide(unknown, {}, tenant="local", policy=vouched).verb is (
        Verb.DENY if mode is Mode.READ_ONLY else Verb.ALLOW
    )
    assert decide(reading, {}, tenant="local", policy=vouched).verb is Verb.ALLOW
    by_itself = decide(reading, {}, tenant="local", policy=Policy(mode=mode)).verb
    assert by_itself is (Verb.DENY if mode is Mode.READ_ONLY else Verb.ALLOW)


def test_what_changes_the_run_alone_is_no_effect() -> None:
    for name, semantics in RUN_TOOLS.items():
        plain = Policy(mode=Mode.READ_ONLY)
        assert decide(spec(name, semantics), {}, tenant="local", policy=plain).verb is Verb.ALLOW
        closed = Policy(rules=(Rule(verb=Verb.DENY, reason="no", tool=name),))
        assert decide(spec(name, semantics), {}, tenant="local", policy=closed).verb is Verb.DENY


@pytest.mark.parametrize(
    "path,verb",
    [
        ("secrets/key", Verb.DENY),
        ("./secrets//key", Verb.DENY),
        ("Secrets/KEY", Verb.DENY),
        ("a/b/x.pem", Verb.DENY),
        ("a/X.PEM", Verb.DENY),
        ("public/x.pem", Verb.ALLOW),
        ("cafe\u0301.txt", Verb.DENY),
        ("secrets.md", Verb.ALLOW),
        ("src/a.py", Verb.ALLOW),
    ],
)
def test_a_rule_about_paths_holds_for_every_spelling_and_not_for_what_it_takes_out(
    path: str, verb: Verb
) -> None:
    rule = Rule(verb=Verb.DENY, reason="no", path=("secrets/", "*.pem", "caf\u00e9.txt", "!public/*.pem"))
    policy = Policy(rules=(rule,))
    assert decide(spec(), {"path": path}, tenant="local", policy=policy).verb is verb
    patch = f"*** Begin Patch\n*** Add File: harmless\n+a\n*** Add File: {path}\n+a\n*** End Patch\n"
    assert decide(spec("apply_patch"), {"patch": patch}, tenant="local", policy=policy).verb is verb


def test_a_call_of_several_files_is_allowed_when_all_of_them_are() -> None:
    policy = Policy(mode=Mode.ASK_RISKY, rules=(Rule(verb=Verb.ALLOW, path="docs/"),))
    risky = spec("apply_patch", risk="high")
    for paths, verb in ((("docs/a", "docs/b"), Verb.ALLOW), (("docs/a", "src/b"), Verb.ASK), ((), Verb.ASK)):
        parts = "".join(f"*** Add File: {path}\n+a\n" for path in paths)
        patch = f"*** Begin Patch\n{parts}*** End Patch\n"
        assert decide(risky, {"patch": patch}, tenant="local", policy=policy).verb is verb


def test_a_call_that_looks_at_many_files_passes_over_those_that_rules_are_about() -> None:
    policy = Policy(
        rules=(
            Rule(verb=Verb.DENY, reason="no", path="*.pem"),
            Rule(verb=Verb.ASK, reason="look", path="private/", tool="search_*"),
            Rule(verb=Verb.DENY, reason="no", path="acme/", tenant="other"),
        )
    )
    search = spec("search_text", Semantics.READ_ONLY)
    assert decide(search, {"pattern": "x"}, tenant="local", policy=policy).verb is Verb.ALLOW
    hidden = hides(search, tenant="local", policy=policy, approved=False)
    assert hidden is not None
    paths = ("a/x.pem", "private/a", "acme/a", "a.py")
    assert [path for path in paths if hidden(path)] == ["a/x.pem", "private/a"]
    approved = hides(search, tenant="local", policy=policy, approved=True)
    assert approved is not None
    assert [path for path in paths if approved(path)] == ["a/x.pem"]
    assert hides(search, tenant="local", policy=Policy(), approved=False) is None


COMMAND = spec("run_command", Semantics.NON_IDEMPOTENT)


@pytest.mark.parametrize(
    "line,verb",
    [
        ("cat a.py", Verb.ALLOW),
        ("cat secrets/key", Verb.DENY),
        ("cat secrets", Verb.DENY),
        ("cat ./x/../secrets/key", Verb.DENY),
        ("cat < secrets/key", Verb.DENY),
        ("cat < a.py", Verb.ALLOW),
        ("cat /any/where/secrets/key", Verb.DENY),
        ("cat ../w/secrets/key", Verb.DENY),
        ("cat --file=secrets/key", Verb.DENY),
        ("cat a.py; cat 'Secrets/key'", Verb.DENY),
        ("cat secr*/key", Verb.ASK),
        ("cat $x", Verb.ASK),
        ("echo x > secrets/key", Verb.DENY),
    ],
)
def test_a_rule_about_paths_sees_the_files_that_a_command_names(line: str, verb: Verb) -> None:
    rules = (
        Rule(verb=Verb.ALLOW, tool="run_command", command=("cat *", "echo *", "> *")),
        Rule(verb=Verb.DENY, reason="no", path="secrets/"),
    )
    assert decide(COMMAND, {"command": line}, tenant="local", policy=Policy(rules=rules)).verb is verb


def test_a_decision_is_explained_by_its_rules_and_command_by_command() -> None:
    rules = (
        Rule(verb=Verb.ALLOW, command="ls *", reason="harmless"),
        Rule(verb=Verb.ASK, tenant="local", tool="run_*", reason="watched"),
        Rule(verb=Verb.DENY, command="rm *", reason="never"),
        Rule(verb=Verb.DENY, tool="other", reason="not this"),
    )
    found = explain(COMMAND, {"command": "ls a | rm b; make"}, tenant="local", policy=Policy(rules=rules))
    assert (found.decision.verb, found.decision.reason) == (Verb.DENY, "never")
    assert [one.place for one in found.matched] == ["rules[2]", "rules[1]", "rules[0]"]
    told = [(segment.command, segment.decision.verb, segment.decision.reason) for segment in found.segments]
    assert told == [
        ("ls a", Verb.ASK, "watched"),
        ("rm b", Verb.DENY, "never"),
        ("make", Verb.ASK, "watched"),
    ]
    assert [one.place for one in found.segments[0].matched] == ["rules[1]", "rules[0]"]


def test_a_tenant_has_its_own_mode_and_its_own_rules_beside_those_of_all() -> None:
    policy = Policy(
        rules=(Rule(verb=Verb.DENY, reason="nobody", tool="deploy"),),
        tenants={
            "acme": TenantPolicy(mode=Mode.READ_ONLY),
            "beta": TenantPolicy(
                rules=(Rule(verb=Verb.ASK, reason="look", tool="write_*"), Rule(verb=Verb.ALLOW))
            ),
        },
    )
    verbs = {
        tenant: decide(spec(), {}, tenant=tenant, policy=policy).verb for tenant in ("local", "acme", "beta")
    }
    assert verbs == {"local": Verb.ALLOW, "acme": Verb.DENY, "beta": Verb.ASK}
    assert decide(spec("deploy"), {}, tenant="beta", policy=policy).reason == "nobody"
