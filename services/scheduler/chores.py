"""Chores: what a change of one run asks the scheduler to do for another, or beside it.

Invariant: every chore looks at the log before it acts, or is harmless, so it may be done twice or too late; only the
leader does any, and what is dropped (another leads, there are too many, the bus is full) the sweep finds again, or in the
case of `Halt` each host.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, assert_never

from libs.bus.ports import LogKey, Timers, Wakeup
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import PerdureError, Unavailable
from libs.contracts.events import RunCancelRequested
from libs.contracts.run import TERMINAL, RunStatus
from services.scheduler.endings import Endings
from services.scheduler.family import Family
from services.scheduler.halting import Halting
from services.scheduler.leadership import Leadership
from services.scheduler.projects.orchestrator import Orchestrator
from services.scheduler.projects.vacated import Vacated
from services.scheduler.remains import Remains
from services.scheduler.row import Row, events_of, session_of
from services.scheduler.schedules.keeper import Keeper

# Far above what a burst of endings makes; a chore is a few hundred bytes.
CHORES_MAX = 100_000
# Done at the same time: enough to hide the round trips of a fold and an append, few enough not to crowd out the owners.
WORKERS = 16
# Between two tries of one worker while the bus is away or full; every try has been patient by itself.
PAUSE_S = 0.5
PAUSE_S_MAX = 10.0

_log = get_logger("chores")


class Report(NamedTuple):
    """A run that may be a child has ended: its parent must hear of it."""

    child: LogKey


class Review(NamedTuple):
    """A run waits for children: perhaps one has ended and nobody told."""

    parent: LogKey


class Recall(NamedTuple):
    """A parent has ended, or seems to: its child must end too."""

    child: LogKey
    parent: LogKey


class Arm(NamedTuple):
    """A run waits until then at most: a timer must stand for it."""

    run: LogKey
    sequence: int
    due_at: datetime


class Disarm(NamedTuple):
    """A timer stands for a wait that is over."""

    run_id: str
    sequence: int


class Purge(NamedTuple):
    """A run was deleted: what is below its tombstone must go."""

    run: LogKey
    tombstone: int


class Halt(NamedTuple):
    """A run is to end, or has ended, by another's word than its owner's: that one may be dead or frozen."""

    run: LogKey
    epoch: int


class Finish(NamedTuple):
    """A run was asked to end and its owner is dead: there may be no executor to end it."""

    run: LogKey


class Advance(NamedTuple):
    """A project, or a run of one of its sessions, went on: look what follows. `fired`: the wait whose timer went off."""

    project: LogKey
    fired: int | None = None


class Tend(NamedTuple):
    """The time of a schedule has come, or something else changed for it. `ended`: only that a run of it has."""

    schedule: LogKey
    ended: bool = False


class Vacate(NamedTuple):
    """A project has ended, and nobody needs the workspaces of these lanes any more."""

    project: LogKey
    lanes: tuple[int, ...]


Chore = Advance | Tend | Vacate | Report | Review | Recall | Arm | Disarm | Purge | Halt | Finish


def ended(
    run: LogKey, before: Row | None, children: Sequence[Row], *, tombstone: int | None = None
) -> list[Chore]:
    """What the end of a run asks for. `before` is its row until now, `children` are those that have not ended."""
    chores: list[Chore] = [Recall(child.key, run) for child in children]
    if before is not None and (before.origin is None or before.parent is not None):
        # Of a run that nobody has read, this finds out whose it is.
        chores.append(Report(run))
    if before is not None and before.origin is not None and before.origin.project is not None:
        chores.append(Advance(LogKey(run.tenant, before.origin.project)))
    if before is not None and before.origin is not None and before.origin.schedule is not None:
        chores.append(Tend(LogKey(run.tenant, before.origin.schedule), ended=True))
    if tombstone is not None:
        chores.append(Purge(run, tombstone))
    return chores


def moved(before: Row | None, after: Row) -> list[Chore]:
    """What a run that goes on asks for."""
    deadline = after.deadline
    if deadline is None or (before is not None and before.deadline == deadline):
        return []
    return [Arm(after.key, *deadline)]


def unfinished(row: Row, *, orphaned: bool) -> list[Chore]:
    """What a run asks for that is to end and whose owner is dead."""
    return [Finish(row.key)] if row.cancelling and orphaned else []


def halted(before: Row | None, wakeup: Wakeup, status: RunStatus) -> list[Chore]:
    """What a record asks for that ends a run for which hosts may run something, or wants it ended, and is not its
    owner's. A living owner stops its calls by itself, at the same moment."""
    record = wakeup.record
    if before is None or record is None or not before.may_have_calls or record.header.boot == before.owner:
        return []
    ends = status in TERMINAL or any(
        isinstance(event.body, RunCancelRequested) for event in events_of(wakeup)
    )
    return [Halt(wakeup.key, record.header.epoch)] if ends else []


