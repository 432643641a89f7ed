"""The real clock. Together with `libs/contracts/ids.py` the only place that knows time and randomness.

Invariant: `monotonic` never jumps and runs on while the machine is suspended, so a lease that ran out during a
suspend is seen to have run out.
"""

import asyncio
import secrets
import time
from datetime import UTC, datetime

# Linux counts suspended time in CLOCK_BOOTTIME only; elsewhere the monotonic clock is the best there is.
_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """`Clock` of a real process."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def entropy(self, size: int) -> bytes:
        return secrets.token_bytes(size)


class HurriedClock(SystemClock):
    """The system's clock for somebody whose waits are `scale` times as long, so that tests need not sit them out."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds * self._scale)
