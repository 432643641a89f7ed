"""The vendor's client, made to end when it is told to.

Invariant: no cancellation is lost in it, and it waits for no socket that takes nothing any more.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

T = TypeVar("T")

# How the client says that the connection is gone; uvloop says it of a closed transport with a RuntimeError.
GONE = (nats.errors.Error, OSError, RuntimeError)

# How often a task of the client is cancelled again.
_AGAIN_S = 0.25


class NatsClient(Client):
    """Lets go of a lost connection at once, and parses headers in a tenth of the time."""

    @property
    def reconnecting(self) -> "asyncio.Task[None] | None":
        """The client's own task that looks for the server again."""
        return self._reconnection_task

    def drop(self) -> None:
        """Close the socket without sending what waits for it."""
        transport = self._transport
        if isinstance(transport, TcpTransport):
            # Nothing public reaches it.
            writer = transport._io_writer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            if writer is not None:
                writer.transport.abort()

    async def _process_op_err(self, e: Exception) -> None:
        """The connection is lost. The client looks for another one only when all is sent on this one: to a machine that is
        gone, or a server that is frozen, that takes many minutes."""
        lost = self.is_connected
        await super()._process_op_err(e)
        if lost:
            self.drop()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """Half of the cost of reading a long log was the client's character-wise check of header names. Should another
        release not call this any more, it is slower and nothing else."""
        found: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            if colon:
                found[name] = value.strip()
        return found


async def heeded(sending: Awaitable[T]) -> T:
    """What the client sends. It swallows a cancellation that comes while it waits for its socket; here it counts."""
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    sent = await sending
    if task.cancelling() > asked:
        raise asyncio.CancelledError
    return sent


async def ended(working: "asyncio.Task[None] | None") -> None:
    """Cancel a task of the client until it has ended: its time limits swallow a cancellation that meets a refused
    connection, and then it would go on trying for ever, and keep the event loop from closing."""
    while working is not None and not working.done():
        working.cancel()
        await asyncio.wait({working}, timeout=_AGAIN_S)
