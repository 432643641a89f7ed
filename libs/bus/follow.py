"""Following logs as they grow: the republished feed, and the log itself wherever the feed was not enough.

Invariant: a follower gets every record behind its starting point exactly once and in order. The back pointer of a
record shows a gap before it; a lost last record leaves no gap, so all followed logs are compared with the server at
each reconnect and every 5 s, in one request a shard. What does not fit the buffer is read again from the log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg

from libs.bus.history import History
from libs.bus.jetstream import Stored
from libs.bus.link import Link
from libs.bus.ports import LogKey
from libs.contracts.clock import Clock
from libs.contracts.envelope import EXPECTED_LAST, Record
from libs.contracts.errors import BusUnavailable, PerdureError, UnreadableRecord
from libs.contracts.ids import shard_of
from libs.contracts.subjects import Subjects

# How long a lost last record stays unnoticed at most.
CHECK_S = 5.0
# What one slow follower may hold; beyond it the feed is ignored and the log read again when it gets there.
BUFFER_RECORDS_MAX = 128
BUFFER_BYTES_MAX = 512 * 1024
# Between two tries to read on while the bus is away; each of them has been patient by itself.
PAUSE_S = 0.25

_log = logging.getLogger("perdure.bus")


class Follows:
    """All follows of a process. `run` must be running for lost last records to be noticed."""

    def __init__(self, link: Link, subjects: Subjects, history: History, clock: Clock) -> None:
        self._link, self._subjects, self._history, self._clock = link, subjects, history, clock
        self._open: dict[LogKey, list[_Follow]] = {}
        self._check_now = asyncio.Event()
        link.reconnected.append(self._check_now.set)

    @asynccontextmanager
    async def follow(self, key: LogKey, after: int) -> AsyncGenerator[AsyncIterator[Record]]:
        follow = _Follow(self._history, self._clock, key, after)
        # Subscribed before the log is read, on one connection: what the read does not see, the feed brings.
        interest = await self._link.subscribe(self._subjects.feed(*key), follow.take)
        self._open.setdefault(key, []).append(follow)
        try:
            yield follow
        finally:
            same = self._open[key]
            same.remove(follow)
            if not same:
                del self._open[key]
            await interest.stop()

    def appended(self, record: Record) -> None:
        """This process stored a record itself: its followers need not wait for the feed."""
        for follow in self._open.get(LogKey(record.tenant, record.log_id), ()):
            follow.offer(record)

    async def run(self) -> None:
        """Compare all followed logs with the server, for ever."""
        while True:
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._check_now.wait()
            except TimeoutError:
                pass
            self._check_now.clear()
            try:
                await self.check()
            except PerdureError as error:
                # The next check, at the latest after the reconnect, asks for the same span again.
                _log.warning("bus.follow_check_failed", extra={"fields": {"error": error.message}})

    async def check(self) -> None:
        """One comparison: of new follows with all that there is, of the others with what came since the last one."""
        groups: dict[tuple[int, bool], dict[LogKey, list[_Follow]]] = {}
        for key, follows in self._open.items():
            for follow in follows:
                place = (shard_of(key.log_id), follow.compared > 0)
                groups.setdefault(place, {}).setdefault(key, []).append(follow)
        for asked in groups.values():
            compared = min(follow.compared for follows in asked.values() for follow in follows)
            newest, up_to = await self._history.tails(list(asked), compared)
            for key, follows in asked.items():
                for follow in follows:
                    follow.compared = max(follow.compared, up_to)
                    follow.reaches(newest.get(key, 0))


class _Follow(AsyncIterator[Record]):
    """One follower. `edge` is the last record that was queued; `reach` the newest one known to exist."""

    def __init__(self, history: History, clock: Clock, key: LogKey, after: int) -> None:
        self._history, self._clock, self._key = history, clock, key
        self._queue: deque[Record | Stored] = deque()
        self._bytes = 0
        self._edge = after
        # The log is read once from the start, whatever the feed says.
        self._reach = after + 1
        self._news = asyncio.Event()
        self._news.set()
        self.compared = 0

    def take(self, message: Msg) -> None:
        """A message of the feed, inside the reading task: it must not raise."""
        headers = message.headers or {}
        sequence, previous = headers.get("Nats-Sequence", ""), headers.get(EXPECTED_LAST, "")
        if not sequence.isdigit():
            return
        stored = Stored(headers.get("Nats-Subject", ""), int(sequence), headers, message.data)
        self._queue_or_note(
            stored, stored.sequence, int(previous) if previous.isdigit() else -1, len(message.data)
        )

    def offer(self, record: Record) -> None:
        header = record.header
        self._queue_or_note(record, header.stream_sequence, header.previous, len(record.body))

    def reaches(self, sequence: int) -> None:
        """A record of this sequence exists."""
        if sequence > self._reach:
            self._reach = sequence
        if self._reach > self._edge:
            self._news.set()

    async def __anext__(self) -> Record:
        while True:
            try:
                if self._queue:
                    return await self._taken()
                if self._reach > self._edge:
                    await self._read_on()
                    continue
            except BusUnavailable as error:
                # A follow lasts until its context ends, whatever becomes of the bus meanwhile.
                fields = {"log": self._key.log_id, "error": error.message}
                _log.warning("bus.follow_waits", extra={"fields": fields})
                await self._clock.sleep(PAUSE_S)
                continue
            self._news.clear()
            await self._news.wait()

    async def _taken(self) -> Record:
        """The head of the queue, which stays there if this is cancelled or fails."""
        head = self._queue[0]
        try:
            record = head if isinstance(head, Record) else await self._history.record(head)
        except UnreadableRecord:
            # Raised once: the next call goes on behind it, if the caller wants to.
            self._drop()
            raise
        self._drop()
        return record

    def _drop(self) -> None:
        self._bytes -= len(self._queue.popleft().body)

    async def _read_on(self) -> None:
        """Queue what the log holds behind the edge, one page of it."""
        edge = self._edge
        part = await self._history.part(self._key, edge)
        if edge != self._edge:
            # The feed was faster while the page was on its way; what it queued comes first.
            return
        for record in part.records:
            self._queue.append(record)
            self._bytes += len(record.body)
            self._edge = record.header.stream_sequence
        if not part.records:
            # The leader has nothing behind the edge: what was announced has been purged, or never came.
            self._reach = self._edge
        self._reach = max(self._reach, part.tail)

    def _queue_or_note(self, item: Record | Stored, sequence: int, previous: int, size: int) -> None:
        if sequence <= self._edge:
            return
        fits = len(self._queue) < BUFFER_RECORDS_MAX and self._bytes + size <= BUFFER_BYTES_MAX
        if previous == self._edge and (fits or not self._queue):
            self._queue.append(item)
            self._bytes += size
            self._edge = sequence
        self._reach = max(self._reach, sequence)
        self._news.set()
