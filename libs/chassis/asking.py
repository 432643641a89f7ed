"""Waiting for others: the answer of one process for as long as it lives, and the notice of a call.

Invariant: nobody waits for the answer of the dead longer than it takes to know of the death, nor for a notice longer
than it takes to look into the journal.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from libs.bus.ports import Message, Wire
from libs.contracts.errors import UNREADABLE
from libs.contracts.tools import ToolCall, ToolNotice

# Between two looks whether the asked process still lives.
LOOK_S = 1.0
# A lost notice costs one of these, and so does a host that died between two looks.
POLL_S = 1.0


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


async def noticed(messages: AsyncIterator[Message], call: ToolCall) -> None:
    """Wait until the live subject has news of the call, at most `POLL_S`; the journal says what they are."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_S):
            async for message in messages:
                if _is_about(message.body, call):
                    return


def _is_about(body: bytes, call: ToolCall) -> bool:
    try:
        notice = _notices.decode(body)
    except UNREADABLE:
        # Deltas of the model travel on the same subject, and notices of a later version may.
        return False
    return (notice.call_id, notice.attempt) == (call.call_id, call.attempt)


_notices = msgspec.json.Decoder(ToolNotice)
