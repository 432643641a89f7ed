"""Work queues: at least once, never acked unhandled, through deletions and restarts; what nobody can handle is kept."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from opentelemetry import trace

from libs.bus.jetstream import JetStream
from libs.bus.link import Credentials, Link
from libs.bus.ports import ACK, Bus, DeadLetter, Delivery, Outcome, dead, nak
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable, PayloadTooLarge
from libs.contracts.streams import ConsumerSpec, host_consumer
from tests.bus.conftest import Site
from tests.fakes.cluster import Deployment

_numbers = itertools.count(1)


class Handled:
    """A handler that remembers. `answers` says what becomes of the n-th delivery; the rest is acked."""

    def __init__(self, *answers: Outcome) -> None:
        self._answers = list(answers)
        self._send, self.received = anyio.create_memory_object_stream[Delivery](1_000)

    async def __call__(self, delivery: Delivery) -> Outcome:
        await self._send.send(delivery)
        return self._answers.pop(0) if self._answers else ACK

    async def next(self) -> Delivery:
        with anyio.fail_after(20):
            return await self.received.receive()

    def close(self) -> None:
        self._send.close()
        self.received.close()


@pytest.fixture
def spec(bus: Bus) -> ConsumerSpec:
    """A consumer that no other test has, on the stream of the tools."""
    return host_consumer(bus.subjects, f"b{next(_numbers)}")


@asynccontextmanager
async def consuming(
    bus: Bus,
    spec: ConsumerSpec,
    *answers: Outcome,
    concurrency: int = 4,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> AsyncGenerator[Handled]:
    handled = Handled(*answers)

    async def consume() -> None:
        await bus.queue.consume(spec, handled, concurrency=concurrency, ready=ready)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        yield handled
        group.cancel_scope.cancel()
    handled.close()


async def test_a_message_is_handled_once_and_gone(bus: Bus, spec: ConsumerSpec) -> None:
    async with consuming(bus, spec) as handled:
        for number in range(20):
            await bus.queue.publish(spec.filter_subject, b"%d" % number)
        bodies = {(await handled.next()).body for _ in range(20)}
    assert bodies == {b"%d" % number for number in range(20)}
    async with consuming(bus, spec) as again:
        await bus.queue.publish(spec.filter_subject, b"last")
        assert (await again.next()).body == b"last"


async def test_an_equal_message_id_is_stored_once(bus: Bus, spec: ConsumerSpec) -> None:
    for _ in range(3):
        await bus.queue.publish(spec.filter_subject, b"one", message_id=f"{spec.name}:1")
    await bus.queue.publish(spec.filter_subject, b"two", message_id=f"{spec.name}:2")
    async with consuming(bus, spec, concurrency=1) as handled:
        first, second = await handled.next(), await handled.next()
    assert (first.body, second.body) == (b"one", b"two")
    assert first.stream_created == second.stream_created != ""
    assert second.stream_sequence > first.stream_sequence
    assert first.subject == spec.filter_subject


async def test_what_is_given_back_comes_again_after_its_delay(bus: Bus, spec: ConsumerSpec) -> None:
    await bus.queue.publish(spec.filter_subject, b"again")
    async with consuming(bus, spec, nak(0.2), nak(0.0)) as handled:
        seen = [await handled.next() for _ in range(3)]
    assert [delivery.delivered for delivery in seen] == [1, 2, 3]
    assert len({delivery.stream_sequence for delivery in seen}) == 1


async def test_what_nobody_can_handle_is_kept_with_its_reason(bus: Bus, spec: ConsumerSpec) -> None:
    body = b"{broken %s" % spec.name.encode()
    await bus.queue.publish(spec.filter_subject, body)
    async with consuming(bus, spec, dead("it is broken: ü\nsecond line")) as handled:
        await handled.next()
        with anyio.fail_after(20):
            while not (kept := [one for one in await letters_of_tools(bus) if one.body == body]):
                await anyio.sleep(0.01)
    assert [one.reason for one in kept] == ["it is broken: \\xfc second line"]
    assert kept[0].origin == spec.filter_subject


async def letters_of_tools(bus: Bus) -> list[DeadLetter]:
    return (await bus.dead_letters.newest(kind="tools")).letters


async def test_what_is_given_back_for_later_keeps_nobody_waiting(bus: Bus, spec: ConsumerSpec) -> None:
    for body in (b"1", b"2", b"3"):
        await bus.queue.publish(spec.filter_subject, body)
    async with consuming(bus, spec, nak(0.5), nak(0.0), concurrency=1) as handled:
        assert [(await handled.next()).body for _ in range(5)] == [b"1", b"2", b"3", b"2", b"1"]


async def test_what_a_process_took_and_never_answered_comes_again_elsewhere(
    site: Site, bus: Bus, spec: ConsumerSpec
) -> None:
    spec = spec._replace(ack_wait_s=1.0)
    taken = anyio.Event()

    async def hold(_: Delivery) -> Outcome:
        taken.set()
        await anyio.sleep_forever()
        return ACK

    async def consume() -> None:
        await bus.queue.consume(spec, hold, concurrency=1)

    await bus.queue.publish(spec.filter_subject, b"held")
    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with anyio.fail_after(20):
            await taken.wait()
        group.cancel_scope.cancel()
    async with site.connection() as other, consuming(other, spec) as handled:
        await bus.queue.publish(spec.filter_subject, b"later")
        first, second = await handled.next(), await handled.next()
    assert [(one.body, one.delivered) for one in (first, second)] == [(b"later", 1), (b"held", 2)]


async def test_no_more_are_out_than_may_be_unanswered(site: Site, bus: Bus, spec: ConsumerSpec) -> None:
    spec = spec._replace(ack_pending_max=2)
    answer = anyio.Event()
    handled = Handled()

    async def slow(delivery: Delivery) -> Outcome:
        outcome = await handled(delivery)
        await answer.wait()
        return outcome

    async def consume(bus: Bus) -> None:
        await bus.queue.consume(spec, slow, concurrency=4)

    async with site.connection() as other, anyio.create_task_group() as group:
        group.start_soon(consume, bus)
        group.start_soon(consume, other)
        for body in (b"1", b"2", b"3"):
            await bus.queue.publish(spec.filter_subject, body)
        assert {(await handled.next()).body for _ in range(2)} == {b"1", b"2"}
        # Whoever is pulled after this would have been given the third one, if it might be out.
        await bus.queue.publish(spec.filter_subject, b"4")
        with anyio.move_on_after(0.2):
            await handled.received.receive()
            pytest.fail("a third one is out")
        answer.set()
        assert {(await handled.next()).body for _ in range(2)} == {b"3", b"4"}
        group.cancel_scope.cancel()
    handled.close()


async def test_of_two_processes_each_message_goes_to_one(site: Site, bus: Bus, spec: ConsumerSpec) -> None:
    bodies = [b"%d" % number for number in range(40)]
    async with (
        site.connection() as other,
        consuming(bus, spec, concurrency=1) as one,
        consuming(other, spec, concurrency=1) as two,
    ):
        for body in bodies:
            await bus.queue.publish(spec.filter_subject, body)
        seen: list[bytes] = []
        with anyio.fail_after(20):
            while len(seen) < len(bodies):
                for handled in (one, two):
                    with contextlib.suppress(anyio.WouldBlock):
                        seen.append(handled.received.receive_nowait().body)
                await anyio.sleep(0.001)
        await bus.queue.publish(spec.filter_subject, b"last")
        async with anyio.create_task_group() as group:
            for handled in (one, two):
                group.start_soon(last_of, handled, seen, group.cancel_scope)
    assert sorted(seen) == sorted([*bodies, b"last"])


async def last_of(handled: Handled, seen: list[bytes], found: anyio.CancelScope) -> None:
    seen.append((await handled.next()).body)
    found.cancel()


async def test_a_handler_that_fails_gets_its_message_again_and_the_others_are_handled(
    bus: Bus, spec: ConsumerSpec
) -> None:
    handled = Handled()
    failures: list[Exception] = [ValueError("a defect"), BusUnavailable("away")]

    async def fragile(delivery: Delivery) -> Outcome:
        if delivery.body == b"bad" and failures:
            raise failures.pop(0)
        return await handled(delivery)

    async def consume() -> None:
        await bus.queue.consume(spec, fragile, concurrency=1)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        await bus.queue.publish(spec.filter_subject, b"bad")
        await bus.queue.publish(spec.filter_subject, b"good")
        assert (await handled.next()).body == b"good"
        last = await handled.next()
        assert (last.body, last.delivered) == (b"bad", 3)
        group.cancel_scope.cancel()
    handled.close()


async def test_a_deleted_consumer_and_a_deleted_stream_are_made_again(
    deployment: Deployment, bus: Bus, spec: ConsumerSpec
) -> None:
    async with consuming(bus, spec) as handled:
        await bus.queue.publish(spec.filter_subject, b"before")
        first = await handled.next()
        for name in (f"CONSUMER.DELETE.{spec.stream}.{spec.name}", f"STREAM.DELETE.{spec.stream}"):
            await call_api(deployment, name)
            await bus.queue.publish(spec.filter_subject, name.encode())
            # An ack may have been on its way when the consumer went: that message comes once more.
            while (last := await handled.next()).body != name.encode():
                assert last.body == first.body
    # The message's name for ever is not the one of the same sequence in the stream that was there before.
    assert first.stream_created != last.stream_created


async def test_a_queue_goes_on_after_a_restart(deployment: Deployment, bus: Bus, spec: ConsumerSpec) -> None:
    async with consuming(bus, spec) as handled:
        await bus.queue.publish(spec.filter_subject, b"before")
        assert (await handled.next()).body == b"before"
        await deployment.restart()
        await bus.queue.publish(spec.filter_subject, b"after")
        bodies = {(await handled.next()).body}
        # The ack of the first may have died with the server.
        while b"after" not in bodies:
            bodies.add((await handled.next()).body)


async def test_no_more_are_handled_at_once_than_there_are_hands(bus: Bus, spec: ConsumerSpec) -> None:
    running, most = 0, 0
    done, all_busy = anyio.Event(), anyio.Event()
    handled = 0

    async def slow(_: Delivery) -> Outcome:
        nonlocal running, most, handled
        running += 1
        most = max(most, running)
        if running == 3:
            all_busy.set()
        # The first three hold out until there are three; then each lets others in before it ends.
        await all_busy.wait()
        for _turn in range(10):
            await checkpoint()
        running -= 1
        handled += 1
        if handled == 30:
            done.set()
        return ACK

    async def consume() -> None:
        await bus.queue.consume(spec, slow, concurrency=3)

    for number in range(30):
        await bus.queue.publish(spec.filter_subject, b"%d" % number)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await done.wait()
            group.cancel_scope.cancel()
    assert most == 3


async def test_nothing_is_pulled_before_the_gate_opens(site: Site, bus: Bus, spec: ConsumerSpec) -> None:
    gate = anyio.Event()
    asked = anyio.Event()

    async def ready() -> None:
        asked.set()
        await gate.wait()

    await bus.queue.publish(spec.filter_subject, b"for the quick one")
    async with consuming(bus, spec, ready=ready) as waiting:
        with anyio.fail_after(10):
            await asked.wait()
        async with (
            site.connection() as other,
            consuming(other, spec) as quick,
        ):
            assert (await quick.next()).body == b"for the quick one"
        await bus.queue.publish(spec.filter_subject, b"for the other")
        gate.set()
        assert (await waiting.next()).body == b"for the other"


async def test_a_cancelled_loop_leaves_its_messages_to_others_at_once(bus: Bus, spec: ConsumerSpec) -> None:
    await bus.queue.publish(spec.filter_subject, b"one")
    async with consuming(bus, spec, concurrency=1) as handled:
        assert (await handled.next()).body == b"one"
    # The ack wait is 15 s: a message that the cancelled pull had swallowed would come too late.
    async with consuming(bus, spec, concurrency=1) as again:
        await bus.queue.publish(spec.filter_subject, b"two")
        with anyio.fail_after(5):
            assert (await again.next()).body == b"two"


async def test_removing_a_consumer_removes_what_waits_for_it(bus: Bus, spec: ConsumerSpec) -> None:
    async with consuming(bus, spec) as handled:
        await bus.queue.publish(spec.filter_subject, b"handled")
        await handled.next()
    await bus.queue.publish(spec.filter_subject, b"waits for nobody")
    await bus.queue.remove_consumer(spec)
    await bus.queue.remove_consumer(spec)
    async with consuming(bus, spec) as handled:
        await bus.queue.publish(spec.filter_subject, b"for the next")
        assert (await handled.next()).body == b"for the next"


async def test_the_span_of_a_message_belongs_to_the_trace_of_its_sender(bus: Bus, spec: ConsumerSpec) -> None:
    context = trace.SpanContext(
        trace_id=0x1234567890ABCDEF1234567890ABCDEF,
        span_id=0x1234567890ABCDEF,
        is_remote=False,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    seen: list[int] = []
    delivered: list[Delivery] = []
    handled = Handled()

    async def traced(delivery: Delivery) -> Outcome:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return await handled(delivery)

    async def consume() -> None:
        await bus.queue.consume(spec, traced, concurrency=1)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with trace.use_span(trace.NonRecordingSpan(context)):
            await bus.queue.publish(spec.filter_subject, b"traced")
        delivered.append(await handled.next())
        group.cancel_scope.cancel()
    handled.close()
    assert delivered[0].headers["traceparent"].split("-")[1] == f"{context.trace_id:032x}"
    assert seen == [context.trace_id]


async def test_a_message_that_the_server_would_hang_up_on_is_not_sent(bus: Bus, spec: ConsumerSpec) -> None:
    with pytest.raises(PayloadTooLarge):
        await bus.queue.publish(spec.filter_subject, b"x" * 1_100_000)
    assert bus.connected()


async def call_api(deployment: Deployment, name: str, body: object = None) -> bytes:
    """A call that only an operator makes."""
    address = deployment.address
    link = Link(Credentials(address.url, address.user, address.password, None, "operator"), SystemClock())
    await link.open()
    try:
        return await JetStream(link, SystemClock()).api_patiently(name, body)
    finally:
        await link.close()
