"""The one function that appends: one winner, stored once, and never a guess about an unknown outcome."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from deploy.dev.nats_server import ServerSettings, nats_server
from libs.bus.connection import connect
from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Record
from libs.contracts.errors import AppendConflict, PerdureError, StorageFull
from tests.bus.conftest import PREFIX, Site
from tests.bus.writing import draft, expect_unbroken, fresh_key, texts, write
from tests.fakes.bus import bus_settings
from tests.fakes.cluster import Deployment
from tests.fakes.proxy import proxied

ROUNDS = 25
WRITERS = 5


async def test_a_record_is_returned_as_it_is_stored(bus: Bus) -> None:
    key = fresh_key()
    bus.set_writer("bsomebody", "1.2.3")
    record = await bus.log.append(draft(key, 0, "hello", life=True))
    assert (record.header.boot, record.header.state, record.header.record_class) == (
        "bsomebody",
        "RUNNING",
        "life",
    )
    assert await bus.log.tail(key) == record
    assert await bus.log.read(key) == [record]


async def test_of_many_writers_exactly_one_wins_each_round(site: Site) -> None:
    key = fresh_key()
    won: list[Record] = []
    lost: list[AppendConflict] = []

    async def write_on(bus: Bus, expected: int, number: int, writer: int) -> None:
        try:
            # Both classes: the fence is over the whole log, not over one subject.
            won.append(
                await bus.log.append(draft(key, expected, f"{writer}", first=number, life=writer % 2 == 0))
            )
        except AppendConflict as conflict:
            lost.append(conflict)

    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(site.connection()) for _ in range(WRITERS)]
        expected = 0
        for number in range(1, ROUNDS + 1):
            async with anyio.create_task_group() as group:
                for writer, bus in enumerate(buses):
                    group.start_soon(write_on, bus, expected, number, writer)
            assert len(won) == number
            expected = won[-1].header.stream_sequence
        assert len(lost) == ROUNDS * (WRITERS - 1)
        assert await buses[0].log.read(key) == won
    expect_unbroken(won)


async def test_a_conflict_names_the_newest_record(bus: Bus) -> None:
    key = fresh_key()
    records = await write(bus, key, 4)
    with pytest.raises(AppendConflict) as conflict:
        await bus.log.append(draft(key, records[0].header.stream_sequence, "late", first=2))
    assert conflict.value.last == records[-1].header.stream_sequence


async def test_a_record_behind_a_tail_that_does_not_exist_is_refused(bus: Bus) -> None:
    key = fresh_key()
    last = (await write(bus, key, 1))[-1].header.stream_sequence
    with pytest.raises(AppendConflict) as conflict:
        await bus.log.append(draft(key, last + 1000, "from the future", first=2))
    assert conflict.value.last == last


@pytest.mark.parametrize("command_on_top", [False, True])
async def test_a_record_whose_acknowledgement_was_lost_is_stored_once(
    deployment: Deployment, bus: Bus, *, command_on_top: bool
) -> None:
    key = fresh_key()
    async with (
        proxied(deployment.address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as cut_off,
    ):
        appended: list[Record] = []
        stored: list[Record] = []

        async def append() -> None:
            appended.append(await cut_off.log.append(draft(key, 0, "mine")))

        await cut_off.log.tail(key)
        proxy.mute = True
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(append)
                stored.append(await eventual_tail(bus, key))
                if command_on_top:
                    await bus.log.append(draft(key, stored[0].header.stream_sequence, "command", first=2))
                while proxy.lost == 0:
                    await anyio.sleep(0.01)
                assert appended == []
                proxy.mute = False
                proxy.cut()
    assert appended == stored
    assert texts(await bus.log.read(key)) == (["mine", "command"] if command_on_top else ["mine"])


async def test_an_append_outlives_a_crash_of_the_server(deployment: Deployment, bus: Bus) -> None:
    key = fresh_key()
    records = await write(bus, key, 1)

    async def go_on() -> None:
        last = records[-1].header.stream_sequence
        records.extend(await write(bus, key, 50, after=last, first=2))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(go_on)
            await deployment.crash()
    assert await bus.log.read(key) == records
    expect_unbroken(records)


async def test_a_large_string_moves_to_a_blob_and_comes_back_whole(bus: Bus) -> None:
    key = fresh_key()
    text = "größer als ein Satz " * 60_000
    record = await bus.log.append(draft(key, 0, text))
    assert len(record.body) < 10_000
    for seen in (record, await bus.log.tail(key), *(await bus.log.read(key))):
        assert seen is not None
        assert texts([seen]) == [text]


async def test_a_record_that_cannot_fit_is_refused_before_it_is_sent(bus: Bus) -> None:
    key = fresh_key()
    many = draft(key, 0)._replace(events=[*draft(key, 0, "y" * 7_000).events] * 100)
    with pytest.raises(PerdureError, match="split it"):
        await bus.log.append(many)
    assert await bus.log.tail(key) is None


async def test_a_late_writer_cannot_bring_back_a_purged_log(bus: Bus) -> None:
    key = fresh_key()
    records = await write(bus, key, 3)
    tombstone = records[-1].header.stream_sequence
    await bus.log.purge(key, tombstone)
    with anyio.fail_after(30):
        while await bus.log.read(key) != records[-1:]:
            await anyio.sleep(0.02)  # A replica that lags shows for a moment what the leader has purged.
    for expected in (0, records[0].header.stream_sequence, records[1].header.stream_sequence):
        with pytest.raises(AppendConflict):
            await bus.log.append(draft(key, expected, "late", first=4))
    assert await bus.log.read(key) == records[-1:]


async def test_a_full_store_says_so_and_stores_nothing(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path, store_bytes_max=4 * 1024 * 1024)
    async with nats_server(settings) as server, connect(bus_settings(server.address), SystemClock()) as bus:
        await bus.ensure_topology()
        key = fresh_key()
        stored: list[Record] = []
        with pytest.raises(StorageFull), anyio.fail_after(30):
            await fill(bus, key, stored)
        assert len(stored) > 2
        assert await bus.log.read(key) == stored


async def fill(bus: Bus, key: LogKey, stored: list[Record]) -> None:
    """Append until it fails."""
    last = 0
    while True:
        big = draft(key, last, "z" * 400_000, first=len(stored) + 1)
        stored.append(await bus.log.append(big))
        last = stored[-1].header.stream_sequence


async def eventual_tail(bus: Bus, key: LogKey) -> Record:
    with anyio.fail_after(10):
        while (record := await bus.log.tail(key)) is None:
            await anyio.sleep(0.01)
    return record
