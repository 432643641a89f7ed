"""The HTTP server: a socket, uvicorn on it, and a drain that leaves no client hanging.

Invariant: signals belong to the chassis; the server stops when it is told to, after the streams have ended.
"""

import asyncio
import errno
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from libs.contracts.clock import Clock
from libs.contracts.errors import ConfigurationError
from services.gateway.problems import overdue, unreadable

# Connections that wait to be accepted: a burst of streams that reconnect after a gateway's restart.
BACKLOG = 2048
# An idle connection is kept for a client's next request, not for ever.
KEEP_ALIVE_S = 30
# A head has no more than this; what keeps sending one is no client.
HEAD_BYTES_MAX = 64 * 1024
# The last resort for what does not read its answer; requests themselves are answered before (`requests.py`).
GRACE_S = 5


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `ConfigurationError` when the address is taken or none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} of {host} is in use; stop what listens there, or set PERDURE_PORT to another one"
            ) from error
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return bound


class Patience(NamedTuple):
    """How long a request may take to come: its head, from the first byte or the connection on, and then its body. A
    megabyte comes in time over any line; a client that sends a byte now and then would hold a connection for ever."""

    head_s: float = 15.0
    body_s: float = 60.0


PATIENCE = Patience()


async def serve_until(
    stop: asyncio.Event, app: ASGIApp, bound: socket.socket, clock: Clock, patience: Patience = PATIENCE
) -> None:
    """Serve until `stop` is set, then let running requests finish."""
    config = uvicorn.Config(
        app,
        http=_protocol(clock, patience),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[bound]))
        stopping = group.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stopping.cancel()


def _protocol(clock: Clock, patience: Patience) -> type[HttpToolsProtocol]:
    """HTTP with a bound on how long a request may take to come, and with our envelope also for what never becomes a
    request of the application."""

    class Protocol(HttpToolsProtocol):
        _due: asyncio.TimerHandle | None = None
        _in_head = True
        _head_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._expect(patience.head_s)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._head_bytes += len(data)
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response("")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_head, self._head_bytes = True, 0
            self._expect(patience.head_s)

        def on_headers_complete(self) -> None:
            self._in_head = False
            self._expect(patience.body_s)
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            # Between requests it is the keep-alive that counts.
            self._in_head, self._head_bytes = False, 0
            self._expect(None)

        def send_400_response(self, msg: str) -> None:  # noqa: ARG002 uvicorn names it so; it says less than ours
            self._end_with(unreadable(self.headers or (), clock))

        def _expect(self, within_s: float | None) -> None:
            if self._due is not None:
                self._due.cancel()
            self._due = None if within_s is None else self.loop.call_later(within_s, self._overdue)

        def _overdue(self) -> None:
            self._end_with(overdue(self.headers or (), clock))

        def _end_with(self, answer: bytes) -> None:
            # A second head in the midst of an answer, such as a stream, would be read as a part of it; and one behind the
            # answer to a request that is still coming, as the answer to the next.
            cycle = self.cycle
            answered = cycle and cycle.response_started and not (self._in_head and cycle.response_complete)
            if not answered:
                self.transport.write(answer)
            self.transport.close()

    return Protocol


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
