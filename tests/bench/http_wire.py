"""A client without weight: one connection, requests one after the other, and when each byte came.

Invariant: a time is taken as soon as the socket is read, before anything is parsed, so the client's own cost stays out
of the figures.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from libs.client.sse import EventParser
from libs.contracts.errors import Unavailable

ANSWER_S = 60.0


class Answered(NamedTuple):
    """An answer. `at` is when its last byte was read, in seconds of the monotonic clock."""

    status: int
    body: bytes
    at: float


class Connection(asyncio.Protocol):
    """One keep-alive connection. Made by `connected`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body: list[bytes] = []
        self._read_at = 0.0
        self._waiting: asyncio.Future[Answered] | None = None
        self._events: asyncio.Queue[tuple[int, float]] | None = None
        self._sse = EventParser()

    async def send(self, method: str, path: str, body: bytes = b"") -> Answered:
        """One request and its whole answer."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._write(method, path, body)
        async with asyncio.timeout(ANSWER_S):
            return await self._waiting

    def stream(self, path: str) -> asyncio.Queue[tuple[int, float]]:
        """Ask for server-sent events: (id, when it was read) of each that has an id, until the connection ends."""
        # Bounded by what one phase appends; the reader never falls behind its own appends.
        self._events = asyncio.Queue(100_000)
        self._write("GET", path, b"")
        return self._events

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _write(self, method: str, path: str, body: bytes) -> None:
        assert self._transport is not None
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAccept: */*\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)

    # --- Called by the loop and the parser ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of what they implement.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Unavailable(f"the connection to {self._host} was lost"))

    def data_received(self, data: bytes) -> None:
        self._read_at = time.monotonic()
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = []

    def on_body(self, body: bytes) -> None:
        if self._events is None:
            self._body.append(body)
            return
        for event in self._sse.feed(body):
            if event.last_event_id:
                self._events.put_nowait((int(event.last_event_id), self._read_at))

    def on_message_complete(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            answered = Answered(self._parser.get_status_code(), b"".join(self._body), self._read_at)
            self._waiting.set_result(answered)


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Connection]:
    """A connection to the host and port of `url`."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: Connection(place.netloc), place.hostname, place.port
    )
    try:
        yield connection
    finally:
        connection.close()
