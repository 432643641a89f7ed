"""The policy: strictest rule wins, the mode speaks when no rule does, an approval fits one call only."""

import pytest

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.approval import approval_hash
from libs.policy.decision import Mode, Policy, Rule, Verb, decide


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
    policy = Policy(mode=Mode.READ_ONLY, rules=(Rule(verb=Verb.ALLOW, reason="known", tool="write_file"),))
    assert decide(spec(), {}, tenant="local", policy=policy).verb is Verb.ALLOW


def test_a_shell_line_is_asked_about_by_default() -> None:
    command = spec("run_command", Semantics.NON_IDEMPOTENT)
    assert decide(command, {"command": "ls"}, tenant="local", policy=Policy()).verb is Verb.ASK


def test_an_approval_fits_the_same_arguments_in_any_order_and_nothing_else() -> None:
    bound = approval_hash("run_command", {"command": "ls", "timeout_s": 1}, "call_1_0")
    assert bound == approval_hash("run_command", {"timeout_s": 1, "command": "ls"}, "call_1_0")
    assert bound != approval_hash("run_command", {"command": "ls ", "timeout_s": 1}, "call_1_0")
    assert bound != approval_hash("run_command", {"command": "ls", "timeout_s": 1}, "call_1_1")
    assert bound != approval_hash("run_program", {"command": "ls", "timeout_s": 1}, "call_1_0")
