"""Time and chance of the simulation: virtual, and the same for the same seed.

Invariant: nothing in a schedule comes from the machine that it runs on.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

from tests.sim.loop import SimLoop

START = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


class SimClock:
    """A `Clock` on the loop's time. All processes share it: their clocks agree, as those of real machines nearly do."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self._loop = loop
        self._began_s = loop.time()
        self._chance = random.Random(f"{seed} entropy")

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time() - self._began_s)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def entropy(self, size: int) -> bytes:
        return self._chance.randbytes(size)
