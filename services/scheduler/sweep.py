"""The sweep: finds what a lost hint, a lost message or a stopped scheduler left behind.

Invariant: whatever it finds, the log is read before anything is done about it; sweeping twice changes nothing. A sweep
does a bounded amount of work, and what does not fit the next one finds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import LogError, Unavailable
from libs.contracts.run import RunStatus
from services.scheduler.chores import Advance, Chores, Recall, Review, unfinished
from services.scheduler.leadership import Leadership
from services.scheduler.projects.rows import ProjectRows
from services.scheduler.replicas import Replicas
from services.scheduler.row import Row
from services.scheduler.rows import Rows
from services.scheduler.settings import Timing
from services.scheduler.wakeups import READS_MAX, Wakeups

# Runs that are folded in one sweep to learn what is not urgent; and waiting parents that are looked at.
READS_PER_SWEEP = 1_000
REVIEWS_PER_SWEEP = 1_000
# Projects that are looked at in one sweep, in turn.
ADVANCES_PER_SWEEP = 500

_log = get_logger("sweep")


class Sweep:
    """Sweeps when this process becomes the leader, and regularly while it is.

    `steps` are what the other parts have to look for; each is quiet when there is nothing to do.
    """

    def __init__(
        self,
        rows: Rows,
        wakeups: Wakeups,
        replicas: Replicas,
        chores: Chores,
        clock: Clock,
        timing: Timing,
        projects: ProjectRows,
        steps: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        self._rows, self._wakeups, self._replicas, self._chores = rows, wakeups, replicas, chores
        self._clock, self._timing, self._projects = clock, timing, projects
        self._steps = steps
        self._soon = asyncio.Event()

    def soon(self) -> None:
        """Do not wait for the next one."""
        self._soon.set()

    async def sweep(self, leadership: Leadership) -> None:
        """Sweep until cancelled."""
        await self._wakeups.settled.wait()
        await self._replicas.known.wait()
        while True:
            try:
                async with asyncio.timeout(self._timing.sweep_s):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            if leadership.leads:
                await self._sweep()

    async def find_lost_tickets(self, leadership: Leadership) -> None:
        """Look for tickets that nobody took, until cancelled: a run that waits for one stands still meanwhile."""
        await self._wakeups.settled.wait()
        while True:
            await self._clock.sleep(self._timing.resend_s / 2)
            if leadership.leads:
                await self._find_lost_tickets()

    async def _sweep(self) -> None:
        self._look_into_runs()
        self._look_at_families()
        # A run whose end was missed, or a wait whose timer was lost, is found by looking.
        self._chores.add(Advance(key) for key in self._projects.next(ADVANCES_PER_SWEEP))
        self._replicas.suspect_owners()
        for step in self._steps:
            # None waits for another's trouble with the bus.
            try:
                await step()
            except (LogError, Unavailable) as error:
                _log.warning("sweep.cut_short", message=error.message)

    def _look_into_runs(self) -> None:
        unknown = 0
        for row in self._rows:
            unknown += not row.known
            self._wakeups.look_into(row, thoroughly=unknown <= READS_PER_SWEEP)
            self._chores.add(unfinished(row, orphaned=self._rows.orphaned(row)))

    def _look_at_families(self) -> None:
        """A parent that waits while none of its children goes on; a child that goes on while its parent does not."""
        childless = (
            Review(row.key)
            for row in self._rows
            if row.status is RunStatus.WAITING_FOR_CHILD and not self._rows.children_of(row.run_id)
        )
        self._chores.add(islice(childless, REVIEWS_PER_SWEEP))
        for row in self._rows:
            if row.parent is not None and row.parent.log_id not in self._rows:
                self._chores.add([Recall(row.key, row.parent)])

    async def _find_lost_tickets(self) -> None:
        before = self._clock.monotonic() - self._timing.resend_s
        lost = [row for row in self._rows if row.ticketed_at is not None and row.ticketed_at <= before]
        for start in range(0, len(lost), READS_MAX):
            async with asyncio.TaskGroup() as group:
                for row in lost[start : start + READS_MAX]:
                    group.create_task(self._send_again(row))

    async def _send_again(self, row: Row) -> None:
        """Let the run wait for another ticket, if the log says that it still waits for one."""
        try:
            await self._wakeups.refresh(row)
        except (LogError, Unavailable) as error:
            _log.warning("run.unreadable", run_id=row.run_id, message=error.message)
            return
        now = self._rows.get(row.run_id)
        if now is None or now.ticketed_at is None or now.ticketed_at != row.ticketed_at:
            return
        if not now.alone or self._clock.monotonic() - now.ticketed_at >= self._timing.alone_s:
            _log.info("ticket.lost", run_id=row.run_id, tickets=row.tickets)
            self._rows.unticket(row.run_id)
            self._wakeups.changed()
