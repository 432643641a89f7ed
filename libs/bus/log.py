"""The durable logs on the server: the one function that appends, and what reads.

Invariant: nothing else publishes below `<p>.log.`; a record that was stored is reported as stored, exactly once, and a
record of which that is not sure is never reported as refused.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

import msgspec
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.bus.counts import Count, Extent
from libs.bus.follow import Follows
from libs.bus.history import History, blob_name
from libs.bus.jetstream import TRY_S, JetStream, Patience, Refused
from libs.bus.ordered import Merged, Ordered
from libs.bus.ports import Blobs, Draft, LogKey, Wakeup
from libs.contracts import envelope
from libs.contracts.envelope import Record, RecordHeader
from libs.contracts.errors import AppendConflict, BusUnavailable, InternalError, UnreadableRecord
from libs.contracts.ids import new_message_id, shard_of
from libs.contracts.offload import move_out
from libs.contracts.streams import TOMBSTONE_S
from libs.contracts.subjects import Subjects

_TTL = "Nats-TTL"

_log = logging.getLogger("perdure.bus")
_propagator = TraceContextTextMapPropagator()


class _StreamInfo(msgspec.Struct):
    created: str = ""


class Writer(NamedTuple):
    """Who writes: named in the header of every record."""

    boot: str = "unregistered"
    version: str = "0"


class ServerLog:
    """`Log` over JetStream."""

    def __init__(
        self, js: JetStream, subjects: Subjects, blobs: Blobs, counts: Counter[Count], *, shards: int
    ) -> None:
        self._js, self._subjects, self._blobs, self._counts = js, subjects, blobs, counts
        self._shards = shards
        self._history = History(js, subjects, blobs)
        self.follows = Follows(js.link, subjects, self._history, js.clock)
        self.writer = Writer()

    async def append(self, draft: Draft) -> Record:
        record = await self._prepared(draft)
        headers = _headers(record.header, self.writer.version)
        headers[envelope.EXPECTED_LAST_FILTER] = self._subjects.log_filter(*draft.key)
        if any(event.body.tombstone for event in draft.events):
            headers[_TTL] = f"{TOMBSTONE_S}s"
        subject = self._subjects.log(*draft.key, record.header.record_class)
        try:
            sequence = await self._stored(draft, subject, record, headers)
        except AppendConflict:
            self._counts["append_conflicts"] += 1
            raise
        self._counts["appends"] += 1
        record = record._replace(header=record.header._replace(stream_sequence=sequence))
        self.follows.appended(record)
        return record

    async def read(self, key: LogKey, after: int = 0) -> list[Record]:
        return await self._history.read(key, after)

    async def page(self, key: LogKey, after: int) -> list[Record]:
        return (await self._history.part(key, after)).records

    async def tail(self, key: LogKey) -> Record | None:
        return await self._history.tail(key)

    async def tails(self, keys: Sequence[LogKey]) -> dict[LogKey, int]:
        return (await self._history.tails(keys))[0]

    def follow(self, key: LogKey, after: int) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        return self.follows.follow(key, after)

    @asynccontextmanager
    async def wakeups(self) -> AsyncGenerator[AsyncIterator[Wakeup]]:
        parts = [
            Ordered(self._js, self._subjects.log_stream(shard), self._subjects.life_of_shard(shard), None)
            for shard in range(self._shards)
        ]
        merged = Merged(parts)
        try:
            await merged.open()
            yield _Wakeups(merged, self._history)
        finally:
            await merged.close()

    @asynccontextmanager
    async def life(self, shard: int, after: int) -> AsyncGenerator[AsyncIterator[Record]]:
        ordered = Ordered(
            self._js, self._subjects.log_stream(shard), self._subjects.life_of_shard(shard), after + 1
        )
        try:
            await ordered.open()
            yield _Life(ordered, self._history)
        finally:
            await ordered.close()

    async def extent(self, shard: int) -> Extent:
        stream = self._subjects.log_stream(shard)
        try:
            info = msgspec.json.decode(
                await self._js.api_patiently(f"STREAM.INFO.{stream}"), type=_StreamInfo
            )
        except Refused as refused:
            raise refused.translated() from refused
        newest = await self._js.last(stream, self._subjects.log_of_shard(shard))
        return Extent(info.created, newest.sequence if newest is not None else 0)

    async def across(self, shard: int, after: int) -> list[Record]:
        return await self._history.across(shard, after)

    async def bodies(self, shard: int, after: int) -> list[tuple[int, bytes]]:
        return await self._history.bodies(shard, after)

    async def purge(self, key: LogKey, up_to: int) -> None:
        stream = self._subjects.log_stream(shard_of(key.log_id))
        query = {"filter": self._subjects.log_filter(*key), "seq": up_to}
        try:
            await self._js.api_patiently(f"STREAM.PURGE.{stream}", query)
        except Refused as refused:
            raise refused.translated() from refused

    # --- Append ---

    async def _prepared(self, draft: Draft) -> Record:
        """The record as it will be stored, its large strings stored first; its sequence is still 0."""
        moved = move_out(draft.events)
        for digest, data in moved.blobs.items():
            await self._blobs.put(blob_name(draft.key.tenant, digest), data)
        header = RecordHeader(
            stream_sequence=0,
            previous=draft.expected,
            message_id=new_message_id(self._js.clock),
            record_class=draft.record_class,
            epoch=draft.epoch,
            boot=self.writer.boot,
            first=draft.events[0].sequence,
            event_count=len(draft.events),
            state=draft.state,
        )
        record = Record(header, draft.key.tenant, draft.key.log_id, moved.body)
        return await self._history.whole(record) if moved.blobs else record

    async def _stored(self, draft: Draft, subject: str, record: Record, headers: dict[str, str]) -> int:
        """Send until the outcome is sure; returns the stream sequence."""
        patience = Patience(self._js.clock)
        unknown = False
        while True:
            refused: Refused | None = None
            try:
                ack = await self._js.publish(subject, record.body, headers, patience.try_s())
                if not ack.duplicate:
                    return ack.sequence
            except Refused as error:
                refused = error
                # A refusal for another reason than the fence does not tell what became of an earlier try.
                unknown = unknown or error.kind == "again"
            except BusUnavailable:
                unknown = True
            resolved = await self._resolved(draft, record.header.message_id, patience)
            if resolved is not None:
                return resolved
            if refused is not None:
                self._give_up_if_sure(draft, refused, unknown=unknown)
            if patience.over:
                raise BusUnavailable(
                    f"whether a record of {draft.key.log_id} was stored is not known; read the log before going on "
                    "(a server that only stores nothing has a full disk, or had one)",
                    retry_after_s=1,
                )
            await patience.pause()

    async def _resolved(self, draft: Draft, message_id: str, patience: Patience) -> int | None:
        """Where this record is stored, by the leader's word; `None` if nothing lies behind the expected record.

        The fence admits a record only directly behind the expected one, but somebody's command may lie on top of it:
        all that lies behind is looked through before anything is decided. Raises `AppendConflict`.
        """
        try:
            async with asyncio.timeout(patience.left_s + TRY_S):
                mine, last = await self._history.find(draft.key, draft.expected, message_id)
        except (TimeoutError, BusUnavailable):
            return None
        if mine:
            return mine
        if last:
            raise AppendConflict(f"{draft.key.log_id} went on to {last} behind {draft.expected}", last=last)
        return None

    @staticmethod
    def _give_up_if_sure(draft: Draft, refused: Refused, *, unknown: bool) -> None:
        """Raise what a definite refusal means, unless an earlier try may still arrive.

        A conflict with nothing behind the expected record is either a race on its way (10164: try again) or a log that
        ends before it: purged, or a mistaken caller.
        """
        match refused.kind:
            case "conflict":
                last = _last_of(refused.description)
                if last is not None and last < draft.expected:
                    raise AppendConflict(
                        f"{draft.key.log_id} ends at {last}, before {draft.expected}", last=last
                    )
            case "full" if not unknown:
                raise refused.translated() from refused
            case "too_large" | "missing" | "defect" if not unknown:
                raise InternalError(f"the log refuses a record: {refused.message}") from refused
            case _:
                return


class _Wakeups(AsyncIterator[Wakeup]):
    def __init__(self, merged: Merged, history: History) -> None:
        self._merged, self._history = merged, history

    async def __anext__(self) -> Wakeup:
        while True:
            stored = await self._merged.peek()
            try:
                record = await self._history.record(stored)
            except UnreadableRecord as error:
                # Whoever can read it acts on it; the sweep looks at its run again.
                _log.error("bus.wakeup_unreadable", extra={"fields": {"error": error.message}})
                self._merged.drop()
                continue
            self._merged.drop()
            header = record.header
            return Wakeup(LogKey(record.tenant, record.log_id), header.stream_sequence, header.state, record)


class _Life(AsyncIterator[Record]):
    def __init__(self, ordered: Ordered, history: History) -> None:
        self._ordered, self._history = ordered, history

    async def __anext__(self) -> Record:
        stored = await self._ordered.peek()
        try:
            record = await self._history.record(stored)
        except UnreadableRecord:
            # Raised once: the next call goes on behind it, if the caller wants to.
            self._ordered.drop()
            raise
        self._ordered.drop()
        return record


def _headers(header: RecordHeader, version: str) -> dict[str, str]:
    headers = envelope.record_headers(
        message_id=header.message_id,
        epoch=header.epoch,
        boot=header.boot,
        version=version,
        first=header.first,
        count=header.event_count,
        state=header.state,
    )
    headers[envelope.EXPECTED_LAST] = str(header.previous)
    if trace.get_current_span().get_span_context().is_valid:
        _propagator.inject(headers)
    return headers


def _last_of(description: str) -> int | None:
    """The sequence in `wrong last sequence: 7`; `None` when the server does not say."""
    digits = description.rpartition(":")[2].strip()
    return int(digits) if digits.isdigit() else None
