"""The way to a server with an address: streamable HTTP.

Invariant: what a server sends has a bound however it is sent; its headers go to its own origin alone (the library follows
no redirect away from it), and no request is sent twice.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.ending import Ending

# One answer: ten megabytes of text, escaped.
ANSWER_BYTES_MAX = 32 << 20
_CONNECT_S, _WRITE_S = 10.0, 30.0
# To say goodbye is polite; a server that is slow to hear it is left.
_GOODBYE_S = 0.5
_SESSION_HEADER = "mcp-session-id"


@asynccontextmanager
async def address(server: McpServer, ending: Ending) -> AsyncGenerator[TransportStreams]:
    """Messages to and from the server while the context lasts. How long an answer may take is the caller's affair."""

    async def received(response: httpx2.Response) -> None:
        if response.request.headers.get(_SESSION_HEADER):
            ending.disowned = ending.disowned or response.status_code == 404
            ending.doubted = ending.doubted or response.status_code == 400
        if response.headers.get("content-encoding", "identity") != "identity":
            # A few bytes of it can be any number of others.
            raise httpx2.RemoteProtocolError("it compresses what it was asked not to")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            # Events are bounded one by one, by the library.
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)

    async def sent(request: httpx2.Request) -> None:
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(_GOODBYE_S).as_dict()

    async with (
        httpx2.AsyncClient(
            headers={**server.headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=_CONNECT_S, write=_WRITE_S, pool=_CONNECT_S),
            event_hooks={"request": [sent], "response": [received]},
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=ANSWER_BYTES_MAX
        ) as streams,
    ):
        yield streams


class _Bounded(httpx2.AsyncByteStream):
    """A body that breaks off where it is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        async for block in self._stream:
            taken += len(block)
            if taken > ANSWER_BYTES_MAX:
                raise httpx2.RemoteProtocolError(f"it answered with more than {ANSWER_BYTES_MAX >> 20} MiB")
            yield block

    async def aclose(self) -> None:
        await self._stream.aclose()
