"""What must hold of a deployment that went on for weeks: nothing is lost or done twice, and nothing grows with its age.

Invariant: read from the logs, from what was really done, and from what was counted day by day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from libs.bus.ports import LogKey
from libs.contracts import project_events as p
from libs.contracts.envelope import Event, decode_events
from libs.contracts.events import RunCompleted, RunCreated
from libs.contracts.ids import is_id
from libs.contracts.projects import FeatureStatus, Outcome
from libs.contracts.schedule_events import ScheduleFired
from services.scheduler.projects.orchestrator import CHECKPOINT_EVENTS
from tests.sim.schedule import still
from tests.sim.weeks import FEATURES, PERSON, SCHEDULER, Day, Pace, Weeks

# Handoffs and evidence differ in length, and no day is like the other: what a restart reads lies between none and all of a
# checkpoint's distance. What grows with each session is far above that.
UNEVEN, FEW = 1.2, 5.0

SHORT = Pace(days=8, day_s=150.0, think_s=5.0, item_think_s=30.0, stall_s=20.0, items=60, cron="* * * * *")


class Aged(NamedTuple):
    findings: list[str]
    told: list[str]


def paced(weeks: int) -> Pace:
    """So many weeks of some 1,000 sessions, 1,000 items and 672 times of a schedule; 0: eight short days."""
    if not weeks:
        return SHORT
    return Pace(
        days=7 * weeks,
        day_s=86_400.0,
        think_s=190.0,
        item_think_s=1_150.0,
        stall_s=300.0,
        items=1_000 * weeks,
        cron="*/15 * * * *",
    )


def aged(pace: Pace) -> Aged:
    """Let the time pass, and see what became of it."""
    with still():
        weeks = Weeks(pace)
        try:
            days = weeks.live()
            if not weeks.end(30 * pace.day_s):
                return Aged([f"it does not come to its end; {len(weeks.open)} runs are open"], [])
            growths = list(_growths(days))
            findings = [*weeks.world.findings, *_sessions(weeks), *_runs(weeks), *_far(days)]
            findings += [f"{growth} with its age" for growth in growths if growth.grows]
            return Aged(findings, [_told(weeks), *map(str, growths)])
        finally:
            weeks.world.close()


# --- Nothing is lost or done twice ---


def _sessions(weeks: Weeks) -> Iterator[str]:
    """Each session ended once, and each feature was committed as often as somebody wanted it done."""
    bodies = _bodies(weeks, weeks.logs.features)
    ended = Counter(body.session for body in bodies if isinstance(body, p.SessionEnded))
    if ended != Counter(range(1, weeks.sessions + 1)):
        yield f"of {weeks.sessions} sessions {len(ended)} ended, {ended.total()} times"
    changes = [body for body in bodies if isinstance(body, p.FeatureStateChanged)]
    committed = sum(body.state is FeatureStatus.COMMITTED for body in changes)
    wanted = FEATURES + sum(body.by == PERSON for body in changes)
    if committed != wanted:
        yield f"{committed} commits were recorded, {wanted} were wanted"
    commits = weeks.world.repositories[weeks.logs.features.log_id].commits
    if len({trailers["Perdure-Session"] for trailers in commits}) != len(commits):
        yield "a session committed twice"
    if len(commits) != committed + 1:
        yield f"there are {len(commits)} commits and a baseline, {committed} were recorded"
    outcomes = _outcomes(weeks)
    if not (outcomes[Outcome.FAILED] and any(isinstance(body, p.SessionStalled) for body in bodies)):
        yield f"no session failed, or none fell silent: {outcomes}"


def _runs(weeks: Weeks) -> Iterator[str]:
    """Each item has one run that completed, and each time of the schedule its run."""
    done: Counter[int] = Counter()
    made: set[str] = set()
    for key, records in weeks.world.server.logs.records.items():
        if not is_id("run", key.log_id):
            continue
        created = decode_events(records[0])[0].body
        assert isinstance(created, RunCreated)
        if created.task.schedule is not None:
            made.add(key.log_id)
        if "item" in created.task.metadata:
            completed = isinstance(decode_events(records[-1])[-1].body, RunCompleted)
            done[int(created.task.metadata["item"])] += completed
    ends = [
        one
        for body in _bodies(weeks, weeks.logs.items)
        if isinstance(body, p.ItemsEnded)
        for one in body.items
    ]
    if not any(end.error.startswith("STALLED") for end in ends):
        yield "no item was silent for too long"
    if done != Counter(range(weeks.pace.items)):
        yield f"of {weeks.pace.items} items {len(+done)} were done, {done.total()} times"
    fired = {body.run_id for body in _bodies(weeks, weeks.logs.schedule) if isinstance(body, ScheduleFired)}
    if made != fired:
        yield f"{len(fired)} times of the schedule came, {len(made)} runs were made"


# --- Nothing grows ---


class Growth(NamedTuple):
    what: str
    early: float
    late: float

    @property
    def grows(self) -> bool:
        return self.late > self.early * UNEVEN + FEW

    def __str__(self) -> str:
        return f"{self.what}: {self.early:,.0f}, later {self.late:,.0f}"


def _growths(days: Sequence[Day]) -> Iterator[Growth]:
    """What was counted in the second quarter of the days, when handoff and evidence have come to their bounds, and in the
    last one."""
    quarter = len(days) // 4
    early, late = days[quarter : 2 * quarter], days[-quarter:]
    for what, of in _FIGURES.items():
        yield Growth(what, of(early), of(late))


def _each(of: Callable[[Day], int]) -> Callable[[Sequence[Day]], float]:
    return lambda days: sum(map(of, days)) / sum(day.sessions for day in days)


def _most(of: Callable[[Day], int]) -> Callable[[Sequence[Day]], float]:
    return lambda days: max(map(of, days))


_FIGURES: dict[str, Callable[[Sequence[Day]], float]] = {
    "records that the scheduler read for a session": _each(lambda day: day.read),
    "operations that it asked for": _each(lambda day: day.asked),
    "bytes of the project's state": _most(lambda day: day.state_bytes[0]),
    "bytes of the state of the project over items": _most(lambda day: day.state_bytes[1]),
    "bytes of the schedule's state": _most(lambda day: day.state_bytes[2]),
    "bytes of the largest task of a run": _most(lambda day: day.prompt_bytes),
    "bytes held by the scheduler": _most(lambda day: day.held[SCHEDULER]),
    "bytes held by all services": _most(lambda day: sum(day.held.values())),
}


def _far(days: Sequence[Day]) -> Iterator[str]:
    """Whoever folds one of the logs begins near its end."""
    far = max(max(day.behind) for day in days)
    if far > CHECKPOINT_EVENTS:
        yield f"somebody who folds a log reads {far} records"


def _told(weeks: Weeks) -> str:
    outcomes = ", ".join(f"{outcome.value} {count}" for outcome, count in _outcomes(weeks).most_common())
    return f"{weeks.sessions} sessions ({outcomes}), {weeks.pace.items} items, {weeks.restarts} restarts of all services"


def _outcomes(weeks: Weeks) -> Counter[Outcome]:
    bodies = _bodies(weeks, weeks.logs.features)
    return Counter(body.outcome for body in bodies if isinstance(body, p.SessionEnded))


def _bodies(weeks: Weeks, key: LogKey) -> list[object]:
    return [event.body for event in _events(weeks, key)]


def _events(weeks: Weeks, key: LogKey) -> Iterator[Event]:
    for record in weeks.world.server.logs.records[key]:
        yield from decode_events(record)
