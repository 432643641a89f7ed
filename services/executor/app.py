"""The executor's composition root: what is made, in which order it starts, and in which it lets go.

Invariant: the process is registered before it pulls a ticket, and releases its runs before its lease.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.bus.spending import Spending
from libs.chassis.crash import CrashHooks
from libs.chassis.run import Chassis
from libs.chassis.waiting import first_of
from libs.contracts.clock import Clock
from libs.contracts.errors import LeaseLost
from libs.contracts.ids import SHARDS
from libs.contracts.streams import tickets
from libs.contracts.tasks import Ticket
from services.executor.activities import Rules, Workbench
from services.executor.claims import Claims, Held, silences
from services.executor.endpoint.circuits import Circuits
from services.executor.endpoint.talk import Talking, open_talker
from services.executor.quarantine import CLAIMED, Quarantine
from services.executor.session import SessionParts
from services.executor.settings import ExecutorSettings
from services.executor.tools.calls import Calls
from services.executor.tools.hosts import Hosts
from services.executor.tools.offering import Offerings
from services.executor.tools.workspace import Workspaces

OpenTalker = Callable[[ExecutorSettings, Bus, Clock, Circuits], AbstractAsyncContextManager[Talking]]
MakeQuarantine = Callable[[Bus, Runs, Clock], Quarantine]

# Claims in progress per priority; each is a few milliseconds of waiting for the bus.
CLAIMS_AT_ONCE = 32


class Outside(NamedTuple):
    """What an executor reaches beside the bus: its model, and the processes that it makes. The simulation has its own."""

    open_talker: OpenTalker = open_talker
    quarantine: MakeQuarantine = Quarantine


OUTSIDE = Outside()


async def serve(
    chassis: Chassis[ExecutorSettings], *, only: Ticket | None = None, outside: Outside = OUTSIDE
) -> None:
    """Own runs until told to stop, or carry the one run `only` to where this process may leave it.

    Raises `LeaseLost` when the others have declared this process dead.
    """
    settings, bus, runs, clock = chassis.settings, chassis.bus, chassis.runs, chassis.clock
    died = asyncio.Event()
    held: dict[str, Held] = {}
    circuits = Circuits()
    registration = _registration(settings, held, quarantined=only is not None)

    def notes() -> dict[str, str]:
        left_alone = circuits.summary(clock.monotonic())
        return {"models_left_alone": left_alone} if left_alone else {}

    async with (
        register(bus, clock, registration._replace(notes=notes), on_death=died.set) as liveness,
        asyncio.TaskGroup() as group,
    ):
        hosts = Hosts(bus)
        spending = Spending(
            bus.bucket("spending"), clock, limit=settings.tenant_tokens_per_day, boot=liveness.boot
        )
        background = [group.create_task(hosts.watch()), group.create_task(spending.watch())]
        offers, calls = Offerings(hosts, bus.store("blobs"), clock), Calls(bus, clock, liveness, hosts)
        workspaces = Workspaces(bus, clock, liveness, hosts, calls, shards=SHARDS)
        # Imports the model's client, which takes a second: after the registration, so that others see the process.
        # The sessions end before the talker closes: a dead process's runs meet no closed client on their way out.
        async with (
            outside.open_talker(settings, bus, clock, circuits) as talker,
            asyncio.TaskGroup() as sessions,
        ):
            hooks = CrashHooks(settings.test_hooks)
            rules = Rules(settings.policy, settings.redaction)
            bench = Workbench(
                bus, clock, hosts, offers, calls, workspaces, talker, runs, rules, hooks, spending
            )
            parts = SessionParts(
                bus, runs, clock, liveness.boot, registration.replica, until_progress=only is not None
            )
            quarantine = outside.quarantine(bus, runs, clock) if only is None else None
            claims = Claims(
                parts, bench, liveness, sessions, slots=settings.slots, quarantine=quarantine, held=held
            )
            if only is not None:
                await _carry(claims, only, chassis.stop, died)
            else:
                await _pull(claims, chassis, died)
            if died.is_set():
                raise LeaseLost("the others declared this process dead; it starts again under a new boot id")
            await claims.drain()
        for task in background:
            task.cancel()


def _registration(settings: ExecutorSettings, held: Mapping[str, Held], *, quarantined: bool) -> Registration:
    """What the process says of itself; one that carries a single run has no slot for another."""
    return Registration(
        service="executor",
        replica=f"{settings.replica_id}-quarantine" if quarantined else settings.replica_id,
        slots=0 if quarantined else settings.slots,
        model_configured=settings.model_configured,
        ttl_s=settings.lease_ttl_s,
        info={"policy": settings.policy.digest},
        free=lambda: 0 if quarantined else max(0, settings.slots - len(held)),
        silences=lambda: silences(held),
    )


async def _pull(claims: Claims, chassis: Chassis[ExecutorSettings], died: asyncio.Event) -> None:
    """Take tickets of all priorities until told to stop; none without a model."""
    queue = chassis.bus.queue
    async with asyncio.TaskGroup() as group:
        pullers = [
            group.create_task(
                queue.consume(spec, claims.take, concurrency=CLAIMS_AT_ONCE, ready=claims.free_slot)
            )
            for spec in tickets(chassis.bus.subjects)
            if chassis.settings.model_configured
        ]
        await first_of(chassis.stop, died)
        for task in pullers:
            task.cancel()


async def _carry(claims: Claims, ticket: Ticket, stop: asyncio.Event, died: asyncio.Event) -> None:
    """Carry one run; tells the supervisor on stdout when it is claimed."""
    held, task = claims.carry(ticket)
    done = asyncio.Event()
    task.add_done_callback(lambda _: done.set())
    await first_of(held.claimed, done, died)
    if held.claimed.is_set():
        sys.stdout.buffer.write(CLAIMED)
        sys.stdout.flush()
    await first_of(stop, died, done)
