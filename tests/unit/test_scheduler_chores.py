"""Chores: what a change asks for, what becomes of it, and what each decides about a folded run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from libs.bus.ports import LogKey, Wakeup
from libs.contracts import events as e
from libs.contracts.cancelling import cancelled
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event, Record, RecordHeader, encode_record
from libs.contracts.evolve import evolve
from libs.contracts.ids import child_run_id, derived_run_id
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Limits, Parent, TaskSpec
from libs.contracts.tools import Semantics
from libs.contracts.values import RunError, Usage
from services.scheduler.chores import (
    Arm,
    Finish,
    Halt,
    Purge,
    Recall,
    Report,
    ended,
    halted,
    moved,
    unfinished,
)
from services.scheduler.deadlines import timed_out
from services.scheduler.family import finished, unheard
from services.scheduler.row import Deadline, Origin, Row, delegated_by
from tests.fakes.histories import RUN_ID, created

S = RunStatus
AT = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
RUN = LogKey("local", RUN_ID)
CHILD = child_run_id(RUN_ID, "c1")
DELEGATES = e.ToolRequested(
    call_id="c1", name="delegate", arguments={}, semantics=Semantics.IDEMPOTENT, idempotency_key="k"
)
START, CLAIM = e.RunStartRequested(by="x"), e.RunClaimed(owner="r", boot="b1", epoch=1, attempt=1)
CANCEL = (e.RunCancelRequested(by="x"), e.RunCancelled(by="x", usage=Usage()))


def folded(*bodies: e.LogEvent, limits: Limits | None = None) -> RunState:
    """A run after these events."""
    state = created(limits or Limits(), TaskSpec(goal="x"))
    for body in bodies:
        state = evolve(state, Event(state.sequence + 1, state.run_id, rfc3339(AT), body))
    return state


def row(origin: Origin | None = None) -> Row:
    return Row(key=RUN, sequence=1, status=S.RUNNING, epoch=1, since=0.0, origin=origin)


# --- What a change asks for ---


@pytest.mark.parametrize(
    "writer, body, status, asked",
    [
        ("gateway", CANCEL[0], S.RUNNING, [Halt(RUN, 1)]),
        ("gateway", CANCEL[1], S.CANCELLED, [Halt(RUN, 1)]),
        ("b1", CANCEL[1], S.CANCELLED, []),
        ("gateway", e.RunPauseRequested(by="x"), S.RUNNING, []),
    ],
    ids=["asked to cancel", "ended by another", "ended by its owner", "goes on"],
)
def test_the_hosts_are_told_of_an_end_that_is_not_the_word_of_the_owner(
    writer: str, body: e.LogEvent, status: RunStatus, asked: list[Halt]
) -> None:
    event = Event(4, RUN_ID, rfc3339(AT), body)
    header = RecordHeader(9, 8, "m", "life", 1, writer, 4, 1, status)
    wakeup = Wakeup(RUN, 9, status, Record(header, *RUN, encode_record([event])))
    owned = row()._replace(owner="b1")
    assert halted(owned, wakeup, status) == asked
    # What a former owner left behind that gave the run back is nobody's to stop by itself.
    for given_back in (S.QUEUED, S.RETRYING):
        left = row()._replace(status=given_back)
        assert halted(left, wakeup, status) == ([Halt(RUN, 1)] if body in CANCEL else [])
        assert halted(left._replace(epoch=0), wakeup, status) == []
    # One that waits runs nothing, and of one that is unknown nobody knows better than its hosts.
    assert halted(owned._replace(status=S.PAUSED), wakeup, status) == halted(None, wakeup, status) == []


def test_a_run_that_is_to_end_is_ended_for_its_owner_once_that_is_dead() -> None:
    asked = row()._replace(owner="b1", cancelling=True)
    assert unfinished(asked, orphaned=True) == [Finish(RUN)]
    assert unfinished(asked, orphaned=False) == unfinished(row(), orphaned=True) == []


@pytest.mark.parametrize(
    "origin, reported",
    [(None, True), (Origin("run_0_x", None), True), (Origin(None, None), False)],
)
def test_an_end_is_reported_unless_the_run_is_known_to_have_no_parent(
    origin: Origin | None, reported: bool
) -> None:
    assert ended(RUN, row(origin), []) == ([Report(RUN)] if reported else [])


def test_an_end_that_nobody_knows_the_beginning_of_asks_for_nothing() -> None:
    assert ended(RUN, None, []) == []


def test_an_end_calls_the_children_back_and_a_deletion_purges() -> None:
    child = row()._replace(key=LogKey("local", CHILD))
    assert ended(RUN, None, [child], tombstone=9) == [Recall(child.key, RUN), Purge(RUN, 9)]


def test_a_deadline_is_armed_once() -> None:
    waiting = row()._replace(status=S.WAITING_FOR_INPUT, waiting_since=7, due_at=AT)
    assert moved(row(), waiting) == moved(None, waiting) == [Arm(RUN, 7, AT)]
    assert moved(waiting, waiting._replace(sequence=2)) == []
    assert moved(waiting, row()) == []
    assert waiting.deadline == Deadline(7, AT)


def test_a_child_has_the_id_that_its_parents_call_gives_it() -> None:
    parent = Parent(run_id=RUN_ID, call_id="c1", depth=1)
    assert delegated_by(CHILD, parent) == RUN_ID
    assert delegated_by(derived_run_id(1, "a copy of it"), parent) is None
    assert delegated_by(CHILD, Parent(run_id="nonsense", call_id="c1", depth=1)) is None
    assert delegated_by(CHILD, None) is None


# --- What each decides ---


@pytest.mark.parametrize(
    "bodies, status, answer",
    [
        (
            (
                START,
                CLAIM,
                e.RunCompleted(
                    answer="42",
                    verification=e.Verification(status=e.Verdict.UNVERIFIED, round=1),
                    usage=Usage(),
                ),
            ),
            "COMPLETED",
            "42",
        ),
        (
            (e.RunFailed(error=RunError(error_code="STUCK", message="in circles"), usage=Usage()),),
            "FAILED",
            "STUCK: in circles",
        ),
        (CANCEL, "CANCELLED", "it was cancelled by x"),
        ((e.RunCancelled(by="x", usage=Usage()),), "CANCELLED", "it was cancelled by somebody"),
    ],
)
def test_how_a_child_ended_as_its_parent_reads_it(
    bodies: tuple[e.LogEvent, ...], status: str, answer: str
) -> None:
    end = finished("c1", folded(*bodies))
    assert (end.call_id, end.child_run_id, end.status, end.answer) == ("c1", RUN_ID, status, answer)


def end_of(child: str, call_id: str = "c1") -> e.ChildFinished:
    return e.ChildFinished(call_id=call_id, child_run_id=child, status="COMPLETED", answer="")


def test_a_parent_hears_once_of_each_of_its_calls_and_of_no_other() -> None:
    parent = folded(START, CLAIM, DELEGATES)
    assert unheard(parent, [end_of(CHILD)]) == [end_of(CHILD)]
    assert unheard(parent, [end_of(derived_run_id(1, "another"))]) == []
    assert unheard(parent, [end_of(CHILD, "c2")]) == []
    assert unheard(folded(START, CLAIM, DELEGATES, end_of(CHILD)), [end_of(CHILD)]) == []
    assert unheard(folded(START, CLAIM, DELEGATES, *CANCEL), [end_of(CHILD)]) == []


@pytest.mark.parametrize(
    "bodies, dead, expected",
    [
        ((), None, ["run.cancel_requested", "run.cancelled"]),
        ((START,), None, ["run.cancel_requested", "run.cancelled"]),
        ((START, CLAIM), None, ["run.cancel_requested"]),
        ((START, CLAIM), "b1", ["run.cancel_requested", "run.cancelled"]),
        ((START, CLAIM), "b0", ["run.cancel_requested"]),
        ((START, CLAIM, CANCEL[0]), None, []),
        ((START, CLAIM, CANCEL[0]), "b1", ["run.cancelled"]),
        (CANCEL, None, []),
    ],
)
def test_whoever_owns_a_run_ends_it_and_nobody_else_if_somebody_does(
    bodies: tuple[e.LogEvent, ...], dead: str | None, expected: list[str]
) -> None:
    assert [
        body.type for body in cancelled(folded(*bodies), "parent", owner_is_dead=dead == "b1")
    ] == expected


def test_a_time_out_ends_only_the_wait_that_it_was_set_for() -> None:
    asks = e.InputRequested(question_id="q", kind="approval", question="?", call_id="c")
    release = e.RunReleased(reason="suspended", waiting_for="input")
    waiting = folded(START, CLAIM, release, asks, limits=Limits(input_timeout_s=60))
    (end,) = timed_out(waiting, 5)
    assert isinstance(end, e.RunFailed)
    assert end.error.error_code == "INPUT_TIMEOUT"
    assert "q within 60 s" in end.error.message
    assert timed_out(waiting, 4) == []
    reply = e.InputReceived(question_id="q", kind="approval", answer="", by="x", decision="approve")
    answered = folded(START, CLAIM, release, asks, reply)
    assert timed_out(answered, 5) == []
