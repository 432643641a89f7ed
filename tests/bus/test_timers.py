"""Timers: they fire when they are due, once, whoever set them, through crashes; and they may all be lost."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import msgspec
import pytest

from libs.bus.ports import ACK, Bus, Delivery, LogKey, Outcome, nak
from libs.chassis.clock import SystemClock
from libs.contracts.ids import derived_run_id
from libs.contracts.streams import ConsumerSpec, fired_consumer
from libs.contracts.tasks import Timer
from tests.bus.test_queue import call_api
from tests.fakes.cluster import Deployment
from tests.fakes.waiting import eventually

CLOCK = SystemClock()
SOON, LATER = timedelta(seconds=0.3), timedelta(hours=1)
_numbers = itertools.count(1)


@pytest.fixture
def run() -> LogKey:
    """A run that no other test has."""
    return LogKey("t", derived_run_id(1, "timers", str(next(_numbers))))


def fired_of(bus: Bus, run: LogKey) -> ConsumerSpec:
    """A consumer of this run's fired timers alone."""
    whole = fired_consumer(bus.subjects)
    return whole._replace(name=run.log_id, filter_subject=bus.subjects.fired(run.log_id, 0)[:-1] + "*")


class Fired:
    """The timers of a run, as they fire."""

    def __init__(self, *answers: Outcome) -> None:
        self._answers = list(answers)
        self._send, self._receive = anyio.create_memory_object_stream[Timer](1_000)

    async def take(self, delivery: Delivery) -> Outcome:
        await self._send.send(msgspec.json.decode(delivery.body, type=Timer))
        return self._answers.pop(0) if self._answers else ACK

    async def next(self) -> Timer:
        with anyio.fail_after(30):
            return await self._receive.receive()

    def close(self) -> None:
        self._send.close()
        self._receive.close()


@asynccontextmanager
async def firing(bus: Bus, run: LogKey, *answers: Outcome) -> AsyncGenerator[Fired]:
    fired, spec = Fired(*answers), fired_of(bus, run)

    async def consume() -> None:
        await bus.queue.consume(spec, fired.take, concurrency=4)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        yield fired
        group.cancel_scope.cancel()
    fired.close()
    await bus.queue.remove_consumer(spec)


async def test_a_timer_fires_when_it_is_due_and_names_what_it_was_set_for(bus: Bus, run: LogKey) -> None:
    # Milliseconds are all that a due time has on the wire.
    due = (CLOCK.now() + timedelta(seconds=1)).replace(microsecond=0)
    await bus.timers.arm(run, 7, due)
    assert (run.log_id, 7) in await bus.timers.standing()
    async with firing(bus, run) as fired:
        timer = await fired.next()
    assert CLOCK.now() >= due
    assert timer == Timer(tenant="t", run_id=run.log_id, sequence=7)
    await until_handled(bus, run, 7)


async def test_a_timer_that_is_past_due_fires_at_once(bus: Bus, run: LogKey) -> None:
    async with firing(bus, run) as fired:
        await bus.timers.arm(run, 7, CLOCK.now() - LATER)
        assert (await fired.next()).sequence == 7


async def test_setting_a_timer_again_replaces_it(bus: Bus, run: LogKey) -> None:
    for _ in range(3):
        await bus.timers.arm(run, 7, CLOCK.now() + LATER)
    async with firing(bus, run) as fired:
        await bus.timers.arm(run, 7, CLOCK.now() + SOON)
        await bus.timers.arm(run, 8, CLOCK.now() + 2 * SOON)
        assert [(await fired.next()).sequence for _ in range(2)] == [7, 8]
    for sequence in (7, 8):
        await until_handled(bus, run, sequence)


async def test_a_timer_that_was_taken_back_never_fires(bus: Bus, run: LogKey) -> None:
    async with firing(bus, run) as fired:
        await bus.timers.arm(run, 7, CLOCK.now() + SOON)
        await bus.timers.arm(run, 8, CLOCK.now() + 2 * SOON)
        await bus.timers.cancel(run.log_id, 7)
        await bus.timers.cancel(run.log_id, 7)
        assert (await fired.next()).sequence == 8


async def test_a_fired_timer_stands_until_it_is_handled(bus: Bus, run: LogKey) -> None:
    await bus.timers.arm(run, 7, CLOCK.now())
    async with firing(bus, run, nak(0.2)) as fired:
        await fired.next()
        assert (run.log_id, 7) in await bus.timers.standing()
        # What has fired stays fired.
        await bus.timers.cancel(run.log_id, 7)
        assert (await fired.next()).sequence == 7
        await until_handled(bus, run, 7)


async def test_timers_survive_a_crash_and_those_that_came_due_meanwhile_fire(
    deployment: Deployment, bus: Bus, run: LogKey
) -> None:
    await bus.timers.arm(run, 7, CLOCK.now() + SOON)
    await bus.timers.arm(run, 8, CLOCK.now() + LATER)
    await deployment.crash()
    async with firing(bus, run) as fired:
        assert (await fired.next()).sequence == 7
    assert (run.log_id, 8) in await bus.timers.standing()
    await bus.timers.cancel(run.log_id, 8)


async def test_the_stream_may_be_deleted_and_timers_set_again(
    deployment: Deployment, bus: Bus, run: LogKey
) -> None:
    await bus.timers.arm(run, 7, CLOCK.now() + LATER)
    await call_api(deployment, f"STREAM.DELETE.{bus.subjects.stream('timers')}")
    assert (run.log_id, 7) not in await bus.timers.standing()
    async with firing(bus, run) as fired:
        await bus.timers.arm(run, 7, CLOCK.now())
        assert (await fired.next()).sequence == 7


async def until_handled(bus: Bus, run: LogKey, sequence: int) -> None:
    """Wait until a timer stands no longer; its ack may still be on its way."""
    await eventually(
        bus.timers.standing,
        "the timer stands no longer",
        fits=lambda seen: (run.log_id, sequence) not in seen,
    )
