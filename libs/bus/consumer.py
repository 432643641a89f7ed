"""Work queues: publish with deduplication, pull and handle, dead letters.

Invariant: a message is acked only after its handler said so; cancelling a loop leaves nothing acked that was not
handled and gives back what was not begun. Everything is delivered at least once.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
from nats.aio.msg import Msg
from opentelemetry import trace
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.bus.counts import Count
from libs.bus.handling import handled, held
from libs.bus.jetstream import NO_CONSUMER, NO_STREAM, JetStream, Refused
from libs.bus.ports import Delivery, Handler, Outcome
from libs.bus.pull import Position, Pulls
from libs.bus.topology import consumer_config
from libs.contracts.envelope import MESSAGE_ID
from libs.contracts.errors import BusUnavailable
from libs.contracts.streams import ConsumerSpec
from libs.contracts.subjects import Subjects

# The server says every so often that it still holds a pull; silence of 2.5 beats means: ask again.
HEARTBEAT_S = 2.0
# After a broken pull: long enough not to spin through an election, short enough not to be felt.
PAUSE_S = 0.1
PAUSE_S_MAX = 1.0
_NOBODY_LISTENS = "503"
REASON_CHARS_MAX = 1_000

REASON = "Perdure-Reason"
ORIGIN = "Perdure-Origin"

_log = logging.getLogger("perdure.bus")
_tracer = trace.get_tracer("perdure.bus")
_propagator = TraceContextTextMapPropagator()


class _StreamInfo(msgspec.Struct):
    created: str = ""


class ServerQueue:
    """`Queue` over JetStream work-queue streams."""

    def __init__(self, js: JetStream, subjects: Subjects, counts: Counter[Count]) -> None:
        self._js, self._subjects, self.counts = js, subjects, counts

    async def publish(self, subject: str, body: bytes, *, message_id: str | None = None) -> None:
        # An id of its own makes a repeated try harmless; it must differ from every other within the window.
        headers = {MESSAGE_ID: message_id if message_id is not None else self._js.clock.entropy(12).hex()}
        if trace.get_current_span().get_span_context().is_valid:
            _propagator.inject(headers)
        await self._publish(subject, body, headers)

    async def consume(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        await _Loop(self._js, self, spec, handler, concurrency, ready).run()

    async def prepare(self, spec: ConsumerSpec) -> None:
        request = {"stream_name": spec.stream, "config": consumer_config(spec)}
        try:
            await self._js.api_patiently(f"CONSUMER.CREATE.{spec.stream}.{spec.name}", request)
        except Refused as refused:
            raise refused.translated() from refused

    async def dead_letter(self, subject: str, delivery: Delivery, reason: str) -> None:
        kept = {name: value for name, value in delivery.headers.items() if not name.startswith("Nats-")}
        headers = kept | {
            # The same message is kept once, however often its handling was repeated.
            MESSAGE_ID: f"dead:{delivery.subject}:{delivery.stream_created}:{delivery.stream_sequence}",
            REASON: _header_value(reason),
            ORIGIN: f"{delivery.subject} {delivery.stream_sequence}",
        }
        await self._publish(subject, delivery.body, headers)
        self.counts["dead_letters"] += 1

    async def remove_consumer(self, spec: ConsumerSpec) -> None:
        for name, body in (
            (f"CONSUMER.DELETE.{spec.stream}.{spec.name}", None),
            (f"STREAM.PURGE.{spec.stream}", {"filter": spec.filter_subject}),
        ):
            try:
                await self._js.api_patiently(name, body)
            except Refused as refused:
                if refused.number not in {NO_CONSUMER, NO_STREAM}:
                    raise refused.translated() from refused

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        try:
            await self._js.publish_patiently(subject, body, headers)
        except Refused as refused:
            raise refused.translated() from refused

    def dead_subject(self, spec: ConsumerSpec) -> str:
        """Where the dead letters of a consumer go: `<p>.dead.<stream without prefix>`."""
        return self._subjects.dead(spec.stream.removeprefix(self._subjects.stream("")))


class _Loop:
    """One `consume`: keeps as many messages asked for as there are free hands."""

    def __init__(
        self,
        js: JetStream,
        queue: ServerQueue,
        spec: ConsumerSpec,
        handler: Handler,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._js, self._queue, self._spec = js, queue, spec
        self._handler, self._concurrency, self._ready = handler, concurrency, ready
        self._pulls = Pulls(js, spec.stream, spec.name, heartbeat_s=HEARTBEAT_S, expires_s=spec.pull_s)
        self._running: set[asyncio.Task[None]] = set()
        self._stream_created = ""
        self._pause_s = PAUSE_S

    async def run(self) -> None:
        await self._pulls.open()
        self._pulls.broken = "new"
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._turn(group)
        finally:
            await self._give_back(await self._pulls.close())

    async def _turn(self, group: asyncio.TaskGroup) -> None:
        pulls = self._pulls
        while pulls.queue and len(self._running) < self._concurrency:
            self._pause_s = PAUSE_S
            task = group.create_task(self._handle(pulls.queue.popleft()))
            self._running.add(task)
            task.add_done_callback(self._done)
        if pulls.broken is not None:
            await self._mend(pulls.broken)
            return
        free = self._concurrency - len(self._running) - len(pulls.queue) - pulls.outstanding
        # With a gate every single message waits for it; without one, half a handful is asked for at a time.
        if free > 0 and (
            pulls.outstanding == 0 if self._ready is not None else 2 * free >= self._concurrency
        ):
            if self._ready is not None:
                await self._ready()
                free = 1
            try:
                await pulls.pull(free)
            except BusUnavailable:
                pulls.broken = "disconnected"
            return
        await pulls.wait()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._pulls.notice()

    async def _mend(self, why: str) -> None:
        """Make sure the consumer exists, then go on. Never gives up: a queue outlives every outage."""
        self._pulls.mend()
        if why not in ("new", "reconnected"):
            _log.info("bus.consumer_broken", extra={"fields": {"consumer": self._spec.name, "why": why}})
        if why.startswith(_NOBODY_LISTENS):
            # The consumer has no leader yet: creating it again succeeds at once and changes nothing.
            await self._rest()
        try:
            await self._create()
        except (Refused, BusUnavailable) as error:
            _log.warning(
                "bus.consumer_waits", extra={"fields": {"consumer": self._spec.name, "error": error.message}}
            )
            self._pulls.broken = "missing"
            await self._rest()

    async def _rest(self) -> None:
        await self._js.clock.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    async def _create(self) -> None:
        spec = self._spec
        try:
            info = await self._js.api_patiently(f"STREAM.INFO.{spec.stream}")
        except Refused as refused:
            if refused.number == NO_STREAM:
                await self._js.repair()
            raise
        self._stream_created = msgspec.json.decode(info, type=_StreamInfo).created
        request = {"stream_name": spec.stream, "config": consumer_config(spec)}
        await self._js.api_patiently(f"CONSUMER.CREATE.{spec.stream}.{spec.name}", request)

    async def _handle(self, message: Msg) -> None:
        position = Position(message.reply)
        headers = message.headers or {}
        delivery = Delivery(
            subject=message.subject,
            headers=headers,
            body=message.data,
            stream_sequence=position.stream_sequence,
            delivered=position.delivered,
            stream_created=self._stream_created,
        )
        self._queue.counts["redeliveries"] += delivery.delivered > 1
        # The key of idempotency is the handler's own; this loop only repeats.
        with _tracer.start_as_current_span(
            f"handle {self._spec.name}", context=_propagator.extract(headers), kind=SpanKind.CONSUMER
        ):
            async with held(self._spec, self._js.clock, lambda: self._keep(message)):
                outcome = await handled(delivery, self._handler, self._bury, consumer=self._spec.name)
        await self._answer(message, outcome)

    async def _keep(self, message: Msg) -> None:
        await self._js.link.publish(message.reply, b"+WPI")

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        await self._queue.dead_letter(self._queue.dead_subject(self._spec), delivery, reason)

    async def _answer(self, message: Msg, outcome: Outcome) -> None:
        answer = b"+ACK"
        if outcome.kind == "nak":
            answer = b'-NAK {"delay": %d}' % int(outcome.delay_s * 1e9)
        try:
            await self._js.link.publish(message.reply, answer)
        except BusUnavailable:
            # It comes again, and its handler is idempotent.
            return

    async def _give_back(self, messages: list[Msg]) -> None:
        for message in messages:
            await self._answer(message, Outcome("nak"))


def _header_value(text: str) -> str:
    """A reason as a header value: printable ASCII on one line, bounded."""
    flat = " ".join(text[:REASON_CHARS_MAX].split())
    return flat.encode("ascii", "backslashreplace").decode()[: 2 * REASON_CHARS_MAX]
