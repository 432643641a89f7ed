"""A run's limits in the loop: what the model is told before one ends, how each ends the run, and what children share."""

from datetime import datetime, timedelta
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Limits
from libs.contracts.transcript import UserItem
from libs.contracts.values import ModelToolCall, Usage
from services.executor.decision.activity import CallModel, CallTool
from services.executor.decision.decide import Do, foresee, settle
from services.executor.decision.limits import deadline
from services.executor.tools.children import limits_of_child
from tests.unit.test_executor_decide import NOW, asked, call, env, kinds, owned, result, turn

LATER = NOW + timedelta(seconds=10)


def called(state: RunState, number: int, *, usage: Usage | None = None, now: datetime = NOW) -> RunState:
    """The state behind a turn with a call of its own, and its result."""
    state = foresee(state, settle(state, env(now=now)).events, now)
    made = ModelToolCall(call_id=f"call_{number}_0", name="echo", arguments={"text": str(number)})
    said = turn(number, calls=[made])
    state = foresee(state, [said if usage is None else msgspec.structs.replace(said, usage=usage)], now)
    state = foresee(state, settle(state, env(now=now)).events, now)
    return foresee(state, [result(made.call_id)], now)


def notes(state: RunState) -> list[str]:
    """What the runtime has told the model so far."""
    items = (*state.transcript, *state.inbox)
    return [item.text for item in items if isinstance(item, UserItem) and item.origin == "runtime"]


def test_the_model_is_told_once_and_in_time_that_its_turns_run_out() -> None:
    state = owned(Limits(max_iterations=8))
    told = list[int]()
    for number in range(1, 9):
        state = called(state, number)
        told.append(len(notes(settle(state, env()).state)))
    assert told == [0, 0, 0, 0, 0, 1, 1, 1]
    assert "2 of 8 turns are left" in notes(state)[0]
    error = settle(state, env()).state.error
    assert error is not None
    assert (error.error_code, "8 of 8 turns" in error.message) == ("MAX_ITERATIONS", True)


@pytest.mark.parametrize(
    "limits, unit",
    [(Limits(max_total_tokens=10_000), "tokens"), (Limits(max_cost_usd=10.0), "USD")],
    ids=["tokens", "cost"],
)
def test_a_budget_is_announced_before_it_ends_and_its_end_has_its_own_code(limits: Limits, unit: str) -> None:
    usage = Usage(requests=1, input_tokens=900, output_tokens=100, cost_usd=1.0)
    state = owned(limits)
    for number in range(1, 11):
        state = called(state, number, usage=usage)
    assert len(notes(state)) == 1
    assert unit in notes(state)[0]
    settled = settle(state, env())
    assert settled.state.error is not None
    assert settled.state.error.error_code == "BUDGET_EXCEEDED"
    assert unit in settled.state.error.message


def test_a_cost_that_is_not_known_stops_nothing_and_tokens_still_do() -> None:
    usage = Usage(requests=1, input_tokens=900, output_tokens=100, cost_usd=None)
    state = called(owned(Limits(max_cost_usd=0.01, max_total_tokens=1_500)), 1, usage=usage)
    assert settle(state, env()).state.error is None
    error = settle(called(state, 2, usage=usage), env()).state.error
    assert error is not None
    assert "max_total_tokens" in error.message


def test_time_that_runs_out_is_announced_once() -> None:
    state, now = owned(Limits(timeout_s=100)), NOW
    for number in range(1, 5):
        now += timedelta(seconds=24)
        state = called(state, number, now=now)
    assert len(notes(state)) == 1
    assert "52 of 100 seconds" in notes(state)[0]


