"""Deltas on their way to the live subjects: together, in order, and none behind the end of its call."""

import asyncio

import msgspec

from libs.bus.twin.network import QuietNetwork
from libs.bus.twin.server import TwinServer
from libs.contracts.live import ModelDelta
from services.executor.endpoint.deltas import COALESCE_S, sending
from tests.fakes.clock import QuickClock

TENANT, FIRST, SECOND = "local", "run_0_a", "run_0_b"


async def test_what_the_calls_of_a_process_say_leaves_coalesced_and_nothing_follows_the_end_of_a_call() -> (
    None
):
    clock = QuickClock()
    bus = TwinServer(clock).connect("test", QuietNetwork())
    async with (
        asyncio.timeout(5),
        bus.wire.listen(f"{bus.subjects.prefix}.live.>") as heard,
        sending(bus, clock) as live,
    ):

        async def next_delta() -> tuple[str, ModelDelta]:
            message = await anext(heard)
            return message.subject, msgspec.json.decode(message.body, type=ModelDelta)

        with live.of(TENANT, FIRST, 1) as first, live.of(TENANT, SECOND, 7) as second:
            first.add(1, "never shown", "")
            first.add(2, "a", "")
            second.add(1, "", "hm")
            first.add(2, "b", "")
            told = dict([await next_delta(), await next_delta()])
            assert told == {
                bus.subjects.live(TENANT, FIRST): ModelDelta(
                    run_id=FIRST, iteration=1, attempt=2, content="ab"
                ),
                bus.subjects.live(TENANT, SECOND): ModelDelta(
                    run_id=SECOND, iteration=7, attempt=1, reasoning="hm"
                ),
            }
            assert clock.slept == [COALESCE_S]
            second.add(1, "too late", "")
        with live.of(TENANT, FIRST, 2) as first:
            first.add(1, "c", "")
            assert (await next_delta())[1].content == "c"


async def test_a_defect_in_sending_ends_no_turn() -> None:
    clock = QuickClock()
    bus = TwinServer(clock).connect("test", QuietNetwork())
    before = asyncio.all_tasks()
    async with asyncio.timeout(5), sending(bus, clock) as live:
        with live.of(TENANT, FIRST, 1) as first:
            # Half a character, which no message can hold; the stream's reader lets none through.
            first.add(1, "\ud83d", "")
            while asyncio.all_tasks() - before:
                await asyncio.sleep(0)
            first.add(1, "more", "")
