"""Wake-ups and life records: the latest of every log first, then each new one, through restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from libs.bus.ports import Bus, LogKey, Wakeup
from libs.contracts.envelope import Record
from tests.bus.conftest import Site
from tests.bus.writing import draft, fresh_key
from tests.fakes.cluster import Deployment
from tests.fakes.waiting import eventually


async def test_wakeups_begin_with_the_latest_of_every_log(bus: Bus) -> None:
    old, new = fresh_key(), fresh_key()
    last = 0
    for number in range(1, 4):
        last = (await bus.log.append(draft(old, last, first=number, life=True))).header.stream_sequence
    await bus.log.append(draft(old, last, first=4))
    async with bus.log.wakeups() as wakeups:
        with anyio.fail_after(30):
            wakeup = await until(wakeups, old)
            assert wakeup.stream_sequence == last
            assert wakeup.header_state == "RUNNING"
            assert wakeup.record is not None
            assert wakeup.record.header.first == 3
            first = await bus.log.append(draft(new, 0, life=True))
            assert (await until(wakeups, new)).stream_sequence == first.header.stream_sequence


async def test_wakeups_go_on_through_a_restart(deployment: Deployment, bus: Bus) -> None:
    async with bus.log.wakeups() as wakeups:
        await deployment.restart()
        key = fresh_key()
        first = await bus.log.append(draft(key, 0, life=True))
        with anyio.fail_after(30):
            assert (await until(wakeups, key)).stream_sequence == first.header.stream_sequence


async def test_of_a_purged_log_its_tombstone_is_all_that_anybody_is_told(bus: Bus) -> None:
    key = fresh_key()
    last = 0
    for number in range(1, 4):
        last = (await bus.log.append(draft(key, last, first=number, life=True))).header.stream_sequence
    tombstone = await bus.log.append(draft(key, last, first=4, life=True))
    at = tombstone.header.stream_sequence
    await bus.log.purge(key, at)
    await bus.log.purge(key, at)
    assert await bus.log.read(key) == await bus.log.page(key, 0) == [tombstone]
    assert await bus.log.tail(key) == tombstone

    # A feed reads one replica, and of three the slowest purges a moment later: until then it has the record before too.
    async def waking() -> int:
        async with bus.log.wakeups() as wakeups:
            return (await until(wakeups, key)).stream_sequence

    async def alive() -> Record:
        async with bus.log.life(0, last - 1) as source:
            return await of(source, key)

    assert await eventually(waking, "the purge woke all", fits=lambda found: found == at) == at
    assert await eventually(alive, "the purge is told", fits=lambda found: found == tombstone) == tombstone


async def test_wakeups_come_from_every_shard(site: Site) -> None:
    async with site.connection("sharded", shards=2) as bus:
        await bus.ensure_topology()
        async with bus.log.wakeups() as wakeups:
            for shard in (0, 1, 0, 1):
                key = fresh_key(shard)
                await bus.log.append(draft(key, 0, life=True))
                with anyio.fail_after(10):
                    assert (await anext(wakeups)).key == key


async def test_life_begins_where_it_is_told_to_and_brings_life_records_only(bus: Bus) -> None:
    key = fresh_key()
    records: list[Record] = []
    last = 0
    for number in range(1, 11):
        record = await bus.log.append(draft(key, last, first=number, life=number % 2 == 0))
        records.append(record)
        last = record.header.stream_sequence
    life = records[1::2]
    async with bus.log.life(0, life[0].header.stream_sequence) as source:
        with anyio.fail_after(10):
            assert [await of(source, key) for _ in range(4)] == life[1:]
            later = await bus.log.append(draft(key, last, first=11, life=True))
            assert await of(source, key) == later


async def test_many_life_records_are_read_in_bounded_steps(site: Site, bus: Bus) -> None:
    start = await bus.log.append(draft(fresh_key(), 0, life=True))
    async with (
        site.connection() as reader,
        reader.log.life(0, start.header.stream_sequence) as source,
    ):
        written = [await bus.log.append(draft(fresh_key(), 0, life=True)) for _ in range(600)]
        with anyio.fail_after(20):
            assert [await anext(source) for _ in written] == written


async def until(wakeups: AsyncIterator[Wakeup], key: LogKey) -> Wakeup:
    while (wakeup := await anext(wakeups)).key != key:
        pass
    return wakeup


async def of(source: AsyncIterator[Record], key: LogKey) -> Record:
    while LogKey((record := await anext(source)).tenant, record.log_id) != key:
        pass
    return record