def test_identical_failing_calls_are_told_of_once_and_the_next_one_ends_the_run_as_stuck() -> None:
    state = owned()
    for number in range(1, 5):
        state = foresee(state, settle(state, env()).events, NOW)
        made = ModelToolCall(call_id=f"call_{number}_0", name="nope", arguments={})
        state = foresee(state, [turn(number, calls=[made])], NOW)
        state = foresee(state, settle(state, env()).events, NOW) if number < 4 else settle(state, env()).state
    assert len(notes(state)) == 1
    assert state.error is not None
    assert state.error.error_code == "STUCK"
    assert "nope" in state.error.message


def test_a_budget_that_a_childs_usage_uses_up_ends_the_run_while_other_children_work() -> None:
    state = foresee(
        asked(owned(Limits(max_total_tokens=1_000))),
        [turn(1, calls=[call("delegate", 0, goal="a"), call("delegate", 1, goal="b")])],
        NOW,
    )
    state = foresee(state, settle(state, env()).events, NOW)
    child = state.children["call_1_0"]
    spent = Usage(requests=3, input_tokens=990, output_tokens=10)
    ended = e.ChildFinished(
        call_id="call_1_0", child_run_id=child, status="COMPLETED", answer="a", usage=spent
    )
    settled = settle(foresee(state, [ended], NOW), env())
    assert kinds(settled.events) == ["tool.completed", "run.failed"]
    error = settled.state.error
    assert error is not None
    assert error.error_code == "BUDGET_EXCEEDED"
    assert "the run and its children used 1015 of 1000 tokens" in error.message


def delegating(limits: Limits, count: int) -> RunState:
    """The state behind a first turn that delegates to so many, with their intents; it took 10 s."""
    usage = Usage(requests=1, input_tokens=90, output_tokens=10, cost_usd=0.5)
    said = turn(1, calls=[call("delegate", n, goal=str(n)) for n in range(count)])
    state = foresee(asked(owned(limits)), [msgspec.structs.replace(said, usage=usage)], LATER)
    return foresee(state, settle(state, env(now=LATER)).events, LATER)


def ended(state: RunState, number: int, *, iterations: int = 0, owned_s: float = 0) -> e.ChildFinished:
    call_id = f"call_1_{number}"
    return e.ChildFinished(
        call_id=call_id,
        child_run_id=state.children[call_id],
        status="COMPLETED",
        answer="a",
        iterations=iterations,
        owned_ms=int(owned_s * 1000),
    )


def test_children_of_one_turn_share_what_is_left_of_every_limit() -> None:
    limits = Limits(max_iterations=12, max_total_tokens=1_000, max_cost_usd=2.0, timeout_s=100)
    state = delegating(limits, 3)
    shares = [limits_of_child(state, f"call_1_{n}", LATER) for n in range(3)]
    assert {(share.max_total_tokens, share.max_cost_usd, share.timeout_s) for share in shares} == {
        (300, 0.5, 30.0)
    }
    assert [share.max_iterations for share in shares] == [4, 4, 3]


def test_turns_and_time_of_children_count_on_their_parent_once_they_have_ended() -> None:
    state = delegating(Limits(max_iterations=12, timeout_s=100), 2)
    state = foresee(state, [ended(state, 0, iterations=4, owned_s=30)], LATER)
    assert deadline(state) == NOW + timedelta(seconds=70)
    state = foresee(state, [ended(state, 1, iterations=4, owned_s=20)], LATER)
    assert deadline(state) == NOW + timedelta(seconds=50)
    # 9 of 12 turns are used, and 60 of 100 seconds: a later child gets of what is left.
    share = limits_of_child(state, "call_1_0", LATER)
    assert (share.max_iterations, share.timeout_s) == (2, 20.0)
    settled = settle(state, env(now=LATER))
    assert kinds(settled.events)[-1] == "model.requested"
    assert "40 of 100 seconds" in notes(settled.state)[0]
    over = settle(state, env(now=NOW + timedelta(seconds=51))).state
    assert over.error is not None
    assert over.error.error_code == "TIMEOUT"
    assert "the run and its children" in over.error.message


