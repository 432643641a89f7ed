"""Why a connection is over, and what went wrong on it: told by whoever knows first.

Invariant: the first reason stays; a reason is one cleaned line that shows no secret of the server.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import cast

import anyio
import httpx2
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from libs.contracts.errors import PerdureError
from services.toolhost.mcp.results import shown
from services.toolhost.mcp.texts import cleaned

REASON_CHARS_MAX = 500
# What the library and what is below it raise when the other side is away, breaks off or talks nonsense.
FAULTS = (
    ExceptionGroup,
    MCPError,
    OSError,
    PerdureError,
    RuntimeError,
    ValueError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
)


class Ending:
    """`over` is set once nothing more will be asked. `disowned`: the server said that it does not know the session (HTTP
    404); `doubted`: it answered so that this may be why (400)."""

    def __init__(self, secrets: Collection[bytes]) -> None:
        self.over = asyncio.Event()
        self.reason = ""
        self.disowned = False
        self.doubted = False
        self._secrets = secrets

    @property
    def is_usable(self) -> bool:
        return not (self.over.is_set() or self.disowned or self.doubted)

    def tell(self, reason: str) -> None:
        if not self.reason:
            self.reason = self.fit(reason)
        self.over.set()

    async def told(self, patience_s: float) -> None:
        """Wait a little until this is over, if it is going to be."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.over.wait()

    def fit(self, text: str) -> str:
        """`text` of a stranger as one line for a log or a model."""
        line = " ".join(cleaned(shown(text, self._secrets, REASON_CHARS_MAX), 4 * REASON_CHARS_MAX).split())
        return cleaned(line, REASON_CHARS_MAX)


def reason_of(fault: Exception) -> str:
    """What a fault means, in words that repeat no address and nothing of a message."""
    while isinstance(fault, ExceptionGroup):
        fault = cast("ExceptionGroup[Exception]", fault).exceptions[0]
    match fault:
        case ValidationError():
            return f"it answered with what the protocol does not allow ({fault.error_count()} faults)"
        case MCPError():
            return f"it refused: {fault.message} ({fault.code})"
        case httpx2.HTTPStatusError():
            return f"it answered with HTTP {fault.response.status_code}"
        case httpx2.ConnectTimeout():
            return "nobody answered at its address in time"
        case PerdureError():
            return fault.message
        case _:
            return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
