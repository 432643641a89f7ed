"""`Queue` of one process on the twin.

Invariant: as on the servers: a message is acked only after its handler said so, and cancelling a loop gives back what
was not begun.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.bus.counts import Count
from libs.bus.handling import handled, held
from libs.bus.ports import Delivery, Handler, Outcome
from libs.bus.twin.link import Link
from libs.bus.twin.work import Find, StreamStore, matches
from libs.contracts.clock import Clock
from libs.contracts.envelope import TRACEPARENT
from libs.contracts.errors import PayloadTooLarge
from libs.contracts.streams import MESSAGE_BYTES_MAX, ConsumerSpec
from libs.contracts.subjects import Subjects

# A puller asks again when it hears nothing of its pull for two and a half heartbeats (`libs/bus/pull.py`).
SILENCE_S = 5.0
REASON, ORIGIN = "Perdure-Reason", "Perdure-Origin"

_log = logging.getLogger("perdure.bus")
_propagator = TraceContextTextMapPropagator()


class TwinQueue:
    """Work queues over the streams that `find` knows by subject."""

    def __init__(
        self, link: Link, subjects: Subjects, find: Find, clock: Clock, counts: Counter[Count]
    ) -> None:
        self._link, self._subjects, self._find, self._clock = link, subjects, find, clock
        self._counts = counts

    async def publish(self, subject: str, body: bytes, *, message_id: str | None = None) -> None:
        named = message_id if message_id is not None else self._clock.entropy(12).hex()
        headers: dict[str, str] = {}
        if trace.get_current_span().get_span_context().is_valid:
            _propagator.inject(headers)
        await self._publish(subject, headers, body, named)

    async def consume(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        stream = self._find(spec.filter_subject)
        hands = asyncio.Semaphore(concurrency)
        async with asyncio.TaskGroup() as group:
            while True:
                await hands.acquire()
                if ready is not None:
                    await ready()
                delivery = await self._next(stream, spec)
                task = group.create_task(self._handle(stream, spec, handler, delivery))
                task.add_done_callback(lambda _: hands.release())

    async def prepare(self, spec: ConsumerSpec) -> None:
        stream = self._find(spec.filter_subject)
        await self._link.call("consumer.prepare", spec.name, lambda: stream.consumer(spec))

    async def dead_letter(self, subject: str, delivery: Delivery, reason: str) -> None:
        flat = " ".join(reason.split()).encode("ascii", "backslashreplace").decode()
        kept = {name: value for name, value in delivery.headers.items() if not name.startswith("Nats-")}
        headers = kept | {REASON: flat, ORIGIN: f"{delivery.subject} {delivery.stream_sequence}"}
        # The same message is kept once, however often its handling was repeated.
        named = f"dead:{delivery.subject}:{delivery.stream_created}:{delivery.stream_sequence}"
        await self._publish(subject, headers, delivery.body, named)
        self._counts["dead_letters"] += 1

    async def remove_consumer(self, spec: ConsumerSpec) -> None:
        stream = self._find(spec.filter_subject)
        await self._link.call("consumer.remove", spec.name, lambda: stream.remove(spec))

    async def _publish(self, subject: str, headers: dict[str, str], body: bytes, message_id: str) -> None:
        if len(body) > MESSAGE_BYTES_MAX:
            raise PayloadTooLarge(f"a message of {len(body)} bytes is over {MESSAGE_BYTES_MAX}")
        stream = self._find(subject)
        await self._link.call(
            "publish", subject, lambda: stream.publish(subject, headers, body, message_id), lost=lambda: None
        )

    async def _next(self, stream: StreamStore, spec: ConsumerSpec) -> Delivery:
        while True:
            taken: asyncio.Future[Delivery | None] = asyncio.get_running_loop().create_future()
            pull = partial(self._pull, stream, spec, taken)
            self._link.send("pull", spec.name, pull, again_s=SILENCE_S)
            try:
                delivery = await taken
            except asyncio.CancelledError:
                if not taken.cancelled() and (swallowed := taken.result()) is not None:
                    self._answer(stream, spec, swallowed, Outcome("nak"))
                raise
            if delivery is not None:
                return delivery
            # The consumer was removed, or its stream: made again by the next pull.

    def _pull(self, stream: StreamStore, spec: ConsumerSpec, taken: asyncio.Future[Delivery | None]) -> None:
        if not self._link.closed and not taken.done():
            stream.consumer(spec).pull(self._link, taken)

    async def _handle(
        self, stream: StreamStore, spec: ConsumerSpec, handler: Handler, delivery: Delivery
    ) -> None:
        sequence = delivery.stream_sequence
        self._counts["redeliveries"] += delivery.delivered > 1

        async def keep() -> None:
            self._link.send("keep", delivery.subject, lambda: stream.consumer(spec).keep(sequence))

        # The key of idempotency is the handler's own; this loop only repeats.
        async with held(spec, self._clock, keep):
            if TRACEPARENT in delivery.headers:
                with trace.use_span(_sender(delivery)):
                    outcome = await self._outcome(spec, handler, delivery)
            else:
                outcome = await self._outcome(spec, handler, delivery)
        self._answer(stream, spec, delivery, outcome)

    async def _outcome(self, spec: ConsumerSpec, handler: Handler, delivery: Delivery) -> Outcome:
        kind = spec.stream.removeprefix(self._subjects.stream(""))
        bury = partial(self.dead_letter, self._subjects.dead(kind))
        return await handled(delivery, handler, bury, consumer=spec.name)

    def _answer(self, stream: StreamStore, spec: ConsumerSpec, delivery: Delivery, outcome: Outcome) -> None:
        again_after_s = outcome.delay_s if outcome.kind == "nak" else None
        sequence = delivery.stream_sequence
        self._link.send(
            "nak" if outcome.kind == "nak" else "ack",
            delivery.subject,
            lambda: stream.consumer(spec).answer(sequence, again_after_s=again_after_s),
        )


def stream_of(streams: list[StreamStore], subject: str) -> StreamStore:
    """The stream that takes messages on this subject."""
    for stream in streams:
        if any(matches(pattern, subject) or pattern == subject for pattern in stream.spec.subjects):
            return stream
    raise LookupError(f"no stream takes {subject}")


def _sender(delivery: Delivery) -> trace.Span:
    """The span that published this message, as a parent; the twin opens none of its own."""
    return trace.get_current_span(_propagator.extract(delivery.headers))
