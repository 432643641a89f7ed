"""Durable timers in memory.

Invariant: as on the servers: one timer an event that a run waits on, setting it again replaces it, and a fired one is a
message of the timers' stream.
"""

import asyncio
from datetime import datetime

import msgspec

from libs.bus.ports import LogKey
from libs.bus.twin.link import Link
from libs.bus.twin.link import Timers as Later
from libs.bus.twin.work import StreamStore
from libs.contracts.clock import Clock
from libs.contracts.subjects import Subjects
from libs.contracts.tasks import Timer


class TimerStore:
    """The timers of a deployment. `stream` takes what has fired."""

    def __init__(self, later: Later, subjects: Subjects, stream: StreamStore, clock: Clock) -> None:
        self._later, self._subjects, self._stream, self._clock = later, subjects, stream, clock
        self._set: dict[tuple[str, int], asyncio.Handle] = {}
        self._fired = 0

    def arm(self, key: LogKey, sequence: int, due_at: datetime) -> None:
        self.cancel(key.log_id, sequence)
        delay_s = max(0.0, (due_at - self._clock.now()).total_seconds())
        self._set[key.log_id, sequence] = self._later.at(delay_s, lambda: self._fire(key, sequence))

    def cancel(self, run_id: str, sequence: int) -> None:
        handle = self._set.pop((run_id, sequence), None)
        if handle is not None:
            handle.cancel()

    def standing(self) -> set[tuple[str, int]]:
        subjects = {message.subject for message in self._stream.messages.values()}
        fired = {place for place in map(self._subjects.parse_timer, subjects) if place is not None}
        return set(self._set) | fired

    def lose_all(self) -> None:
        """Somebody deleted the stream."""
        for handle in self._set.values():
            handle.cancel()
        self._set.clear()
        self._stream.lose_all()

    def _fire(self, key: LogKey, sequence: int) -> None:
        self._set.pop((key.log_id, sequence), None)
        self._fired += 1
        body = _encode(Timer(tenant=key.tenant, run_id=key.log_id, sequence=sequence))
        self._stream.publish(self._subjects.fired(key.log_id, sequence), {}, body, f"fired:{self._fired}")


class TwinTimers:
    """`Timers` of one process."""

    def __init__(self, link: Link, store: TimerStore) -> None:
        self._link, self._store = link, store

    async def arm(self, key: LogKey, sequence: int, due_at: datetime) -> None:
        await self._link.call(
            "timer.arm", f"{key.log_id}.{sequence}", lambda: self._store.arm(key, sequence, due_at)
        )

    async def cancel(self, run_id: str, sequence: int) -> None:
        await self._link.call(
            "timer.cancel", f"{run_id}.{sequence}", lambda: self._store.cancel(run_id, sequence)
        )

    async def standing(self) -> set[tuple[str, int]]:
        return await self._link.call("timer.standing", "", self._store.standing)


_encode = msgspec.json.Encoder().encode
