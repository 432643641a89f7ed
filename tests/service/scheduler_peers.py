"""Peers of a scheduler under test: the scheduler itself as a task, an executor that only claims, and a reader of runs.

Invariant: everything goes over a real server; the peers do by hand what the services do by themselves, so that a test
decides when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import connect
from libs.bus.creation import CreateRequest, Creation
from libs.bus.liveness import Registration, register
from libs.bus.ports import ACK, Bus, Delivery, Liveness, LogKey, Outcome
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.envelope import decode_events
from libs.contracts.ids import child_run_id, random_run_id, task_id_of
from libs.contracts.run import RunState, RunStatus
from libs.contracts.streams import tickets
from libs.contracts.subjects import Priority
from libs.contracts.tasks import LimitOverrides, Limits, Parent, TaskSpec, Ticket
from libs.contracts.tools import Semantics
from libs.contracts.values import RunError, Usage
from services.scheduler.app import Scheduler
from services.scheduler.settings import TenantQuota, Timing
from tests.fakes.bus import bus_settings
from tests.fakes.waiting import eventually

CLOCK = SystemClock()
# Everything here takes milliseconds; the deadline is for a machine that does something else.
DEADLINE_S = 30.0
# Patience that a test has: what takes 30 s in production takes one here. The lease's TTL is the server's smallest.
QUICK = Timing(tick_s=0.1, claim_s=0.5, resend_s=0.5, sweep_s=0.3, lead_s=1.0)
# A scheduler that does not sweep while a test looks: what happens then happens by wake-ups alone.
NO_SWEEP = QUICK._replace(resend_s=600.0, sweep_s=600.0)


class Deployment:
    """One prefix on a server, with connections of its own for each process."""

    def __init__(self, node: NatsServer, bus: Bus) -> None:
        self._node, self.bus = node, bus
        self.runs = runs_of(bus)
        self._creation = Creation(self.runs, CLOCK, shards=1, limits=Limits())

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Bus]:
        """Another process's connection."""
        settings = bus_settings(self._node.address, prefix=self.bus.subjects.prefix)
        async with connect(settings, CLOCK) as bus:
            yield bus

    async def create(
        self,
        tenant: str = "local",
        *,
        priority: Priority = "normal",
        start: bool = True,
        input_timeout_s: float | None = None,
        workspace: str | None = None,
    ) -> LogKey:
        """A fresh run."""
        limits = LimitOverrides(input_timeout_s=input_timeout_s)
        task = TaskSpec(goal="anything", priority=priority, limits=limits, workspace=workspace)
        request = CreateRequest(tenant, task, "0", auto_start=start, by="test", source="test")
        return LogKey(tenant, (await self._creation.create(request)).run_id)

    async def create_child(self, parent: LogKey, call_id: str, *, copy: bool = False) -> LogKey:
        """The child of a call, or a copy of it under an id of its own, as a fork has."""
        run_id = random_run_id(CLOCK, 0) if copy else child_run_id(parent.log_id, call_id)
        created = e.RunCreated(
            tenant=parent.tenant,
            task_id=task_id_of(run_id),
            task=TaskSpec(goal="a part of it"),
            limits=Limits(),
            workspace=parent.log_id,
            body_hash="0",
            parent=Parent(run_id=parent.log_id, call_id=call_id, depth=1),
            source="delegate",
        )
        await self.runs.create(parent.tenant, run_id, [created, e.RunStartRequested(by=parent.log_id)])
        return LogKey(parent.tenant, run_id)

    async def cancel(self, key: LogKey) -> None:
        """End a run that nobody owns."""
        await self.command(key, e.RunCancelRequested(by="test"), e.RunCancelled(by="test", usage=Usage()))

    async def events(self, key: LogKey, kind: type[e.EventBody]) -> list[e.EventBody]:
        """All events of a kind in the log of a run."""
        records = await self.bus.log.read(key)
        bodies = [event.body for record in records for event in decode_events(record)]
        return [body for body in bodies if isinstance(body, kind)]

    async def command(self, key: LogKey, *bodies: e.LogEvent) -> Folded:
        return await self.runs.command(*key, lambda _: bodies)

    async def state(self, key: LogKey) -> RunState:
        return (await self.runs.load(*key)).state

    async def until_status(self, key: LogKey, *statuses: RunStatus) -> RunState:
        """Wait until the run is in one of these; its state."""

        async def look() -> bool:
            return (await self.state(key)).status in statuses

        await eventually(look, f"{key.log_id} is {' or '.join(statuses)}")
        return await self.state(key)

    async def delete_stream(self, name: str) -> None:
        """Delete one of the deployment's streams as an operator would; buckets are `KV_<name>`."""
        stream = (
            f"KV_{self.bus.subjects.stream(name[3:])}"
            if name.startswith("KV_")
            else self.bus.subjects.stream(name)
        )
        answer = await self.bus.wire.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout_s=5)
        assert b'"success":true' in answer


def completed(answer: str, usage: Usage) -> e.RunCompleted:
    verdict = e.Verification(status=e.Verdict.UNVERIFIED, round=1)
    return e.RunCompleted(answer=answer, verification=verdict, usage=usage)


def runs_of(bus: Bus) -> Runs:
    return Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), CLOCK)


class SchedulerProcess:
    """A scheduler that can be drained or killed."""

    def __init__(self, scheduler: Scheduler, liveness: Liveness) -> None:
        self.scheduler, self.liveness = scheduler, liveness
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(scheduler.run(self._stop))

    @property
    def leads(self) -> bool:
        return not self._task.done() and self.scheduler.leadership.leads

    async def drain(self) -> None:
        """What SIGTERM does."""
        self._stop.set()
        await self._task

    async def kill(self) -> None:
        """Ends it where it stands: it lets go of nothing."""
        self._task.cancel()
        await asyncio.wait({self._task})


