"""A clock whose time passes only when somebody sleeps, and then at once.

Invariant: what was slept is known exactly; nothing waits for real time.
"""

import asyncio
from datetime import UTC, datetime, timedelta

START = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


class QuickClock:
    """A `Clock`. `slept` lists every sleep in seconds; entropy is all zeros."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=sum(self.slept))

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def entropy(self, size: int) -> bytes:
        return bytes(size)
