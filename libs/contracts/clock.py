"""The seam to time and randomness: everything that needs either takes a `Clock` as an argument.

Invariant: no other module of the pure core knows what time it is. `libs/chassis/clock.py` holds the real one,
the simulation brings a virtual one.
"""

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Time, waiting and randomness."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC. For people and for due times; never for durations."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps and runs on while the machine is suspended."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellable."""
        ...

    def entropy(self, size: int) -> bytes:
        """`size` unpredictable bytes."""
        ...


def rfc3339(at: datetime) -> str:
    """`at` (aware) as RFC 3339 UTC with milliseconds and `Z`, the one form of time on every wire."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """The inverse of `rfc3339`; raises `ValueError` on anything that is not an aware RFC 3339 time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"time {text!r} carries no zone; write it as 2026-01-31T12:00:00Z")
    return at.astimezone(UTC)
