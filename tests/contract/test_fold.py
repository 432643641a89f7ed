"""The fold: its table is total, what the table forbids raises, and no legal history breaks an invariant of a run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import events as e
from libs.contracts import evolve as fold_module
from libs.contracts.envelope import Event, run_event_kinds
from libs.contracts.errors import IllegalTransition
from libs.contracts.events import EventBody, LogEvent
from libs.contracts.evolve import evolve, fold
from libs.contracts.run import LEGAL, OWNED, TERMINAL, WAITING, RunState, RunStatus
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import RunError, Usage
from tests.contract.strategies import structs

RUN = "run_0_" + "0" * 26
FIRST = e.RunCreated(
    tenant="local",
    task_id="task_0_" + "0" * 26,
    task=TaskSpec(goal="anything"),
    limits=Limits(),
    workspace=RUN,
    body_hash="0",
)
KINDS: list[type[LogEvent]] = sorted(run_event_kinds().values(), key=lambda kind: kind.type)
# What may still follow an end: markers of copies and the tombstone.
AFTER_THE_END = {e.RunForked, e.RunImported, e.RunDeleted}


def at(sequence: int, body: LogEvent) -> Event:
    return Event(sequence, RUN, f"2026-11-29T12:{sequence // 60 % 60:02d}:{sequence % 60:02d}.000Z", body)


def start() -> RunState:
    return evolve(None, at(1, FIRST))


def plausible(state: RunState, body: LogEvent) -> LogEvent:
    """An arbitrary body made to fit the state where the fold trusts its writer: epochs rise, times are times."""
    match body:
        case e.RunClaimed():
            return msgspec.structs.replace(body, epoch=state.epoch + 1)
        case e.RunReleased(reason="suspended"):
            return msgspec.structs.replace(body, waiting_for=body.waiting_for or "input")
        case e.ToolCompleted():
            return msgspec.structs.replace(body, metadata={})
        case _:
            return body


@st.composite
def legal_histories(draw: st.DrawFn) -> list[Event]:
    """A history that the table allows, up to 30 events long."""
    state = start()
    history = [at(1, FIRST)]
    for _ in range(draw(st.integers(0, 30))):
        kinds = [kind for kind in KINDS if kind is not e.RunCreated and state.status in LEGAL[kind]]
        body: Any = plausible(state, draw(structs(draw(st.sampled_from(kinds)))))
        history.append(at(state.sequence + 1, body))
        state = evolve(state, history[-1])
    return history


def test_every_kind_of_event_has_its_legal_statuses_and_its_fold() -> None:
    kinds = frozenset[type[EventBody]](run_event_kinds().values()) - {e.RunCreated}
    assert set(LEGAL) == kinds
    assert set(fold_module._FOLDS) == kinds  # pyright: ignore[reportPrivateUsage] the table is what is tested


def test_every_status_has_a_way_out_or_is_terminal() -> None:
    for status in RunStatus:
        ways = {kind for kind, statuses in LEGAL.items() if status in statuses}
        if status in TERMINAL:
            assert ways == AFTER_THE_END, status
        else:
            assert e.RunCancelled in ways, status
    assert set(RunStatus) == OWNED | WAITING | TERMINAL | {RunStatus.PENDING, RunStatus.QUEUED}


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind is not e.RunCreated], ids=lambda kind: kind.type
)
@settings(max_examples=10)
@given(data=st.data())
def test_an_event_the_table_forbids_raises(kind: type[LogEvent], data: st.DataObject) -> None:
    forbidden = sorted(set(RunStatus) - LEGAL[kind])
    if not forbidden:
        return
    state = msgspec.structs.replace(start(), status=data.draw(st.sampled_from(forbidden)))
    with pytest.raises(IllegalTransition, match=kind.type):
        evolve(state, at(2, data.draw(structs(kind))))


def test_a_log_begins_with_its_creation_and_is_created_once() -> None:
    with pytest.raises(IllegalTransition, match="begins with"):
        evolve(None, at(1, e.RunStartRequested(by="api")))
    with pytest.raises(IllegalTransition, match="begins with"):
        evolve(None, at(2, FIRST))
    with pytest.raises(IllegalTransition, match="created twice"):
        evolve(start(), at(2, FIRST))


def test_a_gap_and_a_repetition_raise() -> None:
    for sequence in (1, 3):
        with pytest.raises(IllegalTransition, match="gap"):
            evolve(start(), at(sequence, e.RunStartRequested(by="api")))


def test_a_claim_with_an_old_epoch_raises() -> None:
    state = fold(start(), [at(2, e.RunStartRequested(by="api"))])
    with pytest.raises(IllegalTransition, match="epoch 0 after 0"):
        evolve(state, at(3, e.RunClaimed(owner="a", boot="b", epoch=0, attempt=1)))


@settings(max_examples=60)
@given(legal_histories())
def test_the_fold_is_deterministic_and_folds_in_parts(history: list[Event]) -> None:
    whole = fold(None, history)
    assert fold(None, history) == whole
    middle = len(history) // 2
    assert fold(fold(None, history[:middle]), history[middle:]) == whole


@settings(max_examples=60)
@given(legal_histories())
def test_an_owner_stands_exactly_in_running_and_verifying_runs(history: list[Event]) -> None:
    state = None
    for event in history:
        state = evolve(state, event)
        assert (state.owner is not None) == (state.status in OWNED), event.body.type
        assert state.sequence == event.sequence
        assert state.last_event_at == event.at


@settings(max_examples=60)
@given(legal_histories())
def test_what_a_run_spent_never_shrinks(history: list[Event]) -> None:
    state, before = None, None
    for event in history:
        state = evolve(state, event)
        if before is not None:
            assert state.epoch >= before.epoch
            # What another run spent is no part of what its fork does.
            assert state.owned_ms >= before.owned_ms or isinstance(event.body, e.RunForked)
        before = state


@settings(max_examples=60)
@given(legal_histories())
def test_a_state_survives_its_checkpoint(history: list[Event]) -> None:
    state = fold(None, history)
    assert msgspec.json.decode(msgspec.json.encode(state), type=RunState) == state


def test_a_drained_owner_does_not_count_against_the_run() -> None:
    state = fold(start(), [at(2, e.RunStartRequested(by="api"))])
    assert state is not None
    for epoch in range(1, 6):
        claim = e.RunClaimed(owner="a", boot="b", epoch=epoch, attempt=epoch)
        state = evolve(state, at(state.sequence + 1, claim))
        state = evolve(state, at(state.sequence + 1, e.RunReleased(reason="shutdown")))
    assert (state.status, state.claims_without_progress) == (RunStatus.QUEUED, 0)


def test_a_provider_that_stays_away_does_not_make_a_run_look_like_poison() -> None:
    state = fold(start(), [at(2, e.RunStartRequested(by="api"))])
    assert state is not None
    for epoch in range(1, 6):
        failed = e.ModelFailed(
            iteration=1,
            error_code="MODEL_ERROR",
            message="away",
            attempt=8,
            retry_at="2026-11-29T13:00:00.000Z",
        )
        released = e.RunReleased(reason="failure", retry_at="2026-11-29T13:00:00.000Z")
        for body in (e.RunClaimed(owner="a", boot="b", epoch=epoch, attempt=epoch), failed, released):
            state = evolve(state, at(state.sequence + 1, body))
    assert (state.status, state.model_failures, state.claims_without_progress) == (RunStatus.RETRYING, 5, 0)


def test_an_end_keeps_what_the_run_spent_and_its_verdict() -> None:
    used = Usage(requests=3, input_tokens=10, output_tokens=5, cost_usd=None)
    cancelled = fold(start(), [at(2, e.RunCancelled(by="api", usage=used))])
    failed = fold(start(), [at(2, e.RunFailed(error=RunError(error_code="X", message="x"), usage=used))])
    assert cancelled is not None
    assert failed is not None
    assert (cancelled.usage, cancelled.status) == (used, RunStatus.CANCELLED)
    assert (failed.usage, failed.status) == (used, RunStatus.FAILED)
