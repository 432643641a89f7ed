"""Crashes on order, for tests: a process kills itself at the point of its work that a test has named.

Invariant: without a `PERDURE_TEST_*` variable nothing here is ever in the way: the bus is not wrapped and no point
looks at anything. An order is taken (its file removed) before the process dies of it, so it kills once.

`PERDURE_TEST_CRASH` names a folder. `<folder>/<replica id>` holds one order, "append 3 before": die before the third
append since the order was given. `<folder>/<replica id>.points`, when it exists, collects the kind of every point that
was passed. `PERDURE_TEST_CRASH_GOAL` holds a marker: whoever calls a model for a goal with it dies, every time.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from libs.bus.counts import Extent
from libs.bus.ports import (
    Bucket,
    Bus,
    Delivery,
    Draft,
    Entry,
    Handler,
    Log,
    LogKey,
    Message,
    Outcome,
    Queue,
    Responder,
    Wakeup,
    Wire,
)
from libs.contracts.envelope import Record
from libs.contracts.streams import ConsumerSpec

CRASH = "PERDURE_TEST_CRASH"
CRASH_GOAL = "PERDURE_TEST_CRASH_GOAL"


class CrashHooks:
    """The orders of one process. `hooks` are its `PERDURE_TEST_*` variables, `replica` is who it is."""

    def __init__(self, hooks: Mapping[str, str], replica: str = "") -> None:
        self._goal = hooks.get(CRASH_GOAL)
        folder = hooks.get(CRASH)
        self._order = Path(folder) / replica if folder and replica else None
        self._given = ""
        self._passed = 0

    def at_goal(self, goal: str) -> None:
        """Die if the goal holds the marker."""
        if self._goal and self._goal in goal:
            _die()

    @contextmanager
    def around(self, kind: str) -> Generator[None]:
        """One point of a kind: just before what the context does, and just after it has succeeded."""
        due = self._due(kind)
        if due == "before":
            self._obey()
        yield
        if due == "after":
            self._obey()

    def wrap(self, bus: Bus) -> Bus:
        """The bus, with a point around each of its operations if there may ever be an order."""
        if self._order is None:
            return bus
        plain = bus.bucket
        bus.log = _CrashingLog(bus.log, self)
        bus.queue = _CrashingQueue(bus.queue, self)
        bus.wire = _CrashingWire(bus.wire, self)
        bus.bucket = lambda name: _CrashingBucket(plain(name), f"write.{name}", self)
        return bus

    def _due(self, kind: str) -> str:
        """The moment of this point at which the order says to die; empty for a point that it does not mean."""
        if self._order is None:
            return ""
        points = self._order.with_suffix(".points")
        if points.exists():
            with points.open("a", encoding="utf-8") as lines:
                lines.write(f"{kind}\n")
        order = _order_in(self._order)
        if order is None or order.kind != kind:
            return ""
        if order.text != self._given:
            self._given, self._passed = order.text, 0
        self._passed += 1
        return order.moment if self._passed == order.number else ""

    def _obey(self) -> None:
        assert self._order is not None
        self._order.unlink()
        _die()


class _Order(NamedTuple):
    kind: str
    number: int
    moment: str
    text: str


def _order_in(path: Path) -> _Order | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    kind, number, moment, *_ = text.split()
    return _Order(kind, int(number), moment, text)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _CrashingLog:
    """`Log` with the point `append`."""

    def __init__(self, log: Log, hooks: CrashHooks) -> None:
        self._log, self._hooks = log, hooks

    async def append(self, draft: Draft) -> Record:
        with self._hooks.around("append"):
            return await self._log.append(draft)

    async def read(self, key: LogKey, after: int = 0) -> list[Record]:
        return await self._log.read(key, after)

    async def page(self, key: LogKey, after: int) -> list[Record]:
        return await self._log.page(key, after)

    async def tail(self, key: LogKey) -> Record | None:
        return await self._log.tail(key)

    async def tails(self, keys: Sequence[LogKey]) -> dict[LogKey, int]:
        return await self._log.tails(keys)

    def follow(self, key: LogKey, after: int) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        return self._log.follow(key, after)

    def wakeups(self) -> AbstractAsyncContextManager[AsyncIterator[Wakeup]]:
        return self._log.wakeups()

    def life(self, shard: int, after: int) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        return self._log.life(shard, after)

    async def extent(self, shard: int) -> Extent:
        return await self._log.extent(shard)

    async def across(self, shard: int, after: int) -> list[Record]:
        return await self._log.across(shard, after)

    async def bodies(self, shard: int, after: int) -> list[tuple[int, bytes]]:
        return await self._log.bodies(shard, after)

    async def purge(self, key: LogKey, up_to: int) -> None:
        with self._hooks.around("purge"):
            await self._log.purge(key, up_to)


class _CrashingQueue:
    """`Queue` with the points `publish` and `handle`; after `handle` means handled and not yet acked."""

    def __init__(self, queue: Queue, hooks: CrashHooks) -> None:
        self._queue, self._hooks = queue, hooks

    async def publish(self, subject: str, body: bytes, *, message_id: str | None = None) -> None:
        with self._hooks.around("publish"):
            await self._queue.publish(subject, body, message_id=message_id)

    async def consume(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        async def handle(delivery: Delivery) -> Outcome:
            with self._hooks.around("handle"):
                return await handler(delivery)

        await self._queue.consume(spec, handle, concurrency=concurrency, ready=ready)

    async def prepare(self, spec: ConsumerSpec) -> None:
        await self._queue.prepare(spec)

    async def dead_letter(self, subject: str, delivery: Delivery, reason: str) -> None:
        with self._hooks.around("dead_letter"):
            await self._queue.dead_letter(subject, delivery, reason)

    async def remove_consumer(self, spec: ConsumerSpec) -> None:
        await self._queue.remove_consumer(spec)


class _CrashingWire:
    """`Wire` with the points `request`, `tell` and `answer`."""

    def __init__(self, wire: Wire, hooks: CrashHooks) -> None:
        self._wire, self._hooks = wire, hooks

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        with self._hooks.around("request"):
            return await self._wire.request(subject, body, timeout_s=timeout_s)

    async def publish(self, subject: str, body: bytes) -> None:
        with self._hooks.around("tell"):
            await self._wire.publish(subject, body)

    def respond(self, subject: str, responder: Responder) -> AbstractAsyncContextManager[None]:
        async def answer(message: Message) -> bytes:
            with self._hooks.around("answer"):
                return await responder(message)

        return self._wire.respond(subject, answer)

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[Message]]:
        return self._wire.listen(subject)


class _CrashingBucket:
    """`Bucket` with a point around every write; the journal's are the beginning and the end of each effect."""

    def __init__(self, bucket: Bucket, kind: str, hooks: CrashHooks) -> None:
        self._bucket, self._kind, self._hooks = bucket, kind, hooks

    async def get(self, key: str) -> Entry | None:
        return await self._bucket.get(key)

    async def create(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        with self._hooks.around(self._kind):
            return await self._bucket.create(key, value, ttl_s=ttl_s)

    async def update(self, key: str, value: bytes, revision: int, *, ttl_s: float | None = None) -> int:
        with self._hooks.around(self._kind):
            return await self._bucket.update(key, value, revision, ttl_s=ttl_s)

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        with self._hooks.around(self._kind):
            return await self._bucket.put(key, value, ttl_s=ttl_s)

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        with self._hooks.around(self._kind):
            await self._bucket.delete(key, revision=revision)

    async def entries(self, prefix: str = "") -> list[Entry]:
        return await self._bucket.entries(prefix)

    async def keys(self, prefix: str = "") -> list[str]:
        return await self._bucket.keys(prefix)

    async def remove(self, prefix: str) -> None:
        with self._hooks.around(self._kind):
            await self._bucket.remove(prefix)

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes | None]]]:
        return self._bucket.watch(prefix)
