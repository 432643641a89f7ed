"""Tickets: tells the executors which runs they may claim now.

Invariant: a ticket goes out only against a free slot, at most once a life record until it is taken for lost, and only
from the leader; none for a child whose parent has ended. It is a hint: a lost one costs a sweep, a doubled one a look
into the log.
"""

import asyncio

import msgspec

from libs.bus.ports import Queue
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import LogError, Unavailable
from libs.contracts.subjects import Subjects
from libs.contracts.tasks import Ticket
from services.scheduler.admission import admit
from services.scheduler.family import Family
from services.scheduler.leadership import Leadership
from services.scheduler.replicas import Replicas
from services.scheduler.rows import Row, Rows

# Tickets on their way to the server at the same time: a burst of starts is one or two round trips.
SENDS_MAX = 64

_log = get_logger("tickets")


class Tickets:
    """Admits and sends. `reconsider` says that something changed; it costs nothing to say it too often."""

    def __init__(
        self,
        queue: Queue,
        subjects: Subjects,
        rows: Rows,
        replicas: Replicas,
        family: Family,
        clock: Clock,
        *,
        cap: int | None,
    ) -> None:
        self._queue, self._subjects, self._clock = queue, subjects, clock
        self._rows, self._replicas, self._family, self._cap = rows, replicas, family, cap
        self._changed = asyncio.Event()

    def reconsider(self) -> None:
        self._changed.set()

    async def send(self, leadership: Leadership, settled: asyncio.Event) -> None:
        """Send what may be sent whenever something changed, until cancelled."""
        await settled.wait()
        await self._replicas.known.wait()
        while True:
            await self._changed.wait()
            self._changed.clear()
            if leadership.leads:
                await self._send_all(self._admitted())

    def _admitted(self) -> list[str]:
        free = min(self._replicas.free(), SENDS_MAX)
        if free <= 0:
            return []
        return admit(self._rows.demands(), free=free, cap=self._cap, now=self._clock.monotonic())

    async def _send_all(self, run_ids: list[str]) -> None:
        if not run_ids:
            return
        at = self._clock.monotonic()
        rows = [self._rows.ticket(run_id, at) for run_id in run_ids]
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(self._sent(row)) for row in rows]
        if all(task.result() for task in sent):
            # There may be more than went out in one go; a failure waits for the next tick instead.
            self._changed.set()

    async def _sent(self, row: Row) -> bool:
        assert row.priority is not None
        tenant, run_id = row.key
        # A re-sent ticket has an id of its own: the first may still stand in the window, though it was lost.
        again = f":{row.tickets}" if row.tickets > 1 else ""
        ticket = Ticket(
            tenant=tenant, run_id=run_id, sequence=row.sequence, due=row.waiting_since if row.due else None
        )
        try:
            if row.parent is not None and await self._family.is_over(row.parent):
                # Nobody waits for this child any more. It counts as ticketed until its own end is recorded.
                await self._family.recall(row.key, row.parent)
                return True
            await self._queue.publish(
                self._subjects.work(row.priority),
                msgspec.json.encode(ticket),
                message_id=f"{run_id}:{row.sequence}{again}",
            )
        except LogError as error:
            # A child that this version cannot read: the sweep comes back to it.
            _log.warning("child.unreadable", run_id=run_id, message=error.message)
            return True
        except Unavailable as error:
            _log.warning("ticket.unsent", run_id=run_id, message=error.message)
            self._rows.unticket(run_id)
            return False
        _log.debug("ticket.sent", run_id=run_id, sequence=row.sequence, tickets=row.tickets)
        return True