def test_a_run_whose_turns_are_used_up_by_its_children_ends_and_says_so() -> None:
    state = delegating(Limits(max_iterations=9), 2)
    state = foresee(state, [ended(state, 0, iterations=4)], LATER)
    assert settle(state, env(now=LATER)).state.error is None
    state = foresee(state, [ended(state, 1, iterations=4)], LATER)
    error = settle(state, env(now=LATER)).state.error
    assert error is not None
    assert error.error_code == "MAX_ITERATIONS"
    assert "the run and its children used 9 of 9 turns" in error.message


def test_a_last_turn_delegates_to_nobody_because_nobody_would_read_the_answer() -> None:
    state = asked(owned(Limits(max_iterations=1)))
    both = turn(1, calls=[call("delegate", 0, goal="a"), call("echo", 1, text="x")])
    state = foresee(state, [both], NOW)
    settled = settle(state, env())
    assert [type(activity) for activity in cast(Do, settled.then).activities] == [CallTool]
    state = foresee(state, [*settled.events, result("call_1_1")], NOW)
    error = settle(state, env()).state.error
    assert error is not None
    assert error.error_code == "MAX_ITERATIONS"
    assert "what it had delegated is stopped" in error.message


TOMORROW = NOW + timedelta(hours=12)


def test_a_run_whose_tenant_has_no_tokens_left_today_is_parked_between_its_turns_and_goes_on_tomorrow() -> (
    None
):
    parked = env()._replace(parked_until=TOMORROW)
    state = called(owned(), 1)
    settled = settle(state, parked)
    assert kinds(settled.events) == ["run.released"]
    assert (settled.state.status, settled.state.retry_at) == (RunStatus.RETRYING, rfc3339(TOMORROW))
    again = foresee(settled.state, [e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)], TOMORROW)
    assert kinds(settle(again, env(now=TOMORROW)).events) == ["model.requested"]


def test_a_run_that_is_parked_day_after_day_is_not_on_its_way_to_a_process_of_its_own() -> None:
    state = asked(owned())
    for day in range(1, 6):
        state = settle(state, env()._replace(parked_until=NOW + timedelta(days=day))).state
        assert state.status is RunStatus.RETRYING
        claim = e.RunClaimed(owner="y", boot="b2", epoch=day + 1, attempt=day + 1)
        state = foresee(state, [claim], NOW + timedelta(days=day))
        assert state.claims_without_progress == 1


def test_a_turn_that_is_under_way_is_not_thrown_away_and_an_answer_is_still_verified() -> None:
    parked = env(busy=True)._replace(parked_until=TOMORROW)
    state = asked(owned())
    assert settle(state, parked).then == Do((CallModel(1),))
    # Its owner died and the call with it: the next one does not begin it anew today.
    assert kinds(settle(state, parked._replace(busy=False)).events) == ["run.released"]
    answered = foresee(state, [turn(1, "done")], NOW)
    assert kinds(settle(answered, parked._replace(busy=False)).events) == ["verification.requested"]


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 400), st.integers(200, 4_000))
def test_whatever_the_limits_each_is_announced_at_most_once_and_at_least_a_turn_before_it_ends_the_run(
    iterations: int, per_turn: int, tokens: int
) -> None:
    usage = Usage(requests=1, input_tokens=per_turn, output_tokens=per_turn // 4)
    state = owned(Limits(max_iterations=iterations, max_total_tokens=tokens))
    told_at = list[int]()
    for number in range(1, iterations + 1):
        state = called(state, number, usage=usage)
        # `called` begins with what is decided before the turn.
        told_at += [number] * (len(notes(state)) - len(told_at))
        if settle(state, env()).state.terminal:
            break
    settled = settle(state, env()).state
    assert settled.error is not None
    assert settled.error.error_code in ("MAX_ITERATIONS", "BUDGET_EXCEEDED")
    assert len(notes(settled)) == len(settled.told) <= 2
    if settled.iteration > 1:
        assert told_at
        assert told_at[0] <= settled.iteration
