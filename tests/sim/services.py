"""The services of a deployment as processes of the simulation: the real ones, with a model and tools of our own.

Invariant: everything here is composed by the services' own `app.py`; only what reaches outside of the bus is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from libs.chassis.run import Chassis
from libs.contracts.run import RunState
from libs.contracts.tasks import Ticket
from services.executor.app import Outside
from services.executor.app import serve as serve_executor
from services.executor.quarantine import Quarantine
from services.executor.settings import ExecutorSettings
from services.scheduler.app import serve as serve_scheduler
from services.scheduler.settings import SchedulerSettings
from services.verifier.app import serve as serve_verifier
from services.verifier.settings import VerifierSettings
from tests.sim.host import serve_host
from tests.sim.loop import PROCESS
from tests.sim.model import Turn, talkers
from tests.sim.world import Machine, World

Turns = Mapping[str, Sequence[Turn]]

EXECUTOR = ExecutorSettings.load(
    "executor",
    {
        "OPENAI_API_KEY": "none",
        "MODEL_ID": "scripted",
        "REPLICA_ID": "executor",
        "MAX_CONCURRENT_RUNS_PER_REPLICA": "8",
    },
)
SCHEDULER = SchedulerSettings.load("scheduler", {"REPLICA_ID": "scheduler"})
VERIFIER = VerifierSettings.load("verifier", {"REPLICA_ID": "verifier"})


class Sizes:
    """How many processes of each kind."""

    def __init__(
        self, *, schedulers: int = 1, executors: int = 2, toolhosts: int = 2, verifiers: int = 1
    ) -> None:
        self.schedulers, self.executors = schedulers, executors
        self.toolhosts, self.verifiers = toolhosts, verifiers

    @property
    def all(self) -> int:
        return self.schedulers + self.executors + self.toolhosts + self.verifiers


def start_all(
    world: World, turns: Turns, sizes: Sizes, *, reach: Callable[[Machine], Outside] | None = None
) -> None:
    """Start every process and wait until all of them are there. `reach`: what executors reach in place of `turns`."""

    async def scheduler(machine: Machine) -> None:
        settings = SCHEDULER.model_copy(update={"replica_id": machine.name})
        await serve_scheduler(Chassis(settings, machine.clock, machine.bus, machine.runs, machine.stop))

    async def executor(machine: Machine) -> None:
        settings = EXECUTOR.model_copy(update={"replica_id": machine.name})
        outside = reach(machine) if reach is not None else outside_of(world, machine, turns)
        chassis = Chassis(settings, machine.clock, machine.bus, machine.runs, machine.stop)
        await serve_executor(chassis, outside=outside)

    async def toolhost(machine: Machine) -> None:
        await serve_host(world, machine)

    async def verifier(machine: Machine) -> None:
        settings = VERIFIER.model_copy(update={"replica_id": machine.name})
        await serve_verifier(Chassis(settings, machine.clock, machine.bus, machine.runs, machine.stop))

    for kind, main, count in (
        ("scheduler", scheduler, sizes.schedulers),
        ("executor", executor, sizes.executors),
        ("toolhost", toolhost, sizes.toolhosts),
        ("verifier", verifier, sizes.verifiers),
    ):
        for number in range(1, count + 1):
            world.start(f"{kind}-{number}", main)
    leases = world.server.buckets[world.server.subjects.stream("leases")]
    catalog = world.server.buckets[world.server.subjects.stream("catalog")]
    hosts = sizes.toolhosts + sizes.verifiers

    def up() -> bool:
        return len(leases.entries("replica.")) >= sizes.all and len(catalog.entries("")) >= hosts

    if not world.loop.run(up, 10.0):
        raise RuntimeError("the deployment does not come up")


def outside_of(world: World, machine: Machine, turns: Turns) -> Outside:
    """What an executor of the simulation reaches beside the bus."""

    def quarantine(*parts: object) -> Quarantine:
        del parts
        return _Quarantine(world, machine, turns)

    return Outside(open_talker=talkers(world, machine, turns), quarantine=quarantine)


class _Quarantine(Quarantine):
    """The process of a quarantined run is one more process of the simulation, which ends with its supervisor."""

    def __init__(self, world: World, machine: Machine, turns: Turns) -> None:
        super().__init__(machine.bus, machine.runs, machine.clock)
        self._world, self._machine, self._turns = world, machine, turns

    async def carry(self, state: RunState, claimed: asyncio.Event, stop: asyncio.Event) -> None:
        world, supervisor = self._world, self._machine.process
        ticket = Ticket(tenant=state.tenant, run_id=state.run_id, sequence=0)
        ended = asyncio.get_running_loop().create_future()

        async def alone(machine: Machine) -> None:
            outside = outside_of(world, machine, self._turns)
            settings = EXECUTOR.model_copy(update={"replica_id": self._machine.name})
            chassis = Chassis(settings, machine.clock, machine.bus, machine.runs, machine.stop)
            await serve_executor(chassis, only=ticket, outside=outside)

        name = f"quarantine-{world.starts['quarantine']}"
        world.starts["quarantine"] += 1
        world.say(f"QUARANTINES {state.run_id} in {name}")
        machine = world.start_once(name, alone, parent=supervisor, ended=ended)
        claimed.set()
        assert PROCESS.get() is supervisor
        told = asyncio.create_task(_pass_on(stop, machine.stop))
        try:
            await ended
        finally:
            told.cancel()
        if machine.process.broke and not stop.is_set():
            await self._given_up(state, "SIGKILL")


async def _pass_on(stop: asyncio.Event, to: asyncio.Event) -> None:
    await stop.wait()
    to.set()
