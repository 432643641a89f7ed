"""A deployment for weeks: a project whose features are worked on again and again, one over items, a schedule, and a restart
of all services each day.

Invariant: what is measured is counted (records read, operations asked for, bytes held), so a day is as long as whoever runs
it wants it to be.
"""

from __future__ import annotations

import contextvars
import gc
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from libs.bus.ports import LogKey
from libs.bus.runs import projects_of, schedules_of
from libs.bus.twin.network import QuietNetwork
from libs.contracts.checks import CommandCheck
from libs.contracts.envelope import Record
from libs.contracts.errors import Unavailable
from libs.contracts.ids import is_id, random_project_id, random_schedule_id
from libs.contracts.items import ItemMap
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectCreated, ProjectEvent
from libs.contracts.projects import FeatureSpec, FeatureStatus, ProjectLimits, ProjectSpec
from libs.contracts.run import TERMINAL
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedule_events import ScheduleChanged, ScheduleCreated, ScheduleEvent
from libs.contracts.schedules import ScheduleSpec, first_time
from libs.contracts.tasks import TaskSpec
from services.gateway import projectcommands
from tests.sim.faults import IDLE, SERVICES, Plan
from tests.sim.loop import PROCESS, Process
from tests.sim.memory import held_bytes
from tests.sim.services import Sizes, start_all
from tests.sim.worker import reached
from tests.sim.world import Machine, World

T = TypeVar("T")

TENANT, PERSON, READER = "local", "gardener", "reader"
FEATURES = 12
SCHEDULER = "scheduler-1"
# So many features are always open while the project is to go on.
OPEN = 3
# The part of a day in which services start: they look through what was left since the last listing.
STARTING = 0.2


class Pace(NamedTuple):
    """How long the days are, how many, and how much is done in them. `think_s`: of a model about a turn; `item_think_s`:
    about an item, two of which go on at a time."""

    days: int
    day_s: float
    think_s: float
    item_think_s: float
    stall_s: float
    items: int
    cron: str


class Logs(NamedTuple):
    features: LogKey
    items: LogKey
    schedule: LogKey


class Day(NamedTuple):
    """What one day took.

    `sessions` were begun; `read`: records of the three logs that the scheduler read, `asked`: what it asked of the bus, both
    once it had started. Just before the restart: `state_bytes` of the three folds, `behind`: records that somebody reads who
    folds them now, and `held`: bytes in the memory of each service. `prompt_bytes`: the largest first record of a run.
    """

    sessions: int
    read: int
    asked: int
    state_bytes: tuple[int, ...]
    behind: tuple[int, ...]
    held: dict[str, int]
    prompt_bytes: int


