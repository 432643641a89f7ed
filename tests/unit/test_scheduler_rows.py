"""Rows: what a record tells of its run, and that every index follows from the rows, whatever happened in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.bus.ports import LogKey, Wakeup
from libs.contracts import events as e
from libs.contracts.envelope import Event, Record, RecordHeader, encode_record
from libs.contracts.ids import derived_run_id
from libs.contracts.run import RunStatus
from libs.contracts.tasks import Limits, TaskSpec
from services.scheduler.projects.rows import ProjectRows
from services.scheduler.row import Deadline, Origin, Row, advanced
from services.scheduler.rows import Rows

DUE = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
S = RunStatus


def key(name: str, tenant: str = "t") -> LogKey:
    return LogKey(tenant, derived_run_id(1, tenant, name))


def row(name: str, status: RunStatus = S.QUEUED, since: float = 0.0, tenant: str = "t") -> Row:
    return Row(key=key(name, tenant), sequence=1, status=status, epoch=0, since=since, priority="normal")


def wakeup(
    status: RunStatus, *bodies: e.LogEvent, sequence: int = 5, first: int = 1, epoch: int = 0
) -> Wakeup:
    run = key("x")
    batch = [
        Event(first + index, run.log_id, "2026-11-29T12:00:00.000Z", body)
        for index, body in enumerate(bodies)
    ]
    header = RecordHeader(sequence, 0, "m", "life", epoch, "b-writer", first, len(batch), status)
    return Wakeup(run, sequence, status, Record(header, *run, encode_record(batch)))


def created(**task: str) -> e.RunCreated:
    spec = TaskSpec(goal="x", priority="high" if task.get("priority") == "high" else "normal")
    return e.RunCreated(
        tenant="t",
        task_id="t",
        task=spec,
        limits=Limits(),
        workspace="w",
        body_hash="0",
        parent=None,
        source="api",
    )


def waiting(rows: Rows) -> dict[str, list[str]]:
    """The run ids in each lane, over all tenants."""
    found: dict[str, list[str]] = {}
    for demand in rows.demands().values():
        for lane, runs in demand.lanes.items():
            found.setdefault(lane, []).extend(run.run_id for run in runs)
    return found


# --- What a record tells ---


def test_a_fresh_run_is_known_completely_from_its_first_record() -> None:
    fresh = advanced(
        None, wakeup(S.QUEUED, created(priority="high"), e.RunStartRequested(by="api")), S.QUEUED, 7.0
    )
    assert (fresh.priority, fresh.status, fresh.since, fresh.sequence) == ("high", S.QUEUED, 7.0, 5)
    assert fresh.complete(orphaned=False)


def test_a_claim_names_the_owner_and_takes_the_ticket_away() -> None:
    queued = row("x")._replace(ticketed_at=3.0, tickets=1)
    claim = e.RunClaimed(owner="a", boot="b1", epoch=1, attempt=1)
    owned = advanced(queued, wakeup(S.RUNNING, claim, epoch=1, first=3), S.RUNNING, 9.0)
    assert (owned.owner, owned.epoch, owned.ticketed_at, owned.tickets) == ("b1", 1, None, 0)
    assert owned.priority == "normal"


def test_a_command_to_an_owned_run_keeps_its_owner() -> None:
    owned = row("x", S.RUNNING)._replace(owner="b1", epoch=1)
    pause = wakeup(S.RUNNING, e.RunPauseRequested(by="api"), epoch=1, first=9)
    assert advanced(owned, pause, S.RUNNING, 9.0).owner == "b1"


def test_a_command_over_a_missed_claim_leaves_the_owner_to_be_read() -> None:
    owned = row("x", S.RUNNING)._replace(owner="b1", epoch=1)
    pause = wakeup(S.RUNNING, e.RunPauseRequested(by="api"), epoch=2, first=9)
    after = advanced(owned, pause, S.RUNNING, 9.0)
    assert after.owner is None
    assert not after.complete(orphaned=False)


def test_a_reply_puts_the_run_at_the_end_of_the_line() -> None:
    suspended = row("x", S.WAITING_FOR_INPUT, since=1.0)
    reply = e.InputReceived(question_id="q", kind="question", answer="a", by="api")
    assert advanced(suspended, wakeup(S.QUEUED, reply, first=9), S.QUEUED, 9.0).since == 9.0


def test_a_command_to_a_queued_run_keeps_its_place_and_its_ticket() -> None:
    queued = row("x", since=1.0)._replace(ticketed_at=3.0, tickets=1)
    child = e.ChildFinished(call_id="c", child_run_id="r", status="COMPLETED", answer="")
    after = advanced(queued, wakeup(S.QUEUED, child, first=9), S.QUEUED, 9.0)
    assert (after.since, after.ticketed_at, after.sequence) == (1.0, 3.0, 5)


@pytest.mark.parametrize("retry_at", ["2026-11-29T12:00:00.000Z", None])
def test_a_failure_names_its_retry_time_or_means_at_once(retry_at: str | None) -> None:
    owned = row("x", S.RUNNING)._replace(owner="b1", epoch=1)
    release = e.RunReleased(reason="failure", retry_at=retry_at)
    after = advanced(owned, wakeup(S.RETRYING, release, epoch=1, first=9), S.RETRYING, 9.0)
    assert after.complete(orphaned=False)
    rows = Rows()
    rows.put(after)
    assert waiting(rows) == {}
    assert rows.fall_due(DUE - timedelta(seconds=1)) == (0 if retry_at else 1)
    assert rows.fall_due(DUE) == (1 if retry_at else 0)
    assert waiting(rows) == {"normal": [after.run_id]}


def test_a_record_of_a_later_version_leaves_the_run_to_be_read() -> None:
    strange = wakeup(S.QUEUED, e.RunStartRequested(by="api"))
    assert strange.record is not None
    body = strange.record.body.replace(b"run.start_requested", b"run.start_dreamt_of")
    after = advanced(None, strange._replace(record=strange.record._replace(body=body)), S.QUEUED, 1.0)
    assert not after.complete(orphaned=False)


def asks(name: str) -> e.InputRequested:
    return e.InputRequested(question_id=name, kind="question", question="?", call_id=name)


SUSPENDS = e.RunReleased(reason="suspended", waiting_for="input")


@pytest.mark.parametrize("timeout_s", [None, 60.0, 1e300])
def test_a_question_names_its_deadline_if_the_run_is_not_patient(timeout_s: float | None) -> None:
    owned = row("x", S.RUNNING)._replace(owner="b1", epoch=1, origin=Origin(None, timeout_s))
    after = advanced(
        owned, wakeup(S.WAITING_FOR_INPUT, SUSPENDS, asks("q"), epoch=1, first=9), S.WAITING_FOR_INPUT, 9.0
    )
    assert (after.waiting_since, after.known) == (10, True)
    if timeout_s is None:
        assert after.deadline is None
    else:
        assert after.deadline is not None
        assert (after.deadline.sequence, after.deadline.at >= DUE + timedelta(seconds=60)) == (10, True)


def test_a_deadline_outlives_what_does_not_end_the_wait_and_nothing_else() -> None:
    waiting = row("x", S.WAITING_FOR_INPUT)._replace(waiting_since=10, due_at=DUE, epoch=1)
    pause = wakeup(S.WAITING_FOR_INPUT, e.RunPauseRequested(by="api"), epoch=1, first=11)
    assert advanced(waiting, pause, S.WAITING_FOR_INPUT, 9.0).deadline == Deadline(10, DUE)
    reply = e.InputReceived(question_id="q", kind="question", answer="a", by="api")
    assert advanced(waiting, wakeup(S.QUEUED, reply, epoch=1, first=11), S.QUEUED, 9.0).deadline is None
    missed = wakeup(S.WAITING_FOR_INPUT, e.RunPauseRequested(by="api"), epoch=2, first=30)
    after = advanced(waiting, missed, S.WAITING_FOR_INPUT, 9.0)
    assert (after.deadline, after.known) == (None, False)


def test_a_question_of_a_run_that_nobody_has_read_has_no_deadline_yet() -> None:
    after = advanced(
        None, wakeup(S.WAITING_FOR_INPUT, SUSPENDS, asks("q"), epoch=1, first=9), S.WAITING_FOR_INPUT, 9.0
    )
    assert (after.waiting_since, after.deadline, after.known) == (10, None, False)
    # No decision depends on it, so it is read when there is time.
    assert after.complete(orphaned=False)


@pytest.mark.parametrize("body", [e.RunForked, e.RunImported])
@pytest.mark.parametrize("status", [S.QUEUED, S.PAUSED, S.WAITING_FOR_INPUT])
def test_a_copied_run_is_read_before_anything_is_decided_about_it(
    body: type[e.RunForked | e.RunImported], status: RunStatus
) -> None:
    marker = body(source_run_id="run_0_x", sequence=40)
    after = advanced(None, wakeup(status, marker, first=41, epoch=3), status, 9.0)
    assert (after.parent, after.known, after.owner) == (None, False, None)
    assert after.complete(orphaned=False) == (status is not S.QUEUED)


# --- Lanes, tickets and deaths ---


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {S.QUEUED, S.COMPLETED, S.FAILED, S.CANCELLED}))
def test_only_queued_runs_stand_in_a_lane(status: RunStatus) -> None:
    rows = Rows()
    rows.put(row("x", status)._replace(owner="b1", due_at=DUE))
    assert waiting(rows) == {}


def test_a_ticketed_run_waits_no_longer_and_counts_until_it_is_late() -> None:
    rows = Rows()
    rows.put(row("x"))
    rows.ticket(key("x").log_id, 10.0)
    assert (waiting(rows), rows.occupied(set())) == ({}, 1)
    assert rows.expire(10.0) == 0
    assert rows.expire(10.5) == 1
    assert (waiting(rows), rows.occupied(set())) == ({}, 0)
    rows.unticket(key("x").log_id)
    assert waiting(rows) == {"normal": [key("x").log_id]}


def test_a_run_whose_ticket_was_lost_stands_where_it_stood() -> None:
    rows = Rows()
    for name, since in (("x", 1.0), ("y", 2.0), ("z", 3.0)):
        rows.put(row(name, since=since))
    rows.ticket(key("x").log_id, 10.0)
    rows.unticket(key("x").log_id)
    assert waiting(rows) == {"normal": [key(name).log_id for name in "xyz"]}


def test_a_death_orphans_the_runs_of_the_boot_and_frees_its_slots() -> None:
    rows = Rows()
    rows.put(row("x", S.RUNNING)._replace(owner="b1"))
    rows.put(row("y", S.VERIFYING)._replace(owner="b2"))
    rows.put(row("z", S.RUNNING)._replace(owner=None))
    assert rows.occupied({"b1", "b2"}) == 3
    assert [orphan.run_id for orphan in rows.bury("b1")] == [key("x").log_id]
    assert waiting(rows) == {"orphaned": [key("x").log_id]}
    assert (rows.occupied({"b2"}), rows.owners()) == (2, {"b2"})
    rows.exhume("b1")
    assert (waiting(rows), rows.owners()) == ({}, {"b1", "b2"})


def child_of(name: str, parent: str, status: RunStatus = S.QUEUED) -> Row:
    return row(name, status)._replace(origin=Origin(key(parent).log_id, None))


def test_children_are_counted_and_found_beside_the_runs_that_people_started() -> None:
    rows = Rows()
    rows.put(row("p", S.RUNNING)._replace(owner="b1"))
    rows.put(child_of("c", "p", S.RUNNING)._replace(owner="b1"))
    rows.put(child_of("d", "p"))
    demand = rows.demands()["t"]
    assert (demand.active, demand.children, list(demand.lanes)) == (1, 1, [])
    assert [run.run_id for run in demand.children_lanes["normal"]] == [key("d").log_id]
    assert {child.run_id for child in rows.children_of(key("p").log_id)} == {
        key("c").log_id,
        key("d").log_id,
    }
    rows.drop(key("c").log_id)
    rows.drop(key("p").log_id)
    assert [child.run_id for child in rows.children_of(key("p").log_id)] == [key("d").log_id]


@pytest.mark.parametrize("sequence, due", [(7, True), (6, False)])
def test_a_timer_moves_only_the_wait_that_it_was_set_for(sequence: int, due: bool) -> None:
    rows = Rows()
    rows.put(row("x", S.RETRYING)._replace(waiting_since=7, due_at=DUE))
    rows.fire(key("x").log_id, sequence)
    assert waiting(rows) == ({"normal": [key("x").log_id]} if due else {})
    rows.fire(key("y").log_id, 7)


def test_an_orphan_of_unread_priority_waits_until_it_is_read() -> None:
    rows = Rows()
    orphan = row("x", S.RUNNING)._replace(owner="b1", priority=None)
    rows.put(orphan)
    assert orphan.complete(orphaned=False)
    rows.bury("b1")
    assert waiting(rows) == {}
    assert not orphan.complete(orphaned=True)


NAMES = st.sampled_from("abcdefgh")
BOOTS = st.sampled_from(["b1", "b2", None])
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.sampled_from(sorted(RunStatus)), BOOTS, st.floats(0, 99)),
    st.tuples(st.just("drop"), NAMES),
    st.tuples(st.just("ticket"), NAMES, st.floats(0, 99)),
    st.tuples(st.just("unticket"), NAMES),
    st.tuples(st.just("expire"), st.floats(0, 99)),
    st.tuples(st.just("bury"), st.sampled_from(["b1", "b2"])),
    st.tuples(st.just("exhume"), st.sampled_from(["b1", "b2"])),
    st.tuples(st.just("due")),
    st.tuples(st.just("child"), NAMES, NAMES),
)


@given(st.lists(STEPS, max_size=40))
def test_the_indexes_are_those_of_freshly_made_rows_whatever_happened(
    steps: list[tuple[object, ...]],
) -> None:
    rows, dead = Rows(), set[str]()
    for step in steps:
        _do(rows, dead, step)
    fresh = Rows()
    for boot in dead:
        fresh.bury(boot)
    for each in rows:
        fresh.put(each)
    assert {lane: set(runs) for lane, runs in waiting(rows).items()} == {
        lane: set(runs) for lane, runs in waiting(fresh).items()
    }
    for demand in rows.demands().values():
        for runs in demand.lanes.values():
            since = [run.since for run in runs]
            assert since == sorted(since)
    assert {t: demand.active for t, demand in rows.demands().items()} == {
        t: demand.active for t, demand in fresh.demands().items()
    }
    assert {t: demand.children for t, demand in rows.demands().items()} == {
        t: demand.children for t, demand in fresh.demands().items()
    }
    for name in "abcdefgh":
        assert rows.children_of(key(name).log_id) == fresh.children_of(key(name).log_id)
    assert rows.owners() == fresh.owners()
    assert rows.occupied({"b1", "b2"}) == fresh.occupied({"b1", "b2"})


def _do(rows: Rows, dead: set[str], step: tuple[object, ...]) -> None:
    match step:
        case ("put", str(name), RunStatus() as status, owner, float(since)):
            owner = owner if isinstance(owner, str) else None
            rows.put(row(name, status, since)._replace(owner=owner, due_at=DUE))
        case ("child", str(name), str(parent)):
            rows.put(child_of(name, parent))
        case ("drop", str(name)):
            rows.drop(key(name).log_id)
        case ("ticket", str(name), float(at)):
            if key(name).log_id in [run_id for runs in waiting(rows).values() for run_id in runs]:
                rows.ticket(key(name).log_id, at)
        case ("unticket", str(name)):
            rows.unticket(key(name).log_id)
        case ("expire", float(before)):
            rows.expire(before)
        case ("bury", str(boot)):
            dead.add(boot)
            rows.bury(boot)
        case ("exhume", str(boot)):
            dead.discard(boot)
            rows.exhume(boot)
        case _:
            rows.fall_due(DUE)


def test_a_record_of_a_project_is_news_once_and_to_its_own_writer_never() -> None:
    project = LogKey("t", "project_0_a")
    folded = {project: 7}
    rows = ProjectRows(lambda key: folded.get(key, 0))
    assert not rows.note(Wakeup(project, 7, "ACTIVE"))
    assert rows.note(Wakeup(project, 9, "ACTIVE")), "somebody else's"
    assert not rows.note(Wakeup(project, 9, "ACTIVE"))
    assert rows.next(5) == [project], "the sweep comes back to it all the same"
    assert not rows.note(Wakeup(project, 12, "COMPLETED"))
    assert rows.next(5) == []
