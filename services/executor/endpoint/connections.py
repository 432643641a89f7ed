"""Connections to an endpoint: aiohttp below the client's HTTP layer.

Invariant: aiohttp stops here, and what it says of a fault leaves under the names of httpx2. A body that is left before
its end closes its connection, so that the model stops at once.

With the client's default transport a piece of a stream, and that is a token, took 150 us of CPU until it was a delta;
with this one it takes 70, because the parser below is compiled. The client offers aiohttp too (`DefaultAioHttpClient`), but
so a garbled chunk is waited out as if the model were silent, and a reason phrase beyond ASCII ends the run.
"""

import asyncio
import io
import os
from collections.abc import AsyncGenerator

import aiohttp
import httpx2

# What gateways in front of models write into their headers: policies and traces of kilobytes.
_HEADER_BYTES_MAX = 64 * 1024
_HEADERS_MAX = 512


class Connections(httpx2.AsyncBaseTransport):
    """A pool of connections, to be made inside of the loop that uses it. How long an answer may take is not its concern."""

    def __init__(self, *, connections_max: int, kept_alive_s: float, connect_timeout_s: float) -> None:
        connector = aiohttp.TCPConnector(
            limit=connections_max, keepalive_timeout=kept_alive_s, ssl=httpx2.create_ssl_context()
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            # Cookies and encodings are the business of the layer above.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(connect=connect_timeout_s, sock_connect=connect_timeout_s),
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
            max_headers=_HEADERS_MAX,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The response as soon as its headers are there. Raises `httpx2.TransportError`."""
        try:
            response = await self._session.request(
                request.method,
                str(request.url),
                headers=request.headers,
                # As a file it is written in pieces, between which the loop goes on.
                data=io.BytesIO(await request.aread()),
                allow_redirects=False,
            )
        except aiohttp.ClientError as error:
            raise _translated(error) from error
        return httpx2.Response(response.status, headers=response.raw_headers, stream=_Body(response))

    async def aclose(self) -> None:
        await self._session.close()


class _Body(httpx2.AsyncByteStream):
    """The bytes of a response as they come."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        connection = response.connection  # `None` when the whole body is there already.
        protocol = connection.protocol if connection is not None else None
        self._closed = protocol.closed if protocol is not None else None
        if self._closed is None:
            self._expect_whole(None)
        else:
            self._closed.add_done_callback(self._lost)
            # Once a connection, however many responses come over it.
            self._closed.remove_done_callback(_retrieved)
            self._closed.add_done_callback(_retrieved)

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except aiohttp.ClientError as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
        self._response.release()

    def _lost(self, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            self._expect_whole(closed.exception())

    def _expect_whole(self, cause: BaseException | None) -> None:
        """Nothing more will come. aiohttp closes a connection whose chunks it cannot read, and does not tell the reader of
        the body."""
        content = self._response.content
        if content.exception() is None and not content.is_eof():
            why = f": {cause}" if cause is not None else ""
            content.set_exception(aiohttp.ClientPayloadError(f"the body is garbled or broke off{why}"))


def _retrieved(closed: asyncio.Future[None]) -> None:
    """How a connection ended is known; else asyncio would log that nobody asked."""
    if not closed.cancelled():
        closed.exception()


def _translated(error: aiohttp.ClientError) -> httpx2.TransportError:
    """The fault by the name that the layer above knows."""
    told = " ".join(str(error).split())
    match error:
        case aiohttp.ServerTimeoutError():
            return httpx2.ConnectTimeout(told)
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return httpx2.UnsupportedProtocol(f"{told} is no URL whose protocol is http or https")
        case aiohttp.ClientSSLError():
            return httpx2.ConnectError(told)
        case aiohttp.ClientConnectorError():
            return httpx2.ConnectError(
                f"cannot connect to {error.host}:{error.port}: {_cause(error.os_error)}"
            )
        case aiohttp.ClientOSError() | aiohttp.ClientPayloadError():
            return httpx2.ReadError(told)
        case aiohttp.ClientResponseError():
            return httpx2.RemoteProtocolError(f"no HTTP: {' '.join(error.message.split())}")
        case _:
            return httpx2.RemoteProtocolError(told or type(error).__name__)


def _cause(error: OSError) -> str:
    """The system's own words; those of an event loop depend on which one it is."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # What has no words comes from a handshake that the other side ended.
    return str(error) or "it ended in the TLS handshake"
