"""Tokens of a tenant's day: every process counts its own, all know the sum, and nothing is counted twice or lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from libs.bus.ports import Bus
from libs.bus.spending import Spending
from libs.chassis.clock import SystemClock
from tests.fakes.waiting import eventually

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)

_numbers = itertools.count(1)


class CalendarClock(SystemClock):
    """Real time under a date of the test's own."""

    def __init__(self) -> None:
        self.at = NOON

    def now(self) -> datetime:
        return self.at


def tenant() -> str:
    """One that no other test has."""
    return f"spender-{next(_numbers)}"


@asynccontextmanager
async def spending(bus: Bus, boot: str, clock: CalendarClock, limit: int = 100) -> AsyncGenerator[Spending]:
    """A process that counts and watches."""
    one = Spending(bus.bucket("spending"), clock, limit=limit, boot=boot)
    watching = asyncio.create_task(one.watch())
    try:
        yield one
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def over(one: Spending, who: str) -> datetime:
    """When the tenant may go on, once this process has heard that it may not."""

    async def look() -> datetime | None:
        return one.over_until(who)

    return await eventually(look, f"the end of the day's tokens of {who}")


async def test_what_several_processes_buy_adds_up_in_all_of_them(bus: Bus) -> None:
    clock, who = CalendarClock(), tenant()
    async with (
        spending(bus, "boot-a", clock) as first,
        spending(bus, "boot-b", clock) as second,
        spending(bus, "", clock) as gateway,
    ):
        for _ in range(3):
            await first.bought(who, 20)
            await second.bought(who, 13)
        assert first.over_until("somebody-else") is None
        await second.bought(who, 1)
        assert [await over(one, who) for one in (first, second, gateway)] == [MIDNIGHT] * 3


async def test_a_process_that_dies_leaves_what_it_bought_and_its_successor_begins_at_nothing(
    bus: Bus,
) -> None:
    clock, who = CalendarClock(), tenant()
    async with spending(bus, "boot-c", clock) as dying:
        await dying.bought(who, 60)
    async with spending(bus, "boot-d", clock) as successor, spending(bus, "boot-e", clock) as late:
        await successor.bought(who, 39)
        assert late.over_until(who) is None
        await successor.bought(who, 1)
        assert await over(late, who) == MIDNIGHT


async def test_concurrent_turns_of_one_process_are_all_counted(bus: Bus) -> None:
    clock, who = CalendarClock(), tenant()
    async with spending(bus, "boot-f", clock, limit=50) as one:
        await asyncio.gather(*(one.bought(who, 1) for _ in range(50)))
    async with spending(bus, "boot-g", clock, limit=50) as other:
        assert await over(other, who) == MIDNIGHT


async def test_with_the_next_day_all_begins_anew(bus: Bus) -> None:
    clock, who = CalendarClock(), tenant()
    async with spending(bus, "boot-h", clock) as one, spending(bus, "boot-i", clock) as other:
        await one.bought(who, 100)
        assert await over(other, who) == MIDNIGHT
        clock.at += timedelta(hours=12)
        assert (one.over_until(who), other.over_until(who)) == (None, None)
        await one.bought(who, 99)
        assert one.over_until(who) is None
        await one.bought(who, 1)
        assert await over(other, who) == MIDNIGHT + timedelta(days=1)


async def test_without_a_limit_nothing_is_written_or_watched(bus: Bus) -> None:
    who = tenant()
    one = Spending(bus.bucket("spending"), CalendarClock(), limit=None, boot="boot-j")
    await one.watch()
    await one.bought(who, 10**9)
    assert one.over_until(who) is None
    assert await bus.bucket("spending").entries(f"2026-11-30.{who}.") == []
