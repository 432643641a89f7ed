"""The way to the endpoint: the openai client as transport, and nothing else of it.

Invariant: the only importer of openai and its HTTP client; their types and exceptions stop here. It never retries:
`completion.py` is the one owner of retries. Importing it takes a second, so `completion.py` does it late.

The client does connections, authentication and the base URL; the body comes ready and the response leaves as bytes,
because the client's own typing of both costs ten times what the rest does.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.request import getproxies

import httpx2
import openai

from services.executor.egress.request import Post
from services.executor.endpoint.connections import Connections
from services.executor.endpoint.faults import Refused, Unreachable
from services.executor.endpoint.key import Key
from services.executor.endpoint.silence import Silence

# As many as there may be slots, so that a run never waits for another one's connection.
CONNECTIONS_MAX = 10_000
KEPT_ALIVE_MAX = 100
# Shorter than the usual idle limit of servers and proxies (60 s), long enough for most tools between two turns.
KEPT_ALIVE_S = 30.0
CONNECT_TIMEOUT_S = 10.0
# The body of a request goes out in one piece; a peer that does not take it for this long is gone.
WRITE_TIMEOUT_S = 60.0
# What is read of an error's body, its message and some, and for how long.
ERROR_CHARS_MAX = 16_000
ERROR_BYTES_MAX = 64 * 1024
ERROR_BODY_S = 5.0
# What is a matter of addresses and not of the hour: redirects in a circle, or to what is no HTTP.
_LASTING = (httpx2.TooManyRedirects, httpx2.UnsupportedProtocol)

# Tells the client to hand over the response before its body was read.
_HEADERS = {
    "X-Stainless-Raw-Response": "stream",
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
}


@asynccontextmanager
async def open_endpoint(key: Key, base_url: str | None, idle_timeout_s: float) -> AsyncGenerator[Post]:
    """A pool of connections to an endpoint, which each request gives the key as it is then. `idle_timeout_s` bounds each
    wait for bytes, comments included."""
    # How long nothing may come is ours to count: the client's clock goes on while this process stands still.
    timeout = httpx2.Timeout(
        connect=CONNECT_TIMEOUT_S, read=None, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S
    )
    limits = httpx2.Limits(
        max_connections=CONNECTIONS_MAX,
        max_keepalive_connections=KEPT_ALIVE_MAX,
        keepalive_expiry=KEPT_ALIVE_S,
    )
    async with openai.AsyncOpenAI(
        api_key=key.current,
        base_url=base_url,
        max_retries=0,
        timeout=timeout,
        http_client=openai.DefaultAsyncHttpxClient(
            transport=_transport(), timeout=timeout, limits=limits, event_hooks={"response": [_bound_error]}
        ),
    ) as client:
        yield Endpoint(client, idle_timeout_s).post


class Endpoint:
    """One OpenAI-compatible endpoint."""

    def __init__(self, client: openai.AsyncOpenAI, idle_timeout_s: float) -> None:
        self._client, self._idle_timeout_s = client, idle_timeout_s

    @asynccontextmanager
    async def post(self, body: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Send a chat completion request; yields the bytes of a successful response as they come.

        Raises `Refused` for an error status and `Unreachable` when the connection fails, is silent for too long or
        breaks off. Leaving the context closes the connection unless the response was read to its end.
        """
        with Silence(self._idle_timeout_s) as silence:
            response = await self._begun(body, silence)
            try:
                yield self._pieces(response, silence)
            finally:
                await response.aclose()

    async def _begun(self, body: bytes, silence: Silence) -> httpx2.Response:
        """The response as soon as it begins."""
        try:
            return await silence.broken(
                self._client.post(
                    "/chat/completions", content=body, cast_to=httpx2.Response, options={"headers": _HEADERS}
                )
            )
        except TimeoutError as error:
            raise self._silent() from error
        except openai.APIStatusError as error:
            headers = {name.lower(): value for name, value in error.response.headers.items()}
            raise Refused(error.status_code, headers, error.response.text[:ERROR_CHARS_MAX]) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise Unreachable(_reason(cause), lasting=isinstance(cause, _LASTING)) from error
        except httpx2.RequestError as error:  # While the client read the body of an error.
            raise Unreachable(_reason(error)) from error

    async def _pieces(self, response: httpx2.Response, silence: Silence) -> AsyncGenerator[bytes]:
        pieces = response.aiter_bytes()
        try:
            while True:
                yield await silence.broken(anext(pieces))
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise self._silent() from error
        except httpx2.RequestError as error:
            raise Unreachable(_reason(error)) from error

    def _silent(self) -> Unreachable:
        return Unreachable(f"ReadTimeout: nothing came for {self._idle_timeout_s:g} s")


def _transport() -> Connections | None:
    """Ours, where the way is direct. `None`: the client's, which knows every kind of proxy."""
    if getproxies().keys() & {"http", "https", "all"}:
        return None
    return Connections(
        connections_max=CONNECTIONS_MAX, kept_alive_s=KEPT_ALIVE_S, connect_timeout_s=CONNECT_TIMEOUT_S
    )


async def _bound_error(response: httpx2.Response) -> None:
    """The client reads the body of an error to its end, whenever that comes."""
    if response.is_error and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Beginning(response.stream)


class _Beginning(httpx2.AsyncByteStream):
    """What comes of a body within bounds; whatever becomes of the rest, its status counts."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        left = ERROR_BYTES_MAX
        with suppress(TimeoutError, httpx2.RequestError):
            async with asyncio.timeout(ERROR_BODY_S):
                async for piece in self._stream:
                    yield piece[:left]
                    left -= len(piece)
                    if left <= 0:
                        break

    async def aclose(self) -> None:
        await self._stream.aclose()


def _reason(error: BaseException) -> str:
    """The fault by its name, and in the words of the first below it that has some."""
    below: BaseException | None = error
    while below is not None and not str(below):
        below = below.__cause__ or below.__context__
    return f"{type(error).__name__}: {below}" if below is not None else type(error).__name__
