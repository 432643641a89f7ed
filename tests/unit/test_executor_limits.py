"""A run's limits in the loop: what the model is told before one ends, how each ends the run, and what children share."""

from datetime import datetime, timedelta

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
from services.executor.decision.activity import CallModel
from services.executor.decision.decide import Do, foresee, settle
from services.executor.tools.children import limits_of_child
from tests.unit.test_executor_decide import NOW, asked, call, env, kinds, owned, result, turn


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


def test_children_of_one_turn_share_what_is_left_of_the_budget() -> None:
    usage = Usage(requests=1, input_tokens=90, output_tokens=10, cost_usd=0.5)
    delegating = turn(1, calls=[call("delegate", n, goal=str(n)) for n in range(3)])
    state = foresee(
        asked(owned(Limits(max_total_tokens=1_000, max_cost_usd=2.0))),
        [msgspec.structs.replace(delegating, usage=usage)],
        NOW,
    )
    limits = limits_of_child(state)
    assert (limits.max_total_tokens, limits.max_cost_usd) == (300, 0.5)


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
