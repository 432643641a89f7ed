"""A claim of which its maker did not hear, and that arrives when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import msgspec

from libs.bus.checkpoints import Checkpoints
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.bus.twin.network import Fate
from libs.bus.twin.server import TwinBus
from libs.chassis.run import Chassis
from libs.contracts import events as e
from libs.contracts.clock import Clock
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec, Ticket
from libs.contracts.tools import ToolSpec
from services.executor.app import Outside, serve
from services.executor.egress.context import Fits, Window
from services.executor.endpoint.circuits import Circuits
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.talk import Tell
from services.executor.settings import ExecutorSettings
from tests.sim.clock import SimClock
from tests.sim.services import EXECUTOR
from tests.sim.virtual import Weather, told

RUN = "run_0_01m8nvbvrzwsd9pw9t2fvw03zh"
# After the process has stopped asking for it (15 s), before it may believe that it never comes.
ARRIVES_S = 25.0


class Asked:
    """A model that is asked and never answers."""

    model = "silent"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def talk(self, state: RunState, specs: Mapping[str, ToolSpec], pulse: Pulse) -> Asked:
        del state, specs, pulse
        return self

    def window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        del state, overflowed
        return 1, Fits(tokens=1)

    async def summarise(self, state: RunState, overflowed: bool, tell: Tell) -> list[e.LogEvent]:
        raise NotImplementedError

    async def next_turn(self, state: RunState, tell: Tell) -> list[e.LogEvent]:
        del state, tell
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def executor(bus: TwinBus, clock: SimClock, runs: Runs, model: Asked) -> AsyncGenerator[None]:
    """An executor that lives as long as the context."""

    @asynccontextmanager
    async def talker(
        settings: ExecutorSettings, bus: Bus, clock: Clock, circuits: Circuits
    ) -> AsyncGenerator[Asked]:
        del settings, bus, clock, circuits
        yield model

    chassis = Chassis(EXECUTOR, clock, bus, runs, asyncio.Event())
    serving = asyncio.create_task(serve(chassis, outside=Outside(open_talker=talker)))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def created(bus: TwinBus, clock: SimClock, *more: e.LogEvent) -> Runs:
    """The run `RUN`, to be executed or with more that has happened to it."""
    runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
    first = e.RunCreated(
        tenant="local",
        task_id="task_1",
        task=TaskSpec(goal="test"),
        limits=Limits(),
        workspace=RUN,
        body_hash="0",
    )
    await runs.create("local", RUN, [first, e.RunStartRequested(by="test"), *more])
    return runs


async def ticketed(bus: TwinBus) -> None:
    """Offer the run to executors."""
    ticket = msgspec.json.encode(Ticket(tenant="local", run_id=RUN, sequence=0))
    await bus.queue.publish(bus.subjects.work("normal"), ticket)


def test_a_run_is_carried_also_when_its_claim_arrives_after_its_owner_has_stopped_waiting_for_it() -> None:
    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        runs, model = await created(bus, clock), Asked()
        async with executor(bus, clock, runs, model):
            await clock.sleep(1.0)
            weather.once["append"] = Fate(there_s=ARRIVES_S, back_s=None)
            # The bus stays bad for so long that the process is not sure to be alive when it looks at the log again.
            weather.down.add("leases.update")
            await ticketed(bus)
            await clock.sleep(ARRIVES_S - 2.0)
            # A ticket is a hint: this one is lost, and nothing but the process itself knows of the claim.
            weather.server.stream(bus.subjects.work("normal")).lose_all()
            await clock.sleep(5.0)
            weather.down.clear()
            async with asyncio.timeout(120.0):
                await model.asked.wait()

    told(story, at_most_s=300.0)
