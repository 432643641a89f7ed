"""Following logs: every record once and in order, through gaps, restarts, overflow and losses that leave no trace."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from libs.bus.connection import connect
from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Record
from tests.bus.conftest import PREFIX, Site
from tests.bus.writing import draft, expect_unbroken, fresh_key, take, write
from tests.fakes.cluster import Deployment
from tests.fakes.proxy import proxied

FOLLOWS = 2_000


async def test_a_follower_gets_the_past_and_then_what_comes(bus: Bus) -> None:
    key = fresh_key()
    written = await write(bus, key, 20)
    with anyio.fail_after(10):
        async with (
            bus.log.follow(key, 0) as whole,
            bus.log.follow(key, written[9].header.stream_sequence) as rest,
        ):
            written += await write(bus, key, 20, after=written[-1].header.stream_sequence, first=21)
            assert await take(whole, 40) == written
            assert await take(rest, 30) == written[10:]


async def test_a_cancelled_wait_loses_nothing(bus: Bus) -> None:
    key = fresh_key()
    async with bus.log.follow(key, 0) as follow:
        for _ in range(3):
            with anyio.move_on_after(0.02):
                await anext(follow)
        written = await write(bus, key, 3)
        with anyio.fail_after(10):
            assert await take(follow, 3) == written


async def test_a_follower_elsewhere_survives_a_crash_in_the_middle_of_a_thousand_records(
    deployment: Deployment, bus: Bus
) -> None:
    key = fresh_key()
    written: list[Record] = []
    seen: list[Record] = []
    crash = anyio.Event()

    async def write_all() -> None:
        last = 0
        for number in range(1, 1_001):
            record = await bus.log.append(draft(key, last, first=number))
            written.append(record)
            last = record.header.stream_sequence
            if number == 500:
                crash.set()

    async with (
        connect(deployment.settings(PREFIX), SystemClock()) as other,
        other.log.follow(key, 0) as follow,
    ):
        with anyio.fail_after(40):
            async with anyio.create_task_group() as group:
                group.start_soon(write_all)
                seen += await take(follow, 400)
                await crash.wait()
                await deployment.crash()
                seen += await take(follow, 600)
    assert seen == written
    expect_unbroken(seen)


async def test_a_lost_last_record_is_found_without_another_one_coming(
    deployment: Deployment, bus: Bus
) -> None:
    key = fresh_key()
    written = await write(bus, key, 1)
    async with (
        proxied(deployment.address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as deaf,
        deaf.log.follow(key, 0) as follow,
    ):
        with anyio.fail_after(20):
            assert await take(follow, 1) == written
            before = proxy.lost
            proxy.mute = True
            written += await write(bus, key, 1, after=written[0].header.stream_sequence, first=2)
            while proxy.lost == before:
                await anyio.sleep(0.01)
            proxy.mute = False
            assert await take(follow, 1) == written[1:]


async def test_what_a_slow_follower_could_not_hold_is_read_again(site: Site, bus: Bus) -> None:
    key = fresh_key()
    async with site.connection() as other, bus.log.follow(key, 0) as slow:
        written = await write(other, key, 700)
        with anyio.fail_after(20):
            assert await take(slow, 700) == written


async def test_thousands_of_logs_are_followed_by_one_process(bus: Bus) -> None:
    keys = [fresh_key() for _ in range(FOLLOWS)]
    some = keys[:: FOLLOWS // 20]
    with anyio.fail_after(60):
        async with AsyncExitStack() as stack:
            follows = {key: await stack.enter_async_context(bus.log.follow(key, 0)) for key in keys}
            first: dict[LogKey, Record] = {}
            for key in some:
                first[key] = (await write(bus, key, 1))[0]
            for key in some:
                assert await take(follows[key], 1) == [first[key]]
