"""One follower for each watched run, however many clients watch it.

Invariant: the window holds consecutive events up to `last`, each encoded once; a client is a place in it. Whoever
falls behind the window reads the log at its own pace, so no reader holds up another and none loses an event.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from libs.bus.checkpoints import Checkpoints
from libs.bus.ports import Log, LogKey, Wire
from libs.bus.runs import Projects, Runs
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Record
from libs.contracts.errors import UNREADABLE, NewerRecord, NotFound, PerdureError
from libs.contracts.ids import is_id
from libs.contracts.live import ModelDelta
from libs.contracts.project import TERMINAL as PROJECT_TERMINAL
from libs.contracts.projects import ProjectStatus
from libs.contracts.run import TERMINAL, RunStatus
from libs.contracts.subjects import Subjects
from services.gateway.frames import completed_iteration, delta_frame, is_tombstone, shown_events
from services.gateway.outline import Outline, outline, project_outline
from services.gateway.replay import Replay

# The window: what a client may lag behind before it reads the log. Deltas are most of it, and are what gets lost.
WINDOW_ENTRIES_MAX = 1024
WINDOW_BYTES_MAX = 512 * 1024

# A run or a project that waits for a person; other waits end by themselves and keep streams open.
WAITS_FOR_A_PERSON: frozenset[RunStatus | ProjectStatus] = frozenset(
    {RunStatus.WAITING_FOR_INPUT, RunStatus.RECONCILIATION_REQUIRED, ProjectStatus.BLOCKED}
)
_ENDED: frozenset[RunStatus | ProjectStatus] = frozenset({*TERMINAL, *PROJECT_TERMINAL})

_log = get_logger("gateway.watch")
_delta = msgspec.json.Decoder(ModelDelta)


class Entry(NamedTuple):
    """A frame of the window. A delta has sequence 0; `before` is where to read the log to find the event's record."""

    sequence: int
    frame: bytes
    before: int


class Part(NamedTuple):
    """A piece of the window for a client: its place and the event it wants next once `block` is written; `position` is where
    to read the log to find the last event's record, `None` when there is no event in it."""

    place: int
    block: bytes
    sequence: int
    position: int | None


class Head(NamedTuple):
    """Where a run's or a project's log stands: the last public sequence and the status after it."""

    last: int
    status: RunStatus | ProjectStatus

    def ended(self, *, follow_suspended: bool) -> bool:
        """Whether nothing comes until a person acts, or ever."""
        return self.status in _ENDED or (not follow_suspended and self.status in WAITS_FOR_A_PERSON)


