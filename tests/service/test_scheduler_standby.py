"""Two schedulers: one acts, the other takes over; two leaders at once would still send one ticket."""

from __future__ import annotations

import asyncio

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bucket, Bus
from libs.chassis.clock import SystemClock
from libs.contracts.run import RunStatus
from libs.contracts.subjects import leader_key
from services.scheduler.leadership import Leadership
from tests.fakes.waiting import until
from tests.service.scheduler_peers import QUICK, Deployment, executor, scheduler


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def test_two_schedulers_send_one_ticket_a_life_record(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as one, scheduler(place) as two:
        await until(lambda: one.leads or two.leads, "one leads")
        runs = [await place.create() for _ in range(30)]
        for run in runs:
            await place.until_status(run, RunStatus.RUNNING)
        assert [peer.tickets_of(run) for run in runs] == [1] * 30
        assert one.leads != two.leads


async def test_a_drained_leader_is_replaced_without_waiting_for_its_lease(place: Deployment) -> None:
    # A lease that outlives the patience of this test: only letting go of it can be what helps.
    timing = QUICK._replace(lead_s=300.0)
    async with executor(place), scheduler(place, timing=timing) as one:
        await until(lambda: one.leads, "the first leads")
        async with scheduler(place, timing=timing) as two:
            run = await place.create()
            await until(lambda: len(two.scheduler.rows) == 1, "the second stands by")
            await one.drain()
            await until(lambda: two.leads, "the second leads")
            await place.until_status(run, RunStatus.RUNNING)


async def test_who_lets_go_of_the_lead_late_leaves_it_to_who_has_it_by_then(bus: Bus) -> None:
    leases, group = bus.bucket("leases"), 7
    one = await _cut_off(leases, group)
    await leases.put(leader_key(group), b"btwo")
    await one.release()
    entry = await leases.get(leader_key(group))
    assert entry is not None
    assert entry.value == b"btwo"


async def test_a_leader_whose_last_renewal_was_cut_off_lets_go_all_the_same(bus: Bus) -> None:
    leases, group = bus.bucket("leases"), 8
    one = await _cut_off(leases, group)
    # What it sent last, and did not hear of.
    await leases.put(leader_key(group), b"bone")
    await one.release()
    assert await leases.get(leader_key(group)) is None


async def test_a_killed_leader_is_replaced_when_its_lease_ends(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as one:
        await until(lambda: one.leads, "the first leads")
        async with scheduler(place) as two:
            await one.kill()
            runs = [await place.create() for _ in range(3)]
            for run in runs:
                await place.until_status(run, RunStatus.RUNNING)
            assert two.leads
            assert [peer.tickets_of(run) for run in runs] == [1] * 3


async def test_what_waited_when_the_leader_died_is_ticketed_by_the_next(place: Deployment) -> None:
    async with scheduler(place) as one:
        await until(lambda: one.leads, "the first leads")
        async with scheduler(place) as two:
            runs = [await place.create() for _ in range(3)]
            await until(lambda: len(two.scheduler.rows) == 3, "the second knows them too")
            await one.kill()
            await until(lambda: two.leads, "the second leads")
            async with executor(place):
                for run in runs:
                    await place.until_status(run, RunStatus.RUNNING)


async def test_the_lead_is_taken_again_when_its_key_is_deleted(place: Deployment) -> None:
    async with executor(place), scheduler(place) as one:
        await until(lambda: one.leads, "it leads")
        await place.bus.bucket("leases").delete(leader_key(0))
        run = await place.create()
        await place.until_status(run, RunStatus.RUNNING)
        await until(lambda: one.leads, "it leads again")


async def _cut_off(leases: Bucket, group: int) -> Leadership:
    """One that leads as `bone`, and whose campaign was cancelled."""
    led = asyncio.Event()
    one = Leadership(leases, SystemClock(), boot="bone", group=group, ttl_s=300.0, gained=led.set)
    campaign = asyncio.create_task(one.campaign())
    await led.wait()
    campaign.cancel()
    await asyncio.wait({campaign})
    return one
