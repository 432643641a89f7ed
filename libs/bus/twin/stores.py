"""Buckets and object stores in memory.

Invariant: of two writes that compare with the same revision one wins; an expired or deleted key reads as absent, and
its revision still counts, as with the markers of the servers.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from libs.bus.ports import Entry
from libs.bus.twin.link import Link, Tap, Timers
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict

# The server knows no shorter life.
TTL_S_MIN = 1.0
# A reader of a bucket notices a lost change by its silence or the next one.
SILENCE_S = 2.5

Change = tuple[str, bytes | None]


class _Value(NamedTuple):
    """The newest message of a key; `value` is `None` for a marker."""

    value: bytes | None
    revision: int
    expiry: asyncio.Handle | None


class _Watcher(NamedTuple):
    prefix: str
    tap: Tap[Change]


class BucketStore:
    """One bucket."""

    def __init__(self, timers: Timers) -> None:
        # Told of every change, before anybody else is.
        self.observers: list[Callable[[str, bytes | None], None]] = []
        self._timers = timers
        self._values: dict[str, _Value] = {}
        self._sequence = 0
        self._watchers: list[_Watcher] = []

    def get(self, key: str) -> Entry | None:
        found = self._values.get(key)
        if found is None or found.value is None:
            return None
        return Entry(key, found.value, found.revision)

    def revision(self, key: str) -> int:
        found = self._values.get(key)
        return found.revision if found is not None else 0

    def create(self, key: str, value: bytes, ttl_s: float | None) -> int:
        if self.get(key) is not None:
            self._conflict(key, 0)
        return self.put(key, value, ttl_s)

    def update(self, key: str, value: bytes, revision: int, ttl_s: float | None) -> int:
        if self.revision(key) != revision:
            self._conflict(key, revision)
        return self.put(key, value, ttl_s)

    def put(self, key: str, value: bytes | None, ttl_s: float | None) -> int:
        former = self._values.pop(key, None)
        if former is not None and former.expiry is not None:
            former.expiry.cancel()
        self._sequence += 1
        expiry = None
        if ttl_s is not None:
            expiry = self._timers.at(max(ttl_s, TTL_S_MIN), lambda: self.put(key, None, None))
        self._values[key] = _Value(value, self._sequence, expiry)
        for observer in self.observers:
            observer(key, value)
        if value is not None or (former is not None and former.value is not None):
            self._tell(key, value)
        return self._sequence

    def delete(self, key: str, revision: int | None) -> None:
        if revision is not None and self.revision(key) != revision:
            self._conflict(key, revision)
        self.put(key, None, None)

    def entries(self, prefix: str) -> list[Entry]:
        return [
            Entry(key, found.value, found.revision)
            for key, found in self._values.items()
            if found.value is not None and key.startswith(prefix)
        ]

    def remove(self, prefix: str) -> None:
        for key in [key for key in self._values if key.startswith(prefix)]:
            expiry = self._values.pop(key).expiry
            if expiry is not None:
                expiry.cancel()

    def lose_all(self) -> None:
        """Somebody deleted the bucket under load; it is made again, empty."""
        lost = self.entries("")
        self.remove("")
        self._sequence = 0
        for entry in lost:
            self._tell(entry.key, None)

    def watch(self, prefix: str, tap: Tap[Change]) -> None:
        tap.fill([*((entry.key, entry.value) for entry in self.entries(prefix)), ("", None)])
        self._watchers.append(_Watcher(prefix, tap))

    def unwatch(self, tap: Tap[Change]) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher.tap is not tap]

    def _tell(self, key: str, value: bytes | None) -> None:
        for watcher in self._watchers:
            if key.startswith(watcher.prefix):
                watcher.tap.push((key, value))

    def _conflict(self, key: str, revision: int) -> None:
        last = self.revision(key)
        raise AppendConflict(f"{key} is at {last}, not at {revision}", last=last)


class TwinBucket:
    """`Bucket` of one process."""

    def __init__(self, link: Link, name: str, store: BucketStore) -> None:
        self._link, self.name, self._store = link, name, store

    async def get(self, key: str) -> Entry | None:
        return await self._link.call(f"{self.name}.get", key, lambda: self._store.get(key))

    async def create(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        return await self._link.call(
            f"{self.name}.create", key, lambda: self._store.create(key, value, ttl_s)
        )

    async def update(self, key: str, value: bytes, revision: int, *, ttl_s: float | None = None) -> int:
        return await self._link.call(
            f"{self.name}.update", key, lambda: self._store.update(key, value, revision, ttl_s)
        )

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        return await self._link.call(f"{self.name}.put", key, lambda: self._store.put(key, value, ttl_s))

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        await self._link.call(f"{self.name}.delete", key, lambda: self._store.delete(key, revision))

    async def entries(self, prefix: str = "") -> list[Entry]:
        return await self._link.call(f"{self.name}.entries", prefix, lambda: self._store.entries(prefix))

    async def keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in await self.entries(prefix)]

    async def remove(self, prefix: str) -> None:
        await self._link.call(f"{self.name}.remove", prefix, lambda: self._store.remove(prefix))

    @asynccontextmanager
    async def watch(self, prefix: str = "") -> AsyncGenerator[AsyncIterator[Change]]:
        tap = Tap[Change](self._link, f"{self.name}.watch", prefix, again_s=SILENCE_S)
        self._store.watch(prefix, tap)
        try:
            yield tap
        finally:
            self._store.unwatch(tap)


class BlobStore:
    """One object store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._data: dict[str, bytes] = {}
        self._stored_at: dict[str, datetime] = {}

    def put(self, name: str, data: bytes) -> None:
        self._data[name], self._stored_at[name] = data, self._clock.now()

    def get(self, name: str) -> bytes | None:
        return self._data.get(name)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._data if name.startswith(prefix))

    def remove(self, name: str) -> None:
        self._data.pop(name, None)

    def remove_older(self, name: str, before: datetime) -> bool:
        if name not in self._data or self._stored_at[name] >= before:
            return False
        del self._data[name]
        return True


class TwinBlobs:
    """`Blobs` of one process."""

    def __init__(self, link: Link, store: BlobStore) -> None:
        self._link, self._store = link, store

    async def put(self, name: str, data: bytes) -> None:
        await self._link.call("blob.put", name, lambda: self._store.put(name, data))

    async def get(self, name: str) -> bytes | None:
        return await self._link.call("blob.get", name, lambda: self._store.get(name))

    async def put_file(self, name: str, path: Path) -> None:
        await self.put(name, await asyncio.to_thread(path.read_bytes))

    async def get_file(self, name: str, path: Path) -> bool:
        data = await self.get(name)
        if data is not None:
            await asyncio.to_thread(path.write_bytes, data)
        return data is not None

    async def names(self, prefix: str = "") -> list[str]:
        return await self._link.call("blob.names", prefix, lambda: self._store.names(prefix))

    async def remove(self, name: str) -> None:
        await self._link.call("blob.remove", name, lambda: self._store.remove(name))

    async def remove_older(self, name: str, before: datetime) -> bool:
        return await self._link.call("blob.remove", name, lambda: self._store.remove_older(name, before))

    async def remove_unnamed(self, before: datetime, most: int) -> int:
        """Here all bytes come with their name."""
        del before, most
        return 0