class Weeks:
    """One deployment. `live` lets its days pass; `end` has the projects come to their ends."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.world = World(1, Plan())
        self.restarts = self.sessions = 0
        self._going_on = True
        sizes = Sizes(schedulers=1, executors=1, toolhosts=1, verifiers=1)
        start_all(self.world, {}, sizes, reach=partial(reached, self.world, pace.think_s, pace.item_think_s))
        self._bus = self.world.server.connect(READER, QuietNetwork())
        self.projects = projects_of(self._bus, self.world.clock)
        self._schedules = schedules_of(self._bus, self.world.clock)
        self._prompt_bytes = 0
        # The runs that have not ended.
        self.open: set[str] = set()
        self.world.server.logs.observers.append(self._see)
        self.logs = self._now(self._begin())
        self.world.start(PERSON, self._tend)

    # --- Its days ---

    def live(self) -> list[Day]:
        """Let the days pass, each with a restart of all services at its end: killed one day, told to end the next."""
        days: list[Day] = []
        for _ in range(self.pace.days):
            began, self._prompt_bytes = self.state().sessions, 0
            start_s = self.pace.day_s * STARTING
            self.world.loop.run(lambda: False, start_s)
            read, asked = self._read(), self._asked()
            self.world.loop.run(lambda: False, self.pace.day_s - start_s)
            read, asked = self._read() - read, self._asked() - asked
            days.append(self._measured(self.state().sessions - began, read, asked))
            self.world.loop.call_soon(self._restart)
            _collect()
        return days

    def end(self, at_most_s: float) -> bool:
        """Whether both projects come to their ends, and all runs, once nothing is opened again and no time comes."""
        self._going_on = False
        self._now(self._schedules.command(*self.logs.schedule, _switched_off))

        def over() -> bool:
            tails = (self.world.server.logs.tail(key) for key in (self.logs.features, self.logs.items))
            completed = all(tail is not None and tail.header.state == "COMPLETED" for tail in tails)
            return completed and not self.open

        ended = self.world.loop.run(over, at_most_s)
        self.sessions = self.state().sessions
        return ended

    def state(self) -> ProjectState:
        return self._now(self.projects.load(*self.logs.features)).state

    def _restart(self) -> None:
        self.restarts += 1
        for name, machine in list(self.world.machines.items()):
            if name.startswith(SERVICES):
                if self.restarts % 2:
                    self.world.kill(machine.process)
                else:
                    machine.stop.set()

    # --- What is measured ---

    def _measured(self, sessions: int, read: int, asked: int) -> Day:
        behind, sizes = list[int](), list[int]()
        for key, folds in zip(self.logs, (self.projects, self.projects, self._schedules), strict=True):
            before = self._read(READER)
            folded = self._now(folds.load(*key))
            behind.append(self._read(READER) - before)
            sizes.append(len(msgspec.json.encode((folded.state, folded.places))))
        services = sorted(name for name in self.world.machines if name.startswith(SERVICES))
        return Day(
            sessions=sessions,
            read=read,
            asked=asked,
            state_bytes=tuple(sizes),
            behind=tuple(behind),
            held={name: held_bytes(self.world, name) for name in services},
            prompt_bytes=self._prompt_bytes,
        )

    def _asked(self) -> int:
        asked = self.world.network.asked.items()
        return sum(n for (client, kind), n in asked if client == SCHEDULER and kind not in IDLE)

    def _read(self, reader: str = SCHEDULER) -> int:
        return sum(self.world.server.logs.read[reader, key] for key in self.logs)

    def _see(self, record: Record) -> None:
        if not is_id("run", record.log_id):
            return
        if record.header.first == 1:
            self._prompt_bytes = max(self._prompt_bytes, len(record.body))
            self.open.add(record.log_id)
        if record.header.state in TERMINAL:
            self.open.discard(record.log_id)

    # --- What people do ---

    async def _begin(self) -> Logs:
        features, items = (LogKey(TENANT, random_project_id(self.world.clock, 0)) for _ in range(2))
        for key, spec in ((features, _garden(self.pace)), (items, _papers(self.pace))):
            created = ProjectCreated(tenant=TENANT, spec=spec, workspace=key.log_id, body_hash="h", by=PERSON)
            await self.projects.create(*key, [created])
        spec = ScheduleSpec(name="often", cron=self.pace.cron, task=TaskSpec(goal="Tidy up."), task_hash="h")
        schedule = LogKey(TENANT, random_schedule_id(self.world.clock, 0))
        next_at = first_time(spec, self.world.clock.now())
        await self._schedules.create(
            *schedule, [ScheduleCreated(tenant=TENANT, spec=spec, body_hash="h", by=PERSON, next_at=next_at)]
        )
        return Logs(features, items, schedule)

    async def _tend(self, machine: Machine) -> None:
        """Somebody wants the oldest features done again, for as long as the project is to go on."""
        projects = projects_of(machine.bus, machine.clock)
        while True:
            await machine.clock.sleep(self.pace.think_s)
            if self._going_on:
                try:
                    await projects.command(*self.logs.features, _again)
                except Unavailable:
                    continue

    def _now(self, telling: Coroutine[Any, Any, T]) -> T:
        """What comes of it, in the world's time."""
        task = self.world.loop.create_task(telling)
        assert self.world.loop.run(task.done, 10.0)
        return task.result()


def _collect() -> None:
    """Collect what dead processes left; their last words are those of somebody who is dead."""
    gone, context = Process("gone"), contextvars.copy_context()
    gone.alive = False
    context.run(PROCESS.set, gone)
    context.run(gc.collect)


def _again(state: ProjectState) -> list[ProjectEvent]:
    committed = [one for one in state.features.values() if one.state is FeatureStatus.COMMITTED]
    if state.terminal or not committed or state.count(FeatureStatus.PENDING) >= OPEN:
        return []
    oldest = min(committed, key=lambda one: one.changed_at)
    return projectcommands.retry(state, oldest.id, PERSON)


def _switched_off(state: ScheduleState) -> list[ScheduleEvent]:
    return [ScheduleChanged(spec=msgspec.structs.replace(state.spec, enabled=False), by=PERSON)]


def _garden(pace: Pace) -> ProjectSpec:
    check = CommandCheck(argv=["true"])
    features = [
        FeatureSpec(id=f"f-{number}", title=f"do {number}", acceptance=[check]) for number in range(FEATURES)
    ]
    limits = ProjectLimits(stall_s=pace.stall_s)
    return ProjectSpec(name="garden", brief="Keep it tidy.", features=features, verify=[check], limits=limits)


def _papers(pace: Pace) -> ProjectSpec:
    items = ItemMap(items=[f"paper {number}" for number in range(pace.items)], goal="Read {item}.")
    return ProjectSpec(
        name="papers",
        brief="Read them all.",
        concurrency=2,
        map=items,
        max_attempts_per_feature=3,
        limits=ProjectLimits(stall_s=pace.stall_s),
    )
