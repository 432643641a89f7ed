"""An ordered reader of a stream: everything on a filter from some place on, through restarts of the server.

Invariant: messages come in stream order and each once, none is left out; the reader asks for more only as it is
read, so it holds a bounded number of messages whatever waits behind.
"""

import asyncio
import logging
from collections.abc import Sequence

import msgspec
from nats.aio.msg import Msg

from libs.bus.jetstream import NO_CONSUMER, NO_STREAM, JetStream, Refused, Stored
from libs.bus.pull import Position, Pulls
from libs.contracts.errors import BusUnavailable, Unavailable

# Half a batch is asked for before the other half has been read.
BATCH = 256
BATCH_BYTES = 4 * 1024 * 1024
# The consumer lives in the memory of one server: a restart is noticed by its silence.
HEARTBEAT_S = 1.0
# The server removes the consumer of a dead reader after this.
INACTIVE_S = 30.0
_PAUSE_S = 0.25

_log = logging.getLogger("perdure.bus")


class _StreamInfo(msgspec.Struct):
    created: str = ""


class Ordered:
    """Reads a filter from stream sequence `start` on, or (`None`) first the latest message of each subject. `created` says
    of which stream `start` is, as the server tells it (empty: of the one there is when it is opened)."""

    def __init__(
        self, js: JetStream, stream: str, subject_filter: str, start: int | None, *, created: str = ""
    ) -> None:
        self._js, self._stream, self._filter = js, stream, subject_filter
        self._start = start
        # How often it had to begin again, the stream perhaps made anew.
        self.interruptions = 0
        self._read = 0
        self._expected = 1
        self._stream_created = created
        self._consumer = ""
        self._pulls: Pulls | None = None
        self._head: Stored | None = None

    async def open(self) -> None:
        """Create the consumer. Raises `BusUnavailable` after the patience of a call."""
        try:
            await self._create()
        except Refused as refused:
            raise refused.translated() from refused

    async def close(self) -> None:
        pulls, self._pulls = self._pulls, None
        if pulls is not None:
            await pulls.close()
            try:
                await self._js.link.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")
            except BusUnavailable:
                # Inactive, it goes by itself.
                return

    @property
    def ready(self) -> bool:
        """Whether `peek` would return at once."""
        return self._head is not None or (self._pulls is not None and bool(self._pulls.queue))

    async def peek(self) -> Stored:
        """The next message; the same until `drop`. A cancelled call loses nothing."""
        while self._head is None:
            await self.step()
        return self._head

    async def step(self) -> Stored | None:
        """The message of `peek`, or one step towards it: the reader may have begun anew."""
        pulls = self._pulls
        if self._head is not None:
            pass
        elif pulls is None or pulls.broken is not None:
            await self._recreate("" if pulls is None else pulls.broken or "")
        elif pulls.queue:
            self._accept(pulls, pulls.queue.popleft())
        elif pulls.outstanding == 0:
            await self._ask(pulls)
        else:
            await pulls.wait()
        return self._head

    def drop(self) -> None:
        """The message of `peek` has been dealt with."""
        self._head = None

    def _accept(self, pulls: Pulls, message: Msg) -> None:
        position = Position(message.reply)
        if position.consumer_sequence != self._expected:
            # One was lost on its way: start again behind the last one that came.
            pulls.queue.clear()
            pulls.broken = "gap"
            return
        self._expected += 1
        self._read = position.stream_sequence
        self._head = Stored(message.subject, position.stream_sequence, message.headers or {}, message.data)

    async def _ask(self, pulls: Pulls) -> None:
        try:
            await pulls.pull(BATCH, BATCH_BYTES)
        except BusUnavailable:
            pulls.broken = "disconnected"

    async def _recreate(self, why: str) -> None:
        _log.info("bus.reader_restarts", extra={"fields": {"stream": self._stream, "why": why}})
        old, self._pulls = self._pulls, None
        if old is not None:
            await old.close()
        try:
            await self._create()
            self.interruptions += 1
        except (Refused, BusUnavailable) as error:
            if isinstance(error, Refused) and error.number == NO_STREAM:
                await self._repair()
            elif isinstance(error, Refused) and error.number != NO_CONSUMER:
                _log.warning(
                    "bus.reader_waits", extra={"fields": {"stream": self._stream, "error": error.message}}
                )
            await self._js.clock.sleep(_PAUSE_S)

    async def _repair(self) -> None:
        try:
            await self._js.repair()
        except Unavailable as error:
            # The next try finds it missing again.
            fields = {"stream": self._stream, "error": error.message}
            _log.warning("bus.reader_waits", extra={"fields": fields})

    async def _create(self) -> None:
        info = msgspec.json.decode(
            await self._js.api_patiently(f"STREAM.INFO.{self._stream}"), type=_StreamInfo
        )
        if self._stream_created not in ("", info.created):
            # Of another stream of the same name: the sequences of the old one say nothing about it.
            self._read = 0
            self.interruptions += 1
            self._start = None if self._start is None else 1
        self._stream_created = info.created
        start = self._read + 1 if self._read else self._start
        name = f"reader-{self._js.clock.entropy(8).hex()}"
        config: dict[str, object] = {
            "name": name,
            "deliver_policy": "last_per_subject" if start is None else "by_start_sequence",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": self._filter,
            "inactive_threshold": int(INACTIVE_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start is not None:
            config["opt_start_seq"] = start
        request = {"stream_name": self._stream, "config": config, "action": "create"}
        await self._js.api_patiently(f"CONSUMER.CREATE.{self._stream}.{name}", request)
        pulls = Pulls(self._js, self._stream, name, heartbeat_s=HEARTBEAT_S)
        await pulls.open()
        self._pulls, self._consumer, self._expected = pulls, name, 1


class Merged:
    """Several ordered readers as one, each in its own order."""

    def __init__(self, parts: Sequence[Ordered]) -> None:
        self._parts = list(parts)
        self._peeks: dict[asyncio.Task[Stored], Ordered] = {}
        self._head: tuple[Ordered, Stored] | None = None

    async def open(self) -> None:
        for part in self._parts:
            await part.open()

    async def close(self) -> None:
        for task in self._peeks:
            task.cancel()
        if self._peeks:
            await asyncio.wait(self._peeks)
        self._peeks.clear()
        for part in self._parts:
            await part.close()

    async def peek(self) -> Stored:
        """The next message of any of them; the same until `drop`. A cancelled call loses nothing."""
        if self._head is not None:
            return self._head[1]
        if len(self._parts) == 1:
            stored = await self._parts[0].peek()
            self._head = (self._parts[0], stored)
            return stored
        waiting = set(self._peeks.values())
        for part in self._parts:
            if part not in waiting:
                self._peeks[asyncio.create_task(part.peek())] = part
        done, _ = await asyncio.wait(self._peeks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        self._head = (self._peeks.pop(task), task.result())
        return self._head[1]

    def drop(self) -> None:
        assert self._head is not None
        self._head[0].drop()
        self._head = None
