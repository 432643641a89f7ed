"""What changed: follows the `life` records of all runs, projects and schedules, keeps the rows true to them and says what they ask for.

Invariant: a record is only a wake-up; what it says of its run counts until a newer one, or a fold, says otherwise.
Handled again, it changes nothing (key: run and stream sequence).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from libs.bus.ports import Log, LogKey, Wakeup
from libs.bus.runs import Folded, Runs
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, LogError, UnreadableRecord
from libs.contracts.ids import is_id
from libs.contracts.run import TERMINAL, RunStatus
from services.scheduler.chores import Advance, Chore, Tend, Vacate, ended, halted, moved, unfinished
from services.scheduler.projects.rows import ProjectRows
from services.scheduler.row import Row, advanced, is_tombstone, read
from services.scheduler.rows import Rows
from services.scheduler.schedules.rows import ScheduleRows

# The replay of the latest records has ended when nothing came for this long; in a busy deployment it never pauses, and
# what is still missing after `SETTLE_MAX_S` only lets a few tickets too many out.
SETTLE_S = 0.05
SETTLE_MAX_S = 5.0
# Runs that are read at the same time: enough to hide round trips, few enough not to crowd out the appends.
READS_MAX = 8
# A wake-up that cannot be read now is tried again after this.
PAUSE_S = 0.25

_STATUSES = {status.value: status for status in RunStatus}

_log = get_logger("wakeups")


class Others(NamedTuple):
    """What else than runs is followed."""

    projects: ProjectRows
    schedules: ScheduleRows

    def note(self, wakeup: Wakeup) -> list[Chore]:
        """Take in a record of one; what it asks for."""
        if is_id("project", wakeup.key.log_id):
            news = self.projects.note(wakeup)
            lanes = self.projects.vacated.get(wakeup.key)
            return [Advance(wakeup.key)] if news else [Vacate(wakeup.key, lanes)] if lanes else []
        if is_id("schedule", wakeup.key.log_id):
            return [Tend(wakeup.key)] if self.schedules.note(wakeup) else []
        return []


class Wakeups:
    """Keeps `rows` warm. Every replica does this.

    `changed` is called whenever a decision may have become another, `asked` with what a change asks for, `buried` with
    the tombstones of deleted runs, those of the replay too.
    """

    def __init__(
        self,
        log: Log,
        runs: Runs,
        rows: Rows,
        clock: Clock,
        changed: Callable[[], None],
        asked: Callable[[Iterable[Chore]], None],
        buried: Callable[[LogKey, int], None],
        others: Others,
    ) -> None:
        self._others = others
        self._log, self._runs, self._rows, self._clock = log, runs, rows, clock
        self.changed, self._asked, self._buried = changed, asked, buried
        self._unread: dict[str, None] = {}
        self._reading = asyncio.Event()
        # Set once the rows are as complete as the log was when this process began.
        self.settled = asyncio.Event()

    async def follow(self) -> None:
        """Follow the log until cancelled."""
        deadline = self._clock.monotonic() + SETTLE_MAX_S
        async with self._log.wakeups() as wakeups:
            while not self.settled.is_set() and self._clock.monotonic() < deadline:
                try:
                    async with asyncio.timeout(SETTLE_S):
                        await self._next(wakeups)
                except TimeoutError:
                    break
            self.settled.set()
            self.changed()
            while True:
                await self._next(wakeups)

    async def read(self) -> None:
        """Read, until cancelled, the runs of which somebody needs more than their latest record said."""
        while True:
            await self._reading.wait()
            self._reading.clear()
            unread, self._unread = list(self._unread), {}
            for start in range(0, len(unread), READS_MAX):
                async with asyncio.TaskGroup() as group:
                    for run_id in unread[start : start + READS_MAX]:
                        group.create_task(self._read(run_id))
            self.changed()

    def look_into(self, row: Row, *, thoroughly: bool = False) -> None:
        """Have a run read soon, if a decision about it needs that; `thoroughly`: if anything about it is unknown."""
        if not row.complete(orphaned=self._rows.orphaned(row)) or (thoroughly and not row.known):
            self._unread[row.run_id] = None
            self._reading.set()

    async def refresh(self, row: Row) -> None:
        """Read a run and make its row what the log says now."""
        found = await self._runs.find(*row.key)
        if found is not None:
            self.learn(found)
        elif self._rows.get(row.run_id) == row:
            self._end(row.key, row, None)

    def learn(self, found: Folded) -> None:
        """Take over what a fold says of its run, unless a newer wake-up was faster."""
        state, run = found.state, LogKey(found.state.tenant, found.state.run_id)
        before = self._rows.get(state.run_id)
        if before is not None and before.sequence > found.last:
            return
        if state.terminal:
            self._end(run, before, found.last if state.deleted else None)
        else:
            after = read(before, found, self._clock.monotonic())
            self._rows.put(after)
            self._ask(moved(before, after) + unfinished(after, orphaned=self._rows.orphaned(after)))

    async def _next(self, wakeups: AsyncIterator[Wakeup]) -> None:
        try:
            wakeup = await anext(wakeups)
        except (BusUnavailable, UnreadableRecord) as error:
            _log.warning("wakeup.unreadable", message=error.message)
            await self._clock.sleep(PAUSE_S)
            return
        if is_id("run", wakeup.key.log_id):
            self._apply(wakeup)
        else:
            self._ask(self._others.note(wakeup))

    def _apply(self, wakeup: Wakeup) -> None:
        before = self._rows.get(wakeup.key.log_id)
        if before is not None and wakeup.stream_sequence <= before.sequence:
            return
        status = _STATUSES.get(wakeup.header_state)
        if status is not None:
            self._ask(halted(before, wakeup, status))
        if status is None or status in TERMINAL:
            if status is not None:
                self._end(wakeup.key, before, wakeup.stream_sequence if is_tombstone(wakeup) else None)
            else:
                # A status of a later version is for a scheduler of that version.
                self._rows.drop(wakeup.key.log_id)
        else:
            after = advanced(before, wakeup, status, self._clock.monotonic())
            self._rows.put(after)
            self.look_into(after)
            self._ask(moved(before, after) + unfinished(after, orphaned=self._rows.orphaned(after)))
        self.changed()

    def _end(self, run: LogKey, before: Row | None, tombstone: int | None) -> None:
        self._rows.drop(run.log_id)
        if tombstone is not None:
            self._buried(run, tombstone)
        self._ask(ended(run, before, self._rows.children_of(run.log_id), tombstone=tombstone))

    def _ask(self, chores: Iterable[Chore]) -> None:
        # What the records of the replay ask for was asked for before; the sweep looks what of it is missing.
        if self.settled.is_set():
            self._asked(chores)

    async def _read(self, run_id: str) -> None:
        row = self._rows.get(run_id)
        if row is None or (row.known and row.complete(orphaned=self._rows.orphaned(row))):
            return
        try:
            await self.refresh(row)
        except (BusUnavailable, LogError) as error:
            # The sweep comes back to it; a run of a later version waits for a scheduler that can read it.
            _log.warning("run.unreadable", run_id=run_id, message=error.message)
