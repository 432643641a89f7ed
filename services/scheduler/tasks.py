"""Tasks from the bus: what is published on `<p>.tasks.<tenant>` becomes a run, as if it had been posted.

Invariant: an acked message is a run in the log or a dead letter with the reason; delivered again it makes neither a
second time (key: tenant and Idempotency-Key, else the message's place in its stream). What is beyond the places of its
tenant waits where it is.
"""

import asyncio

from libs.bus.creation import CreateRequest, Creation
from libs.bus.ports import ACK, Bus, Delivery, Outcome, Queue, nak
from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import QuotaExceeded, RequestError, StorageFull
from libs.contracts.events import LogEvent, RunStartRequested
from libs.contracts.http import body_hash, idempotency_key, parse_task
from libs.contracts.ids import is_token
from libs.contracts.run import RunState, RunStatus
from libs.contracts.streams import TASKS_PENDING_MAX, tasks_consumer
from libs.contracts.subjects import Subjects
from services.scheduler.places import Held, Places

IDEMPOTENCY_KEY = "Idempotency-Key"
# One append each; more at once would only queue at the log's stream.
TASKS_MAX = 16
# When the bus is full somebody has to make room first; other troubles of the bus are the consumer's to repeat.
FULL_S = 15.0
# Tasks that wait for places, of one tenant and of all, in one scheduler; and of all in all schedulers, so that the queue
# keeps room for those that need not wait: each scheduler lets in so many at most before it counts again that the rest of
# the room does for some tens of them. Of a tenant that publishes more the rest is rejected.
HELD_TENANT_MAX = 1_000
HELD_MAX = 5_000
HELD_QUEUE_MAX = TASKS_PENDING_MAX - 4_000
# Who asked for the start, and where the run came from.
BY = "bus"

_log = get_logger("tasks")


class Tasks:
    """The consumer of published tasks. Every replica takes part: the log decides, not the leader."""

    def __init__(
        self,
        queue: Queue,
        subjects: Subjects,
        creation: Creation,
        runs: Runs,
        places: Places,
        held: Held,
    ) -> None:
        self._queue, self._subjects = queue, subjects
        self._creation, self._runs = creation, runs
        self._places, self._held = places, held

    async def consume(self, settled: asyncio.Event) -> None:
        """Make runs until cancelled, once it is known (`settled`) which there are."""
        await settled.wait()
        await self._queue.consume(tasks_consumer(self._subjects), self.handle, concurrency=TASKS_MAX)

    async def handle(self, delivery: Delivery) -> Outcome:
        """One published task. Raises `BusUnavailable`: then it is delivered again."""
        tenant = self._subjects.tenant_of_task(delivery.subject)
        try:
            request = _request(tenant, delivery)
            if not await self._may_start(tenant, request, delivery):
                return await self._hold(tenant, delivery)
            created = await self._creation.create(request)
            if created.existed and created.folded.state.status is RunStatus.PENDING:
                # Posted before under the same key without a start: a published task always runs.
                await self._runs.command(tenant, created.run_id, _start)
        except RequestError as error:
            _log.warning("task.rejected", tenant=tenant, code=error.code, message=error.message)
            await self._queue.dead_letter(
                self._subjects.rejected(tenant), delivery, f"{error.code}: {error.message}"
            )
            return ACK
        except StorageFull as error:
            _log.warning("task.delayed", tenant=tenant, message=error.message)
            return nak(FULL_S)
        self._held.release(tenant, delivery.stream_sequence)
        _log.info("task.accepted", tenant=tenant, run_id=created.run_id, existed=created.existed)
        return ACK

    async def _may_start(self, tenant: str, request: CreateRequest, delivery: Delivery) -> bool:
        """Whether there is a place for the run, or it was started before. Who has just come overtakes nobody who waits."""
        run_id = self._creation.run_id_of(request)
        overtakes = delivery.delivered == 1 and self._held.has_any(tenant)
        if not overtakes and await self._places.reserve(tenant, run_id):
            return True
        found = await self._runs.find(tenant, run_id)
        return found is not None and found.state.status is not RunStatus.PENDING

    async def _hold(self, tenant: str, delivery: Delivery) -> Outcome:
        """Leave a task in the queue. Raises `QuotaExceeded` when too many wait there."""
        new = delivery.delivered == 1
        wait_s = await self._held.hold(tenant, delivery.stream_sequence, new=new)
        if wait_s is None:
            raise QuotaExceeded(
                f"tenant {tenant} has {self._places.most} runs under way and queued (TENANT_MAX_ACTIVE_RUNS, "
                "TENANT_MAX_QUEUED_RUNS), and as many published tasks wait as may; replay this one when some have ended"
            )
        if new:
            _log.info("task.held", tenant=tenant, sequence=delivery.stream_sequence)
        return nak(wait_s)


def held_tasks(bus: Bus, clock: Clock) -> Held:
    """Tasks that wait for places, bounded over all schedulers of a bus."""
    return Held(
        clock,
        lambda: unanswered_tasks(bus),
        tenant_max=HELD_TENANT_MAX,
        most=HELD_MAX,
        queue_max=HELD_QUEUE_MAX,
    )


async def unanswered_tasks(bus: Bus) -> int:
    """Tasks that any scheduler was given and that are not acked: nearly all wait for places. Raises `Unavailable`."""
    spec = tasks_consumer(bus.subjects)
    known = await bus.backlogs()
    return sum(one.unanswered for one in known if (one.stream, one.consumer) == (spec.stream, spec.name))


def _request(tenant: str, delivery: Delivery) -> CreateRequest:
    if not is_token(tenant):
        raise RequestError(f"tenant {tenant!r} must match [a-z0-9_-]{{1,64}}; publish on tasks.<tenant>")
    task = parse_task(delivery.body)
    key = idempotency_key(delivery.headers.get(IDEMPOTENCY_KEY))
    return CreateRequest(
        tenant=tenant,
        task=task.spec(),
        body_hash=body_hash(task),
        auto_start=True,
        by=BY,
        source=BY,
        cause=("key", key)
        if key is not None
        else ("message", delivery.stream_created, str(delivery.stream_sequence)),
    )


def _start(state: RunState) -> list[LogEvent]:
    return [RunStartRequested(by=BY)] if state.status is RunStatus.PENDING else []