class Removers(NamedTuple):
    """Who removes what runs, and projects, leave behind."""

    remains: Remains
    vacated: Vacated


class Chores:
    """Does chores one by one in a few workers, each once however often it was asked for meanwhile."""

    def __init__(
        self,
        family: Family,
        endings: Endings,
        orchestrator: Orchestrator,
        keeper: Keeper,
        timers: Timers,
        removers: Removers,
        halting: Halting,
        clock: Clock,
    ) -> None:
        self._orchestrator, self._keeper = orchestrator, keeper
        self._family, self._endings, self._timers, self._clock = family, endings, timers, clock
        self._removers, self._halting = removers, halting
        self._waiting: dict[Chore, None] = {}
        self._added = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, chores: Iterable[Chore]) -> None:
        for chore in chores:
            if len(self._waiting) < CHORES_MAX:
                self._waiting[chore] = None
                self._added.set()

    async def work(self, leadership: Leadership) -> None:
        """Do what is asked for until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker(leadership))

    async def _worker(self, leadership: Leadership) -> None:
        pause_s = PAUSE_S
        while True:
            while not self._waiting:
                self._added.clear()
                await self._added.wait()
            chore = next(iter(self._waiting))
            del self._waiting[chore]
            if not leadership.leads:
                continue
            try:
                await self._do(chore)
                pause_s = PAUSE_S
            except Unavailable as error:
                _log.warning("chore.waits", chore=type(chore).__name__, message=error.message)
                self.add([chore])
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
            except PerdureError as error:
                # No room for it now, or a run that this version cannot read: the sweep comes back to it, and the other
                # chores are none the worse.
                _log.warning("chore.left", chore=type(chore).__name__, message=error.message)

    async def _do(self, chore: Chore) -> None:
        match chore:
            case Advance(project=project, fired=fired):
                await self._orchestrator.advance(project, fired)
            case Tend(schedule=schedule, ended=ended):
                await self._keeper.advance(schedule, ended=ended)
            case Vacate(project=project, lanes=lanes):
                await self._removers.vacated.clear(project, lanes)
            case Report(child=child):
                reported = await self._family.report(child)
                owner = session_of(reported.run_id, reported.task.session) if reported is not None else None
                if owner is not None:
                    await self._orchestrator.advance(LogKey(child.tenant, owner))
            case Review(parent=parent):
                await self._family.review(parent)
            case Recall(child=child, parent=parent):
                await self._family.recall(child, parent)
            case Arm(run=run, sequence=sequence, due_at=due_at):
                await self._timers.arm(run, sequence, due_at)
            case Disarm(run_id=run_id, sequence=sequence):
                await self._timers.cancel(run_id, sequence)
            case Purge(run=run, tombstone=tombstone):
                await self._removers.remains.purge(run, tombstone)
            case Halt(run=run, epoch=epoch):
                await self._halting.halt(run, epoch)
            case Finish(run=run):
                await self._endings.finish(run)
            case _:
                assert_never(chore)
