"""What happens behind outages that last longer than anybody's patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec

from libs.bus.checkpoints import Checkpoints
from libs.bus.fence import EpochFence
from libs.bus.journal import Journal
from libs.bus.liveness import Registration, register
from libs.bus.ports import ACK, Delivery, Message, Responder
from libs.bus.runs import Runs
from libs.bus.twin.network import Fate
from libs.bus.twin.server import TwinBus
from libs.chassis.effects import JOURNAL_PATIENCE_S, Effect, Effects, Prepared
from libs.chassis.execution import Executions
from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import RunState
from libs.contracts.subjects import catalog_key, replica_key
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import HostCatalog, JournalState, Semantics, ToolCall, ToolResult
from services.executor.tools.calls import UNANSWERED_MAX, Calls
from services.executor.tools.hosts import Hosts
from services.executor.tools.workspace import ATTACH_TIMEOUT_S, Attached, AttachUnanswered, Workspaces
from tests.sim.clock import SimClock
from tests.sim.virtual import Weather, told

RUN = "run_0_01m8nvbvrzwsd9pw9t2fvw03zh"


def test_an_effect_whose_result_was_lost_in_an_outage_does_not_happen_again_when_its_message_does() -> None:
    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        call, performed = await _call(bus, clock), list[int]()

        @asynccontextmanager
        async def prepare(call: ToolCall, /) -> AsyncGenerator[Prepared]:
            async def perform(stop: asyncio.Event) -> ToolResult:
                del stop
                performed.append(call.attempt)
                weather.down.add("journal.update")
                return ToolResult(call_id=call.call_id, attempt=call.attempt, ok=True, output="deployed")

            yield Effect(perform, {}, {})

        registration = Registration("host", "host-1", 1, model_configured=False, ttl_s=3.0, info={})
        effects = Effects(bus, clock, EpochFence(bus.log, clock), Executions(4), prepare)
        async with register(bus, clock, registration, on_death=lambda: None) as liveness:
            catalog = HostCatalog(boot=liveness.boot, replica="host-1", host="h", tools=[])
            for _ in range(2):
                async with asyncio.TaskGroup() as running:
                    delivery = Delivery("", {}, msgspec.json.encode(call), 1, 1, "")
                    assert await effects.accept(delivery, catalog, liveness, running) == ACK
        found = await Journal(bus.bucket("journal")).read(RUN, call.call_id, 1)
        assert performed == [1]
        # Its owner waits for it until it is overdue, and then decides by the table.
        assert found is not None
        assert found.entry.state is JournalState.STARTED

    told(story, at_most_s=3 * JOURNAL_PATIENCE_S)


def test_a_renewal_that_is_not_answered_costs_no_lease_whether_it_arrives_or_not() -> None:
    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        leases = bus.bucket("leases")
        registration = Registration("executor", "executor-1", 1, model_configured=False, ttl_s=3.0, info={})
        async with register(bus, clock, registration, on_death=lambda: None) as liveness:
            for lost in (Fate(None, None), Fate(0.001, None), Fate(9.4, None)):
                weather.once["leases.update"] = lost
                for _ in range(100):
                    await clock.sleep(0.1)
                    assert await leases.get(replica_key(liveness.boot)) is not None, lost
                    assert liveness.confirmed(), lost

    told(story, at_most_s=60.0)


def test_a_living_host_that_does_not_answer_is_left_alone_after_a_few_questions() -> None:
    asked: list[bytes] = []

    async def never(message: Message) -> bytes:
        asked.append(message.body)
        return await asyncio.get_running_loop().create_future()

    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        del weather
        await _call(bus, clock)
        state = (await _runs(bus, clock).load("local", RUN)).state
        async with _host(bus, clock, never) as boot, _workspaces(bus, clock) as workspaces:
            assert await workspaces.attach(state) == AttachUnanswered(boot)

    told(story, at_most_s=UNANSWERED_MAX * 2 * ATTACH_TIMEOUT_S)
    assert len(asked) == UNANSWERED_MAX


async def _holder(workspaces: Workspaces, state: RunState) -> str:
    """The boot of the host that holds the run's workspace, once it does."""
    attached = await workspaces.attach(state)
    assert isinstance(attached, Attached)
    return attached.host


