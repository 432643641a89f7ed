"""The requests that are being carried out, and how long they may still take once the gateway drains.

Invariant: every request is answered before the process ends, if need be with a 503 that its client may repeat: nobody
is cut off because the bus is away.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from libs.contracts.errors import BusUnavailable

# A command waits up to 15 s for the bus. The chassis gives a draining service 10 s, and after the requests the lease
# (2 s) and the connection (2 s) are let go of.
GRACE_S = 3.0

T = TypeVar("T")


class Requests:
    """All requests of this gateway but the streams, which end by themselves."""

    def __init__(self) -> None:
        self._open: set[asyncio.Timeout] = set()
        self._until: float | None = None

    async def carry_out(self, work: Awaitable[T]) -> T:
        """Await `work`. Raises `BusUnavailable` when the gateway drains and the grace is over."""
        patience = asyncio.timeout_at(self._until)
        try:
            async with patience:
                self._open.add(patience)
                try:
                    return await work
                finally:
                    self._open.discard(patience)
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise BusUnavailable(
                "this gateway stops and the bus did not answer in time; look whether it took effect, then try again",
                retry_after_s=1,
            ) from error

    def drain(self) -> None:
        """From now on there is a deadline for what runs and for what still comes in."""
        self._until = asyncio.get_running_loop().time() + GRACE_S
        for patience in self._open:
            patience.reschedule(self._until)
