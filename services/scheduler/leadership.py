"""Who leads: one scheduler of a shard group acts, the others stand by with the same rows warm.

Invariant: `leads` is true only while the own lease holds, counted from the moment its renewal was sent. Safety never
needs it: two leaders send the same tickets with the same ids, and a ticket is a hint.
"""

import asyncio
from collections.abc import Callable

from libs.bus.parting import let_go
from libs.bus.ports import Bucket
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict, Unavailable
from libs.contracts.subjects import LEADERS, leader_key

_log = get_logger("leadership")


class Leadership:
    """The lease of one shard group, as one process sees it. `gained` is called each time it becomes the leader's."""

    def __init__(
        self, leases: Bucket, clock: Clock, *, boot: str, group: int, ttl_s: float, gained: Callable[[], None]
    ) -> None:
        self._leases, self._clock = leases, clock
        self._key, self._value, self._ttl_s = leader_key(group), boot.encode(), ttl_s
        self._gained = gained
        self._revision: int | None = None
        self._until = 0.0
        self._free = asyncio.Event()
        self._led = asyncio.Event()

    @property
    def leads(self) -> bool:
        return self._clock.monotonic() < self._until

    async def campaign(self) -> None:
        """Hold the lease whenever it is free, until cancelled."""
        while True:
            self._free.clear()
            led, sent_at = self.leads, self._clock.monotonic()
            try:
                self._revision = await self._held()
            except Unavailable as error:
                # A lease that cannot be renewed ends by itself.
                _log.warning("leadership.unsure", message=error.message)
            else:
                self._until = sent_at + self._ttl_s if self._revision is not None else 0.0
                if led and not self.leads:
                    _log.warning("leadership.lost")
                if self.leads and not led:
                    _log.info("leadership.gained")
                    self._gained()
            if self.leads:
                self._led.set()
            else:
                self._led.clear()
            await self._pause(sent_at)

    async def acquired(self) -> None:
        """Wait until this process leads, as far as its latest renewal says."""
        await self._led.wait()

    async def watch(self) -> None:
        """Follow the lease until cancelled, so that a free one is taken at once."""
        async with self._leases.watch(LEADERS) as changes:
            async for key, value in changes:
                if key == self._key and value is None:
                    self._free.set()

    async def release(self) -> None:
        """Let go at once, after `campaign` was cancelled: another takes over without waiting for the lease to end."""
        led, self._until = self.leads, 0.0
        if led and self._revision is not None:
            await let_go("lead", self._delete(self._revision))

    async def _delete(self, revision: int) -> None:
        """By its revision: what arrives late must not take the lead from who has it by then."""
        try:
            await self._leases.delete(self._key, revision=revision)
        except AppendConflict:
            # A renewal that was cancelled may have arrived.
            entry = await self._leases.get(self._key)
            if entry is not None and entry.value == self._value:
                await self._leases.delete(self._key, revision=entry.revision)

    async def _held(self) -> int | None:
        """The revision of the own lease after taking or renewing it; `None` when it is another's."""
        try:
            if self._revision is None:
                return await self._leases.create(self._key, self._value, ttl_s=self._ttl_s)
            return await self._leases.update(self._key, self._value, self._revision, ttl_s=self._ttl_s)
        except AppendConflict:
            entry = await self._leases.get(self._key)
            # The own value under another revision: an earlier renewal arrived although its answer did not.
            return entry.revision if entry is not None and entry.value == self._value else None

    async def _pause(self, sent_at: float) -> None:
        """Until the next renewal is due, counted from the last one: an answer that came late must not cost the lead."""
        left_s = sent_at + self._ttl_s / 3 - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._free.wait()
        except TimeoutError:
            return
