"""The durable logs in memory.

Invariant: a record is stored iff its log's newest record is the one that its writer expected; sequences grow over all
logs of a shard, as in a stream.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from libs.bus.counts import Count, Extent
from libs.bus.ports import Draft, LogKey, Wakeup
from libs.bus.twin.link import Link, Tap
from libs.bus.twin.stores import BlobStore
from libs.contracts.clock import Clock
from libs.contracts.envelope import Record, RecordHeader
from libs.contracts.errors import AppendConflict
from libs.contracts.ids import new_message_id, shard_of
from libs.contracts.offload import move_out, put_back
from libs.contracts.subjects import ANY_TENANT

# A lost last record is found by the comparison of tails, which follows every 5 s (`libs/bus/follow.py`).
CHECK_S = 5.0
# A reader of a stream notices a lost message by its silence or the next one (`libs/bus/ordered.py`).
SILENCE_S = 2.5
# A small page, so that readers of several pages are met in short histories too.
PAGE_RECORDS = 16


class LogStore:
    """All logs of a deployment, and who listens to them."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.records: dict[LogKey, list[Record]] = {}
        # Told of every stored record, before anybody else is.
        self.observers: list[Callable[[Record], None]] = []
        # How many records each process read, by its name and the log.
        self.read: Counter[tuple[str, LogKey]] = Counter()
        self._sequences = [0] * shards
        self._life: list[list[Record]] = [[] for _ in range(shards)]
        self._latest: dict[LogKey, Record] = {}
        self._follows: dict[LogKey, list[Tap[Record]]] = {}
        self._wakeups: list[Tap[Wakeup]] = []
        self._lives: list[list[Tap[Record]]] = [[] for _ in range(shards)]

    def tail(self, key: LogKey) -> Record | None:
        if key.tenant == ANY_TENANT:
            key = next((known for known in self.records if known.log_id == key.log_id), key)
        records = self.records.get(key)
        return records[-1] if records else None

    def behind(self, key: LogKey, after: int) -> list[Record]:
        records = self.records.get(key, [])
        if not records or records[-1].header.stream_sequence <= after:
            return []
        return [record for record in records if record.header.stream_sequence > after]

    def read_by(self, reader: str, key: LogKey, after: int) -> list[Record]:
        """The same, and it is counted."""
        found = self.behind(key, after)
        self.read[reader, key] += len(found)
        return found

    def extent(self, shard: int) -> Extent:
        return Extent("the twin's", self._sequences[shard])

    def across(self, shard: int, after: int) -> list[Record]:
        """All records of a shard behind `after`, in order."""
        found = [
            record
            for key, records in self.records.items()
            if shard_of(key.log_id) == shard
            for record in records
        ]
        found.sort(key=lambda record: record.header.stream_sequence)
        return [record for record in found if record.header.stream_sequence > after]

    def store(self, key: LogKey, expected: int, record: Record) -> Record:
        """Store a record behind the fence. Raises `AppendConflict`."""
        newest = self.tail(key)
        last = newest.header.stream_sequence if newest is not None else 0
        if last != expected:
            raise AppendConflict(f"{key.log_id} is at {last}, not at {expected}", last=last)
        shard = shard_of(key.log_id)
        self._sequences[shard] += 1
        record = record._replace(header=record.header._replace(stream_sequence=self._sequences[shard]))
        self.records.setdefault(key, []).append(record)
        for observer in self.observers:
            observer(record)
        self._tell(key, shard, record)
        return record

    def purge(self, key: LogKey, up_to: int) -> None:
        self.records[key] = self.behind(key, up_to - 1)
        shard = shard_of(key.log_id)
        self._life[shard] = [
            record
            for record in self._life[shard]
            if LogKey(record.tenant, record.log_id) != key or record.header.stream_sequence >= up_to
        ]

    def follow(self, key: LogKey, after: int, tap: Tap[Record]) -> None:
        tap.fill(self.behind(key, after))
        self._follows.setdefault(key, []).append(tap)

    def unfollow(self, key: LogKey, tap: Tap[Record]) -> None:
        self._follows[key].remove(tap)

    def open_wakeups(self, tap: Tap[Wakeup]) -> None:
        latest = sorted(self._latest.values(), key=lambda record: record.header.stream_sequence)
        tap.fill([wakeup_of(record) for record in latest])
        self._wakeups.append(tap)

    def close_wakeups(self, tap: Tap[Wakeup]) -> None:
        self._wakeups.remove(tap)

    def open_life(self, shard: int, after: int, tap: Tap[Record]) -> None:
        tap.fill([record for record in self._life[shard] if record.header.stream_sequence > after])
        self._lives[shard].append(tap)

    def close_life(self, shard: int, tap: Tap[Record]) -> None:
        self._lives[shard].remove(tap)

    def _tell(self, key: LogKey, shard: int, record: Record) -> None:
        for tap in self._follows.get(key, ()):
            tap.push(record)
        if record.header.record_class != "life":
            return
        self._life[shard].append(record)
        self._latest[key] = record
        for waking in self._wakeups:
            waking.push(wakeup_of(record))
        for living in self._lives[shard]:
            living.push(record)


