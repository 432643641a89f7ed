"""Which calls of one turn go on beside each other: a pure decision from their recorded intents."""

import msgspec

from libs.contracts import events as e
from libs.contracts.run import RunState
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import ModelToolCall
from services.executor.decision.activity import CallTool
from services.executor.decision.decide import Do, foresee, settle
from tests.unit.test_executor_decide import NOW, SPECS, asked, call, env, kinds, owned, result, turn


def side_effect(name: str, semantics: Semantics, *, workspace: bool = False) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={}, semantics=semantics, needs_workspace=workspace)


PARALLEL = {
    **SPECS,
    "write_file": side_effect("write_file", Semantics.IDEMPOTENT, workspace=True),
    "send": side_effect("send", Semantics.NON_IDEMPOTENT),
}


def going_on(state: RunState) -> list[str]:
    """The calls that are to be carried out in this state of an attached run."""
    settled = settle(state, env(attached=True)._replace(specs=PARALLEL))
    assert isinstance(settled.then, Do)
    assert not settled.events
    return [one.call.call_id for one in settled.then.activities if isinstance(one, CallTool)]


def with_calls(*made: ModelToolCall) -> RunState:
    state = foresee(asked(owned()), [turn(1, calls=list(made))], NOW)
    return settle(state, env(attached=True)._replace(specs=PARALLEL)).state


def test_calls_of_a_turn_go_on_together_unless_they_touch_the_same() -> None:
    state = with_calls(
        call("write_file", 0, path="a", content="1"),
        call("read_file", 1, path="./a"),
        call("read_file", 2, path="b"),
        call("write_file", 3, path="c", content="1"),
        call("write_file", 4, path="b", content="2"),
        call("echo", 5, text="x"),
    )
    assert going_on(state) == ["call_1_0", "call_1_2", "call_1_3", "call_1_5"]
    # What a later owner folds from the log gives the same order: a result frees what waited for it, nothing else.
    state = foresee(state, [result("call_1_2")], NOW)
    assert going_on(state) == ["call_1_0", "call_1_3", "call_1_4", "call_1_5"]
    again = msgspec.structs.replace(state.calls[0], attempt=2)
    state = msgspec.structs.replace(state, calls=(*state.calls[1:], again))
    assert going_on(state) == ["call_1_0", "call_1_3", "call_1_4", "call_1_5"]
    state = foresee(state, [result("call_1_0")], NOW)
    assert going_on(state) == ["call_1_1", "call_1_3", "call_1_4", "call_1_5"]


def test_a_call_that_must_not_be_repeated_waits_for_all_before_it_and_all_behind_it_wait() -> None:
    state = with_calls(call("echo", 0), call("send", 1), call("send", 2), call("echo", 3))
    assert going_on(state) == ["call_1_0"]
    state = foresee(state, [result("call_1_0")], NOW)
    assert going_on(state) == ["call_1_1"]
    state = foresee(state, [result("call_1_1", ok=False)], NOW)
    assert going_on(state) == ["call_1_2"]
    state = foresee(state, [result("call_1_2")], NOW)
    assert going_on(state) == ["call_1_3"]


def test_what_stands_behind_an_uncertain_call_waits_until_somebody_has_decided() -> None:
    state = with_calls(call("send", 0), call("echo", 1))
    unsure = e.ToolUncertain(call_id="call_1_0", attempt=1, reason="died", host="h", boot="b9")
    settled = settle(foresee(state, [unsure], NOW), env(attached=True)._replace(specs=PARALLEL))
    assert kinds(settled.events) == ["run.released", "reconciliation.required"]
    decided = e.ReconciliationResolved(
        call_id="call_1_0", decision="accept", by="you", observation="it happened"
    )
    claimed = e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)
    after = settle(
        foresee(settled.state, [decided, claimed], NOW), env(attached=True)._replace(specs=PARALLEL)
    )
    assert kinds(after.events) == ["tool.completed"]
    assert going_on(after.state) == ["call_1_1"]