@asynccontextmanager
async def scheduler(
    place: Deployment,
    *,
    timing: Timing = QUICK,
    tenant_runs_max: int | None = None,
    tenant_queued_max: int = 1000,
) -> AsyncGenerator[SchedulerProcess]:
    """A running scheduler."""
    async with (
        place.connection() as bus,
        register(bus, CLOCK, _registration("scheduler", 0), on_death=_never) as liveness,
    ):
        runs = runs_of(bus)
        creation = Creation(runs, CLOCK, shards=1, limits=Limits())
        process = SchedulerProcess(
            Scheduler(
                bus,
                runs,
                CLOCK,
                liveness,
                creation,
                quota=TenantQuota(tenant_runs_max, tenant_queued_max),
                timing=timing,
            ),
            liveness,
        )
        try:
            yield process
        finally:
            await process.kill()


class Executor:
    """Takes tickets against its slots, and claims or drops their runs; it executes nothing."""

    def __init__(self, bus: Bus, liveness: Liveness, slots: int) -> None:
        self._bus, self.runs, self._slots = bus, runs_of(bus), slots
        self.boot = liveness.boot
        self.tickets: list[Ticket] = []
        self.priorities: list[str] = []
        self.held: dict[str, Folded] = {}
        self.claims = True
        # Whether a claimed run is completed at once.
        self.completes = False
        self._freed = asyncio.Event()
        self._tasks = [
            asyncio.create_task(bus.queue.consume(spec, self._take, concurrency=8, ready=self._free_slot))
            for spec in tickets(bus.subjects)
        ]

    def tickets_of(self, key: LogKey) -> int:
        return sum(ticket.run_id == key.log_id for ticket in self.tickets)

    async def complete(self, run_id: str, answer: str = "", *, tokens: int = 0) -> None:
        """End a held run."""
        await self._end(run_id, completed(answer, Usage(output_tokens=tokens)))

    async def fail(self, run_id: str, message: str) -> None:
        """End a held run badly."""
        error = RunError(error_code="MODEL_ERROR", message=message)
        await self._end(run_id, e.RunFailed(error=error, usage=Usage()))

    async def ask(self, run_id: str, name: str, kind: Literal["question", "approval"] = "question") -> None:
        """Let go of a held run until somebody answers."""
        asked = e.InputRequested(question_id=name, kind=kind, question="?", call_id=name)
        await self._end(run_id, e.RunReleased(reason="suspended", waiting_for="input"), asked)

    async def delegate(self, place: Deployment, parent: LogKey, *call_ids: str) -> list[LogKey]:
        """Record the intents of these calls in a held run, and make their children."""
        calls = [
            e.ToolRequested(
                call_id=call_id,
                name="delegate",
                arguments={},
                semantics=Semantics.IDEMPOTENT,
                idempotency_key=call_id,
            )
            for call_id in call_ids
        ]
        await self.runs.command(*parent, lambda _: calls)
        return [await place.create_child(parent, call_id) for call_id in call_ids]

    async def wait_for_children(self, run_id: str) -> None:
        """Let go of a held run until a child has ended."""
        await self._end(run_id, e.RunReleased(reason="suspended", waiting_for="child"))

    async def release(self, run_id: str) -> None:
        """Give a held run back, as a drain does."""
        await self._end(run_id, e.RunReleased(reason="shutdown"))

    async def fail_until(self, run_id: str, retry_at: str | None) -> None:
        """Let go of a held run until then."""
        await self._end(run_id, e.RunReleased(reason="failure", retry_at=retry_at))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _end(self, run_id: str, *bodies: e.LogEvent) -> None:
        await self.runs.command(self.held[run_id].state.tenant, run_id, lambda _: bodies)
        del self.held[run_id]
        self._freed.set()

    async def _free_slot(self) -> None:
        while len(self.held) >= self._slots:
            self._freed.clear()
            await self._freed.wait()

    async def _take(self, delivery: Delivery) -> Outcome:
        ticket = msgspec.json.decode(delivery.body, type=Ticket)
        self.tickets.append(ticket)
        self.priorities.append(delivery.subject.rpartition(".")[2])
        if not self.claims:
            return ACK
        folded = await self.runs.load(ticket.tenant, ticket.run_id)
        if folded.state.status not in (RunStatus.QUEUED, RunStatus.RETRYING, RunStatus.RUNNING):
            return ACK
        if folded.state.owner is not None and folded.state.owner.boot == self.boot:
            return ACK
        epoch = folded.state.epoch + 1
        claim = e.RunClaimed(owner="executor", boot=self.boot, epoch=epoch, attempt=epoch)
        if self.completes:
            await self.runs.commit(folded, [claim, completed("done", Usage())])
        else:
            self.held[ticket.run_id] = await self.runs.commit(folded, [claim])
        return ACK


@asynccontextmanager
async def executor(place: Deployment, *, slots: int = 64, model: bool = True) -> AsyncGenerator[Executor]:
    """A registered executor that pulls tickets."""
    registration = _registration("executor", slots)._replace(model_configured=model)
    async with place.connection() as bus, register(bus, CLOCK, registration, on_death=_never) as liveness:
        peer = Executor(bus, liveness, slots)
        try:
            yield peer
        finally:
            await peer.stop()


def _registration(service: str, slots: int) -> Registration:
    return Registration(
        service=service,
        replica=f"{service}-{CLOCK.entropy(4).hex()}",
        slots=slots,
        model_configured=False,
        ttl_s=1.0,
        info={},
    )


def _never() -> None:
    raise AssertionError("nobody here is declared dead while it lives")
