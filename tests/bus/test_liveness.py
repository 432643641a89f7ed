"""Leases: absence is a suspicion, death is a write, and between the two exactly one wins."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from libs.bus.connection import connect
from libs.bus.liveness import Lease, Registration, process_start, register
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.leases import LeaseValue
from libs.contracts.subjects import replica_key
from libs.contracts.tools import CancelCalls, ControlMessage, ControlReply
from tests.bus.conftest import PREFIX
from tests.fakes.cluster import Deployment
from tests.fakes.proxy import proxied
from tests.fakes.replica_process import Given
from tests.fakes.waiting import eventually, until

# For those that are to lapse; and for those that must not, however busy the machine is.
TTL_S = 1.0
KEPT_S = 3.0
_numbers = itertools.count(1)


@pytest.fixture
def replica() -> str:
    """A replica id that no other test has."""
    return f"replica{next(_numbers)}"


def registration(replica: str, service: str = "executor", ttl_s: float = TTL_S) -> Registration:
    return Registration(
        service, replica, 4, model_configured=True, ttl_s=ttl_s, info={"zone": "a"}, free=lambda: 3
    )


@asynccontextmanager
async def leased(
    bus: Bus,
    replica: str,
    service: str = "scheduler",
    on_death: Callable[[], None] = lambda: None,
    ttl_s: float = TTL_S,
) -> AsyncGenerator[Lease]:
    asked = registration(replica, service, ttl_s)
    async with register(bus, SystemClock(), asked, on_death=on_death) as lease:
        yield lease


@asynccontextmanager
async def process(
    deployment: Deployment, replica: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Another process with a lease, and its boot id. Killed at the end."""
    address = deployment.address
    given = Given(address.url, address.user, address.password, PREFIX, replica, TTL_S)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.fakes.replica_process", msgspec.json.encode(given).decode()),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield child, await line(child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def line(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    with anyio.fail_after(20):
        return (await child.stdout.readline()).decode().strip()


async def eventually_dead(lease: Lease, boot: str) -> None:
    await eventually(lambda: lease.declare_dead_if_gone(boot), f"the death of {boot}")


async def test_a_process_is_listed_as_it_registered(bus: Bus, replica: str) -> None:
    async with leased(bus, replica, "executor", ttl_s=KEPT_S) as lease:
        assert lease.confirmed()
        found = [other for other in await lease.replicas("executor") if other.boot == lease.boot]
        assert [(r.replica, r.slots, r.free, r.info, r.dead) for r in found] == [
            (replica, 4, 3, {"zone": "a"}, False)
        ]
        assert lease.boot not in {other.boot for other in await lease.replicas("toolhost")}


async def test_a_lease_stays_confirmed_while_it_is_renewed(bus: Bus, replica: str) -> None:
    clock = SystemClock()
    async with leased(bus, replica, ttl_s=KEPT_S) as lease:
        began = clock.monotonic()
        with anyio.fail_after(20):
            while clock.monotonic() - began < 1.2 * KEPT_S:
                assert lease.confirmed()
                await anyio.sleep(0.05)
        assert not await lease.declare_dead_if_gone(lease.boot)


async def test_a_process_that_ends_is_nobody_to_wait_for(bus: Bus, replica: str) -> None:
    async with leased(bus, replica) as lease:
        async with leased(bus, f"{replica}-other", "executor") as other:
            boot = other.boot
        assert await lease.is_dead(boot)
        assert await lease.declare_dead_if_gone(boot)


async def test_a_killed_process_is_declared_dead_once_its_lease_has_lapsed(
    deployment: Deployment, bus: Bus, replica: str
) -> None:
    async with leased(bus, f"{replica}-asker") as lease, process(deployment, replica) as (child, boot):
        assert not await lease.declare_dead_if_gone(boot)
        child.kill()
        await child.wait()
        assert not await lease.is_dead(boot)
        await eventually_dead(lease, boot)
        assert [r.boot for r in await lease.replicas("executor") if r.dead and r.boot == boot] == [boot]


async def test_a_frozen_process_is_declared_dead_and_learns_it_when_it_wakes_up(
    deployment: Deployment, bus: Bus, replica: str
) -> None:
    async with leased(bus, f"{replica}-asker") as lease, process(deployment, replica) as (child, boot):
        child.send_signal(signal.SIGSTOP)
        await eventually_dead(lease, boot)
        child.send_signal(signal.SIGCONT)
        assert await line(child) == "dead"
        assert await lease.is_dead(boot)


