"""One request to an address that a tenant named.

Invariant: the connection goes to the very address that was judged (a name that resolves to something else a moment later
changes nothing), redirects are not followed, and neither time nor size of an answer is the receiver's to choose.
"""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple, cast

import httpcore

from libs.policy.outbound import Outbound

# A receiver takes a message and works later; the queue waits meanwhile.
REQUEST_S = 15.0
# Of an answer only the status counts; some is read so that the connection can be used again.
ANSWER_BYTES_MAX = 64 * 1024
PROBLEM_CHARS_MAX = 300


class Answer(NamedTuple):
    """What came of a request: a status, or why there is none."""

    status: int | None
    problem: str | None = None

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Sender:
    """Sends requests to where `outbound` lets them go."""

    def __init__(self, outbound: Outbound) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_Judged(outbound),
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send, and say what came of it; never raises for what the other side does."""
        sent = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            async with (
                asyncio.timeout(REQUEST_S),
                self._pool.stream("POST", url.encode(), headers=sent, content=body) as response,
            ):
                read = 0
                async for chunk in response.aiter_stream():
                    read += len(chunk)
                    if read > ANSWER_BYTES_MAX:
                        break
                return Answer(response.status)
        except TimeoutError:
            return Answer(None, f"no answer within {REQUEST_S:g} s")
        except _Refused as error:
            return Answer(None, str(error))
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            httpcore.UnsupportedProtocol,
            OSError,
            UnicodeError,
        ) as error:
            return Answer(None, f"{type(error).__name__}: {error}"[:PROBLEM_CHARS_MAX])

    async def close(self) -> None:
        await self._pool.aclose()


class _Refused(Exception):
    """The name leads to an address that is not for tenants."""


class _Judged(httpcore.AsyncNetworkBackend):
    """Resolves a name once, judges every address that it has, and connects to one of those."""

    def __init__(self, outbound: Outbound) -> None:
        self._outbound = outbound
        # The library knows the class only where anyio is installed, as it is here.
        self._plain = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 the protocol of the library names it so
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in found))
        for address in addresses:
            if not self._outbound.allows(host, ip_address(address)):
                raise _Refused(
                    f"{host} is {address}, which is no public address; operators allow it with PERDURE_WEBHOOK_ALLOW"
                )
        return await self._plain.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._plain.sleep(seconds)
