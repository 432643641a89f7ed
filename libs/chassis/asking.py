"""A question to one process, for as long as that process lives.

Invariant: nobody waits for the answer of the dead longer than it takes to know of the death.
"""

import asyncio
from collections.abc import Awaitable, Callable

from libs.bus.ports import Wire

# Between two looks whether the asked process still lives.
LOOK_S = 1.0


async def ask_living(
    wire: Wire, subject: str, body: bytes, *, timeout_s: float, gone: Callable[[], Awaitable[bool]]
) -> bytes | None:
    """The answer, or `None` once `gone` says that nobody will give one. Raises as `Wire.request` does."""
    asking = asyncio.create_task(wire.request(subject, body, timeout_s=timeout_s))
    try:
        while True:
            done, _ = await asyncio.wait({asking}, timeout=LOOK_S)
            if done:
                return asking.result()
            if await gone():
                return None
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