def test_a_host_that_only_the_log_of_a_workspace_names_is_buried_by_whoever_needs_it() -> None:
    """It died, the leases and the catalog went, and no scheduler lives."""

    async def attached(message: Message) -> bytes:
        call = msgspec.json.decode(message.body, type=ToolCall)
        return msgspec.json.encode(ToolResult(call_id=call.call_id, attempt=1, ok=True, output=""))

    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        await _call(bus, clock)
        state = (await _runs(bus, clock).load("local", RUN)).state
        async with _workspaces(bus, clock) as workspaces:
            machine = weather.server.connect("machine", weather)
            async with _host(machine, clock, attached) as former:
                assert await _holder(workspaces, state) == former
                weather.server.disconnect(machine.link)
                for hint in ("leases", "catalog"):
                    weather.server.buckets[bus.subjects.stream(hint)].lose_all()
            async with _host(bus, clock, attached) as other:
                weather.seen.clear()
                assert await _holder(workspaces, state) == other
        # A few questions whether it lives, and one to the other.
        assert weather.seen["request"] < 20

    told(story, at_most_s=30.0)


@asynccontextmanager
async def _host(bus: TwinBus, clock: SimClock, answer: Responder) -> AsyncGenerator[str]:
    """A host for workspaces, of which only the answers to calls are its own; its boot."""
    registration = Registration("toolhost", "toolhost-1", 1, model_configured=False, ttl_s=3.0, info={})
    async with register(bus, clock, registration, on_death=lambda: None) as lease:
        catalog = HostCatalog(boot=lease.boot, replica="toolhost-1", host="h", tools=[], workspaces=True)
        await bus.bucket("catalog").put(catalog_key(lease.boot), msgspec.json.encode(catalog))
        async with bus.wire.respond(bus.subjects.call_host(lease.boot), answer):
            yield lease.boot


@asynccontextmanager
async def _workspaces(bus: TwinBus, clock: SimClock) -> AsyncGenerator[Workspaces]:
    """What an executor attaches workspaces with."""
    registration = Registration("executor", "executor-1", 1, model_configured=True, ttl_s=3.0, info={})
    async with (
        register(bus, clock, registration, on_death=lambda: None) as liveness,
        asyncio.TaskGroup() as group,
    ):
        hosts = Hosts(bus)
        watching = group.create_task(hosts.watch())
        calls = Calls(bus, clock, liveness, hosts)
        yield Workspaces(bus, clock, liveness, hosts, calls, shards=1)
        watching.cancel()


def _runs(bus: TwinBus, clock: SimClock) -> Runs:
    return Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)


async def _call(bus: TwinBus, clock: SimClock) -> ToolCall:
    """A call of a run that somebody owns."""
    task = TaskSpec(goal="test")
    created = e.RunCreated(
        tenant="local", task_id="task_1", task=task, limits=Limits(), workspace="w", body_hash="0"
    )
    claimed = e.RunClaimed(owner="executor-1", boot="bexecutor", epoch=1, attempt=1)
    await _runs(bus, clock).create("local", RUN, [created, e.RunStartRequested(by="test"), claimed])
    return ToolCall(
        tenant="local",
        run_id=RUN,
        call_id="call_1_0",
        attempt=1,
        epoch=1,
        name="deploy",
        arguments={},
        semantics=Semantics.NON_IDEMPOTENT,
        idempotency_key="k",
        not_after=rfc3339(clock.now() + timedelta(days=1)),
        timeout_s=30.0,
        output_chars_max=30_000,
    )