class Watch:
    """A watched run. `closed`: its clients end their streams and may come again."""

    def __init__(self, log: Log, seen: Outline, replay: Replay, clock: Clock) -> None:
        self.key = seen.key
        self.replay = replay
        self.head = Head(seen.last, seen.status)
        self.closed = False
        self._log, self._clock = log, clock
        self._after = seen.position
        self._turn_over = seen.turn_over
        self._chars_max = seen.chars_max
        self._window: deque[Entry] = deque()
        self._begin = 0
        self._bytes = 0
        self._readings: set[asyncio.Timeout] = set()
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._asked: tuple[int, int, int, bool, int] | None = None
        self._part = Part(0, b"", 0, None)
        # Deltas that clients lost because they could not keep up.
        self.lost = 0

    @property
    def begin(self) -> int:
        """The place of the oldest entry; places count up for ever."""
        return self._begin

    @property
    def end(self) -> int:
        """The place of the next entry to come."""
        return self._begin + len(self._window)

    def place_of(self, sequence: int) -> int | None:
        """Where a client that wants event `sequence` next goes on; `None`: in the log."""
        if sequence > self.head.last:
            return self.end
        for index, entry in enumerate(self._window):
            if entry.sequence:
                return (
                    self._begin + index + self._events_to(index, sequence)
                    if entry.sequence <= sequence
                    else None
                )
        return None

    def lose_up_to_begin(self, place: int, sequence: int) -> None:
        """A client at `place` that wants event `sequence` next fell behind the window. Events have consecutive
        sequences and are read from the log; the rest of what it passes over are deltas, and lost to it."""
        first = next((entry.sequence for entry in self._window if entry.sequence), self.head.last + 1)
        self.lost += max(0, self.begin - place - (first - sequence))

    def part(self, place: int, sequence: int, bytes_max: int, *, deltas: bool) -> Part:
        """What to write to a client at `place` that wants event `sequence` next, about `bytes_max` at most; with or without
        deltas. Clients that keep up ask for the same, so it is put together once for all of them."""
        asked = (place, sequence, bytes_max, deltas, self.end)
        if asked != self._asked:
            self._asked, self._part = asked, self._put_together(place, sequence, bytes_max, deltas=deltas)
        return self._part

    async def changed(self, until: float) -> bool:
        """Wait for something new; `False` when nothing came until this time of the event loop."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        # For each event and client: a bare timer instead of a timeout around an `asyncio.Event`.
        timer = loop.call_at(until, _settle, waiter, False)
        self._waiting[waiter] = None
        try:
            return await waiter
        finally:
            timer.cancel()
            del self._waiting[waiter]

    async def confirmed_head(self) -> Head:
        """The head by the leader's word, for answers that deny something. Raises `NotFound` for a deleted run."""
        tail = await self._log.tail(self.key)
        if tail is None or is_tombstone(tail):
            raise NotFound(f"there is no run {self.key.log_id}")
        return Head(tail.header.last, _status(tail))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for reading in self._readings:
                reading.reschedule(asyncio.get_running_loop().time())
        self._announce()

    @asynccontextmanager
    async def while_open(self) -> AsyncGenerator[None]:
        """What is awaited inside, which may be a bus that is away, ends with the watch. Raises `TimeoutError` then."""
        async with asyncio.timeout(0 if self.closed else None) as reading:
            self._readings.add(reading)
            try:
                yield
            finally:
                self._readings.discard(reading)

    async def follow(self, wire: Wire, subjects: Subjects) -> None:
        """Follow the log and the deltas until cancelled; a failure closes the watch."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_deltas(wire, subjects.live(*self.key)))
                group.create_task(self._follow_log())
        except* PerdureError as errors:
            _log.warning("watch.lost", run_id=self.key.log_id, reason=repr(errors.exceptions[0]))
        finally:
            self.close()

    async def _follow_log(self) -> None:
        async with self._log.follow(self.key, self._after) as records:
            async for record in records:
                self._take(record)

    async def _follow_deltas(self, wire: Wire, subject: str) -> None:
        async with wire.listen(subject) as messages:
            async for message in messages:
                try:
                    delta = _delta.decode(message.body)
                except UNREADABLE:
                    continue  # The subject carries other notices too.
                if delta.iteration > self._turn_over:
                    self._add(Entry(0, delta_frame(delta, rfc3339(self._clock.now())), 0))
                    self._trim()
                    self._announce()

    def _take(self, record: Record) -> None:
        events = shown_events(record, self._chars_max)
        if not events:
            # The tombstone: whoever still watches comes again, and learns that the run is gone.
            self.close()
        for event in events:
            self._add(Entry(event.sequence, event.frame(), record.header.previous))
        if events:
            self.head = Head(events[-1].sequence, _status(record))
            self._turn_over = max(self._turn_over, completed_iteration(events) or 0)
        self._trim()
        self._announce()

    def _add(self, entry: Entry) -> None:
        self._window.append(entry)
        self._bytes += len(entry.frame)

    def _trim(self) -> None:
        while len(self._window) > WINDOW_ENTRIES_MAX or self._bytes > WINDOW_BYTES_MAX:
            self._bytes -= len(self._window.popleft().frame)
            self._begin += 1

    def _announce(self) -> None:
        for waiter in self._waiting:
            _settle(waiter, True)

    def _put_together(self, place: int, sequence: int, bytes_max: int, *, deltas: bool) -> Part:
        frames: list[bytes] = []
        size, position = 0, None
        for index in range(place - self._begin, len(self._window)):
            entry = self._window[index]
            if (entry.sequence == 0 and deltas) or entry.sequence >= sequence:
                size += len(entry.frame)
                if frames and size > bytes_max:
                    break
                frames.append(entry.frame)
                if entry.sequence:
                    sequence, position = entry.sequence + 1, entry.before
            place += 1
        return Part(place, b"".join(frames), sequence, position)

    def _events_to(self, start: int, sequence: int) -> int:
        """How many entries behind index `start` the event `sequence` lies."""
        return next(
            offset
            for offset in range(len(self._window) - start)
            if self._window[start + offset].sequence == sequence
        )


def _settle(waiter: asyncio.Future[bool], news: bool) -> None:
    if not waiter.done():
        waiter.set_result(news)


def _status(record: Record) -> RunStatus | ProjectStatus:
    """The status after a record. Raises `NewerRecord` for one that this version does not know."""
    kind = ProjectStatus if is_id("project", record.log_id) else RunStatus
    try:
        return kind(record.header.state)
    except ValueError as error:
        raise NewerRecord(
            f"{record.header.state} is no state of {record.log_id}", log_id=record.log_id
        ) from error


class _Slot:
    def __init__(self) -> None:
        self.users = 0
        self.opening = asyncio.Lock()
        self.watch: Watch | None = None
        self.task: asyncio.Task[None] | None = None


class Watches:
    """All watched runs of this gateway; `group` owns their followers."""

    def __init__(
        self,
        *,
        runs: Runs,
        projects: Projects,
        log: Log,
        wire: Wire,
        checkpoints: Checkpoints,
        subjects: Subjects,
        clock: Clock,
        group: asyncio.TaskGroup,
    ) -> None:
        self._runs, self._bus_log, self._wire, self._checkpoints = runs, log, wire, checkpoints
        self._projects = projects
        self._subjects, self._clock, self._group = subjects, clock, group
        self._slots: dict[LogKey, _Slot] = {}
        self._lost = 0
        self.draining = False

    @property
    def clients(self) -> int:
        return sum(slot.users for slot in self._slots.values())

    @property
    def lost(self) -> int:
        """Deltas that clients of this gateway lost because they could not keep up."""
        return self._lost + sum(slot.watch.lost for slot in self._slots.values() if slot.watch is not None)

    @asynccontextmanager
    async def watch(self, key: LogKey) -> AsyncGenerator[Watch]:
        """The watch of a run, made for the first client and ended with the last. Raises `NotFound`."""
        slot = self._slots.setdefault(key, _Slot())
        slot.users += 1
        try:
            async with slot.opening:
                if slot.watch is None or slot.watch.closed:
                    self._lost += slot.watch.lost if slot.watch is not None else 0
                    slot.watch = await self._opened(key, slot)
            yield slot.watch
        finally:
            slot.users -= 1
            if slot.users == 0:
                del self._slots[key]
                self._lost += slot.watch.lost if slot.watch is not None else 0
                if slot.task is not None:
                    slot.task.cancel()

    async def outline(self, key: LogKey) -> Outline:
        """Where a run's or a project's log stands. Raises `NotFound`."""
        if is_id("project", key.log_id):
            return await project_outline(self._projects, key)
        return await outline(self._runs, self._bus_log, key)

    def replay(self, seen: Outline) -> Replay:
        """The stored events of a run."""
        return Replay(self._bus_log, self._checkpoints, seen.key, seen.chars_max)

    def drain(self) -> None:
        """End all streams cleanly: their clients reconnect elsewhere with the sequence they have."""
        self.draining = True
        for slot in self._slots.values():
            if slot.watch is not None:
                slot.watch.close()
            if slot.task is not None:
                slot.task.cancel()

    async def _opened(self, key: LogKey, slot: _Slot) -> Watch:
        seen = await self.outline(key)
        watch = Watch(self._bus_log, seen, self.replay(seen), self._clock)
        if self.draining:
            watch.close()
        elif not seen.terminal:
            # Nothing follows a terminal event, so a finished run needs no follower.
            slot.task = self._group.create_task(watch.follow(self._wire, self._subjects))
        return watch
