"""What follows for a schedule: each time once, whatever the clock does and however long nobody was there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import schedule_events as s
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.envelope import Event
from libs.contracts.ids import scheduled_run_id
from libs.contracts.schedule import ScheduleState, evolve_schedule
from libs.contracts.schedules import HELD_MAX, Overlap, ScheduleSpec, ScheduleStatus, first_time
from libs.contracts.tasks import TaskSpec
from services.scheduler.schedules.decide import Env, decide, wants_to_know

SCHEDULE = "schedule_0_" + "0" * 26
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Story:
    """A schedule as a simulated clock goes on. `now` may be set to anything."""

    def __init__(self, cron: str = "*/10 * * * *", overlap: Overlap = "skip", zone: str = "UTC") -> None:
        self.now = NOON
        self.live: set[str] = set()
        self.events: list[s.ScheduleEvent] = []
        self.spec = ScheduleSpec(
            name="n", cron=cron, task=TaskSpec(goal="g"), task_hash="h", overlap=overlap, timezone=zone
        )
        self.state: ScheduleState
        self.fold(
            s.ScheduleCreated(
                tenant="t", spec=self.spec, body_hash="b", by="me", next_at=first_time(self.spec, self.now)
            )
        )

    def fold(self, body: s.ScheduleEvent) -> None:
        sequence = len(self.events) + 1
        before = self.state if self.events else None
        self.state = evolve_schedule(before, Event(sequence, SCHEDULE, rfc3339(self.now), body))
        self.events.append(body)

    def settle(self) -> Sequence[s.ScheduleEvent]:
        """Decide until nothing follows; what was decided. Runs that are made go on until somebody ends them."""
        known = len(self.events)
        while (event := decide(self.state, Env(self.now, frozenset(self.live)))) is not None:
            assert len(self.events) - known < 300, "a decision changes what it was made for"
            self.fold(event)
            if isinstance(event, s.ScheduleFired):
                self.live.add(event.run_id)
        return self.events[known:]

    def at(self, minutes: float) -> Sequence[s.ScheduleEvent]:
        """The clock shows so many minutes after noon."""
        self.now = NOON + timedelta(minutes=minutes)
        return self.settle()

    @property
    def fired(self) -> list[str]:
        return [body.run_id for body in self.events if isinstance(body, s.ScheduleFired)]


def shown(event: s.ScheduleEvent) -> tuple[str, str]:
    assert isinstance(event, s.ScheduleFired | s.ScheduleHeld | s.ScheduleSkipped)
    return event.type.removeprefix("schedule."), event.due_at[11:16]


def test_a_time_has_one_run_whose_id_derives_from_it() -> None:
    story = Story()
    assert list(story.at(9.99)) == []
    (fired,) = story.at(10)
    assert shown(fired) == ("fired", "12:10")
    assert story.fired == [scheduled_run_id(SCHEDULE, "2026-11-30T12:10:00.000Z")]
    assert list(story.at(10.5)) == []
    assert story.state.next_at == "2026-11-30T12:20:00.000Z"


def test_times_that_nobody_saw_have_one_run_and_are_counted() -> None:
    story = Story()
    (fired,) = story.at(55)
    assert shown(fired) == ("fired", "12:10")
    assert (story.state.fires, story.state.missed) == (1, 4)
    assert story.state.next_at == "2026-11-30T13:00:00.000Z"
    # A month of nothing is no more work than an hour of it.
    story.live.clear()
    story.at(60 * 24 * 30)
    assert (story.state.fires, story.state.missed) == (2, 104)


def test_a_time_passes_while_an_earlier_run_goes_on() -> None:
    story = Story(overlap="skip")
    story.at(10)
    (skipped,) = story.at(20)
    assert shown(skipped) == ("skipped", "12:20")
    story.live.clear()
    assert [shown(event) for event in story.at(30)] == [("fired", "12:30")]
    assert (story.state.fires, story.state.skipped) == (2, 1)


def test_a_time_waits_for_the_end_of_the_run_before_it() -> None:
    story = Story(overlap="queue")
    story.at(10)
    assert [shown(event) for event in story.at(20)] == [("held", "12:20")]
    assert [shown(event) for event in story.at(30)] == [("held", "12:30")]
    assert story.state.status is ScheduleStatus.HOLDING
    story.live.clear()
    assert [shown(event) for event in story.at(31)] == [("fired", "12:20")]
    story.live.clear()
    assert [shown(event) for event in story.at(32)] == [("fired", "12:30")]
    assert story.state.status is ScheduleStatus.ACTIVE
    assert len(set(story.fired)) == 3


def test_not_more_times_wait_than_ever_will_be_done() -> None:
    story = Story(overlap="queue")
    for tens in range(1, HELD_MAX + 4):
        story.at(10 * tens)
    assert len(story.state.held) == HELD_MAX
    assert story.state.skipped == 2
    story.fold(s.ScheduleChanged(spec=msgspec.structs.replace(story.spec, enabled=False), by="me"))
    assert (story.state.held, story.state.status) == ([], ScheduleStatus.PAUSED)


def test_runs_overlap_when_that_is_wanted() -> None:
    story = Story(overlap="allow")
    for tens in range(1, 31):
        story.at(10 * tens)
    assert len(set(story.fired)) == 30
    assert wants_to_know(story.state, story.now) == []
    assert len(story.state.going) < 30, "what grows with the schedule's age is no state"


def test_a_person_fires_whatever_goes_on_and_the_times_stay_as_they_are() -> None:
    story = Story()
    story.at(10)
    story.now = NOON + timedelta(minutes=12)
    story.fold(s.ScheduleFireRequested(run_id="run_asked", by="me", next_at=story.state.next_at))
    assert story.state.status is ScheduleStatus.HOLDING
    (fired,) = story.settle()
    assert isinstance(fired, s.ScheduleFired)
    assert (fired.run_id, fired.next_at) == ("run_asked", "2026-11-30T12:20:00.000Z")
    assert story.state.asked == []
    assert [shown(event) for event in story.at(20)] == [("skipped", "12:20")], "both runs go on"


def test_a_paused_schedule_has_no_times_and_misses_none() -> None:
    story = Story()
    story.fold(s.ScheduleChanged(spec=msgspec.structs.replace(story.spec, enabled=False), by="me"))
    assert list(story.at(1000)) == []
    story.fold(s.ScheduleChanged(spec=story.spec, by="me", next_at=first_time(story.spec, story.now)))
    assert story.state.next_at == "2026-12-01T04:50:00.000Z"
    story.at(1010)
    assert (story.state.fires, story.state.missed) == (1, 0)


def test_a_clock_that_was_years_ahead_and_is_right_again_does_not_silence_a_schedule() -> None:
    story = Story()
    story.at(10)
    story.live.clear()
    story.at(60 * 24 * 365 * 4)
    story.live.clear()
    assert story.state.next_at is not None
    assert story.state.next_at > "2030"
    assert [event.type for event in story.at(11)] == ["schedule.retimed"]
    # 12:20 came early, while the clock was wrong; it does not come again.
    assert story.state.next_at == "2026-11-30T12:30:00.000Z"
    assert [shown(event) for event in story.at(30)] == [("fired", "12:30")]
    assert len(set(story.fired)) == len(story.fired) == 3


def test_a_clock_that_lags_a_little_behind_another_changes_nothing() -> None:
    story = Story()
    story.at(10.5)
    assert list(story.at(9.8)) == []


def test_a_time_that_exists_twice_or_not_at_all_has_one_run() -> None:
    story = Story("30 2 * * *", zone="Europe/Berlin")
    story.now = datetime(2027, 3, 27, 12, tzinfo=UTC)
    story.fold(s.ScheduleChanged(spec=story.spec, by="me", next_at=first_time(story.spec, story.now)))
    for minutes in range(0, 60 * 36, 10):
        story.now = datetime(2027, 3, 27, 12, tzinfo=UTC) + timedelta(minutes=minutes)
        story.settle()
        story.live.clear()
    assert len(story.fired) == 1
    story.now = datetime(2027, 10, 30, 12, tzinfo=UTC)
    story.fold(s.ScheduleChanged(spec=story.spec, by="me", next_at=first_time(story.spec, story.now)))
    for minutes in range(0, 60 * 24, 10):
        story.now = datetime(2027, 10, 30, 12, tzinfo=UTC) + timedelta(minutes=minutes)
        story.settle()
        story.live.clear()
    assert len(story.fired) == 2


MOVES = st.one_of(
    st.tuples(st.just("clock"), st.integers(-3000, 6000)),
    st.tuples(st.just("end"), st.integers(0, 20)),
    st.tuples(st.just("ask"), st.integers(0, 10**6)),
    st.tuples(st.just("switch"), st.integers(0, 2)),
)


@given(st.lists(MOVES, max_size=40), st.sampled_from(["skip", "queue", "allow"]))
def test_no_time_has_two_runs_and_no_two_runs_overlap_unless_told(
    moves: list[tuple[str, int]], overlap: Overlap
) -> None:
    story = Story("*/5 * * * *", overlap)
    asked: set[str] = set()
    policies: list[Overlap] = ["skip", "queue", "allow"]
    for move, number in moves:
        before = len(story.live)
        match move:
            case "clock":
                story.now += timedelta(seconds=number)
            case "end" if story.live:
                story.live.remove(sorted(story.live)[number % len(story.live)])
                before -= 1
            case "ask":
                asked.add(f"run_{number}")
                if f"run_{number}" not in story.fired:
                    story.fold(
                        s.ScheduleFireRequested(run_id=f"run_{number}", by="me", next_at=story.state.next_at)
                    )
            case "switch":
                spec = msgspec.structs.replace(story.state.spec, overlap=policies[number])
                story.fold(s.ScheduleChanged(spec=spec, by="me", next_at=story.state.next_at))
            case _:
                pass
        made = [event for event in story.settle() if isinstance(event, s.ScheduleFired)]
        timed = [event for event in made if event.run_id not in asked]
        if story.state.spec.overlap != "allow":
            assert len(timed) <= 1
            assert not timed or before == 0 or before > 16
    assert len(set(story.fired)) == len(story.fired)
    assert asked <= set(story.fired)
    assert story.state.next_at is not None
    assert len(msgspec.json.encode(story.state)) < 8_000 + 40 * HELD_MAX
    assert parse_rfc3339(story.state.next_at) > story.now