class TwinLog:
    """`Log` of one process."""

    def __init__(
        self, link: Link, store: LogStore, blobs: BlobStore, clock: Clock, counts: Counter[Count]
    ) -> None:
        self._link, self._store, self._blobs, self._clock = link, store, blobs, clock
        self._counts = counts
        self.boot = "unregistered"

    async def append(self, draft: Draft) -> Record:
        record = self._prepared(draft)
        try:
            stored = await self._link.call(
                "append", draft.key.log_id, lambda: self._store.store(draft.key, draft.expected, record)
            )
        except AppendConflict:
            self._counts["append_conflicts"] += 1
            raise
        self._counts["appends"] += 1
        return stored

    async def read(self, key: LogKey, after: int = 0) -> list[Record]:
        return await self._link.call(
            "read", key.log_id, lambda: self._store.read_by(self._link.name, key, after)
        )

    async def page(self, key: LogKey, after: int) -> list[Record]:
        return (await self.read(key, after))[:PAGE_RECORDS]

    async def tail(self, key: LogKey) -> Record | None:
        return await self._link.call("tail", key.log_id, lambda: self._store.tail(key))

    async def tails(self, keys: Sequence[LogKey]) -> dict[LogKey, int]:
        return await self._link.call("tails", "", lambda: _sequences(self._store, keys))

    @asynccontextmanager
    async def follow(self, key: LogKey, after: int) -> AsyncGenerator[AsyncIterator[Record]]:
        tap = Tap[Record](self._link, "feed", key.log_id, again_s=CHECK_S)
        self._store.follow(key, after, tap)
        try:
            yield tap
        finally:
            self._store.unfollow(key, tap)

    @asynccontextmanager
    async def wakeups(self) -> AsyncGenerator[AsyncIterator[Wakeup]]:
        tap = Tap[Wakeup](self._link, "wakeup", "", again_s=SILENCE_S)
        self._store.open_wakeups(tap)
        try:
            yield tap
        finally:
            self._store.close_wakeups(tap)

    @asynccontextmanager
    async def life(self, shard: int, after: int) -> AsyncGenerator[AsyncIterator[Record]]:
        tap = Tap[Record](self._link, "life", str(shard), again_s=SILENCE_S)
        self._store.open_life(shard, after, tap)
        try:
            yield tap
        finally:
            self._store.close_life(shard, tap)

    async def extent(self, shard: int) -> Extent:
        return await self._link.call("extent", str(shard), lambda: self._store.extent(shard))

    async def across(self, shard: int, after: int) -> list[Record]:
        records = await self._link.call("across", str(shard), lambda: self._store.across(shard, after))
        return records[:PAGE_RECORDS]

    async def bodies(self, shard: int, after: int) -> list[tuple[int, bytes]]:
        return [(record.header.stream_sequence, record.body) for record in await self.across(shard, after)]

    async def purge(self, key: LogKey, up_to: int) -> None:
        await self._link.call("purge", key.log_id, lambda: self._store.purge(key, up_to))

    def _prepared(self, draft: Draft) -> Record:
        """The record as it will be stored; its sequence is still 0."""
        moved = move_out(draft.events)
        for digest, data in moved.blobs.items():
            self._blobs.put(f"{draft.key.tenant}/{digest}", data)
        header = RecordHeader(
            stream_sequence=0,
            previous=draft.expected,
            message_id=new_message_id(self._clock),
            record_class=draft.record_class,
            epoch=draft.epoch,
            boot=self.boot,
            first=draft.events[0].sequence,
            event_count=len(draft.events),
            state=draft.state,
        )
        whole = put_back(moved.body, moved.blobs) if moved.blobs else b""
        return Record(header, draft.key.tenant, draft.key.log_id, moved.body, whole)


def wakeup_of(record: Record) -> Wakeup:
    header = record.header
    return Wakeup(LogKey(record.tenant, record.log_id), header.stream_sequence, header.state, record)


def _sequences(store: LogStore, keys: Iterable[LogKey]) -> dict[LogKey, int]:
    tails = ((key, store.tail(key)) for key in keys)
    return {key: tail.header.stream_sequence for key, tail in tails if tail is not None}