async def test_a_frozen_process_that_nobody_missed_takes_its_lease_up_again(
    deployment: Deployment, bus: Bus, replica: str
) -> None:
    async with leased(bus, f"{replica}-asker") as lease, process(deployment, replica) as (child, boot):

        async def listed() -> bool:
            return boot in {other.boot for other in await lease.replicas()}

        child.send_signal(signal.SIGSTOP)
        await eventually(listed, "its lease lapses", fits=lambda seen: not seen)
        child.send_signal(signal.SIGCONT)
        await eventually(listed, "it holds a lease again")
        assert not await lease.is_dead(boot)


async def test_a_lapsed_process_that_answers_is_not_declared_dead(bus: Bus, replica: str) -> None:
    async with leased(bus, replica) as lease, leased(bus, f"{replica}-other") as other:
        # Its key is gone, as after an outage of the bus, but it lives and says so.
        await bus.bucket("leases").delete(replica_key(other.boot))
        assert not await lease.declare_dead_if_gone(other.boot)
        await eventually(
            lease.replicas, "it is listed", fits=lambda seen: other.boot in {one.boot for one in seen}
        )
        assert not await lease.is_dead(other.boot)


async def test_nobody_is_declared_dead_by_a_process_whose_own_lease_is_young(bus: Bus, replica: str) -> None:
    async with leased(bus, replica) as lease:
        assert not await lease.declare_dead_if_gone("bnobody")
        await eventually_dead(lease, "bnobody")


async def test_a_process_that_reads_its_death_stops_for_good(bus: Bus, replica: str) -> None:
    deaths: list[str] = []
    async with (
        leased(bus, f"{replica}-asker") as lease,
        leased(bus, replica, on_death=lambda: deaths.append("died")) as other,
    ):
        value = msgspec.json.decode(b"{}", type=dict[str, object]) | {
            "boot": other.boot,
            **dict.fromkeys(("service", "replica", "host"), ""),
            **dict.fromkeys(("pid", "process_start", "slots", "free"), 0),
            "model_configured": False,
            "dead": True,
        }
        await bus.bucket("leases").put(replica_key(other.boot), msgspec.json.encode(value))
        await until(lambda: deaths, "it has read of its death")
        assert not other.confirmed()
        assert await lease.is_dead(other.boot)
    assert deaths == ["died"]


async def test_a_new_process_of_a_replica_buries_its_predecessor_at_once(bus: Bus, replica: str) -> None:
    async with leased(bus, f"{replica}-asker") as lease, leased(bus, replica, "executor") as former:
        bucket = bus.bucket("leases")
        key = replica_key("bformer")
        own = await bucket.get(replica_key(former.boot))
        assert own is not None
        value = msgspec.json.decode(own.value, type=LeaseValue)
        # A pid that exists, but of a process that started at another time.
        gone = msgspec.structs.replace(value, boot="bformer", process_start=value.process_start + 1)
        await bucket.put(key, msgspec.json.encode(gone))
        async with leased(bus, replica, "executor"):
            assert await lease.is_dead("bformer")
            # The one that lives, here this very process, is left alone.
            assert not await lease.is_dead(former.boot)


async def test_a_process_cut_off_from_the_bus_is_not_confirmed(deployment: Deployment, replica: str) -> None:
    async with (
        proxied(deployment.servers[0].address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as bus,
        leased(bus, replica, ttl_s=KEPT_S) as lease,
    ):
        assert lease.confirmed()
        proxy.mute = True
        await until(lambda: not lease.confirmed(), "the lease is not confirmed")
        proxy.mute = False
        proxy.cut()
        await until(lease.confirmed, "the lease is confirmed again")


async def test_control_messages_reach_the_process(bus: Bus, replica: str) -> None:
    asked: list[ControlMessage] = []

    async def control(message: ControlMessage) -> ControlReply:
        asked.append(message)
        return ControlReply(boot="b", ended=2)

    async with register(
        bus, SystemClock(), registration(replica), control=control, on_death=lambda: None
    ) as lease:
        cancel = CancelCalls(run_id="run_0_x", epoch=3)
        answer = await bus.wire.request(
            bus.subjects.control(lease.boot), msgspec.json.encode(cancel), timeout_s=5
        )
    assert msgspec.json.decode(answer, type=ControlReply).ended == 2
    assert asked == [cancel]


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert process_start(2**22 + 1) is None
