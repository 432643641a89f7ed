"""One request to a tracker that the operator named.

Invariant: whatever the other side does ends as an answer with 200 or 304, or as `SourceAway`: within a time, and of a
bounded size. Redirects are not followed: a token goes to nobody else.
"""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

import httpcore

from services.scheduler.sources.wish import SourceAway

REQUEST_S = 30.0
# A hundred issues with the longest bodies that a tracker takes.
ANSWER_BYTES_MAX = 16 * 1024 * 1024
_USED = frozenset({200, 304})


class Fetched(NamedTuple):
    """`headers` by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def fetch(url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Fetched:
    """The answer. Raises `SourceAway` that says why there is none, or none that is of use."""
    sent = {"User-Agent": "perdure", **headers}
    try:
        async with asyncio.timeout(REQUEST_S):
            fetched = await _get(f"{url}?{urlencode(query)}", sent)
    except TimeoutError as error:
        raise SourceAway(f"{url} did not answer within {REQUEST_S:g} s") from error
    except (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.TimeoutException,
        httpcore.UnsupportedProtocol,
        OSError,
        UnicodeError,
    ) as error:
        raise SourceAway(f"{url} cannot be reached: {type(error).__name__}") from error
    if fetched.status not in _USED:
        wait = fetched.headers.get("retry-after") or fetched.headers.get("x-ratelimit-reset")
        told = f" (wait: {wait[:40]})" if wait else ""
        raise SourceAway(f"{url} answered {fetched.status}{told}; look at the token, the name and the limits")
    return fetched


async def _get(url: str, headers: Mapping[str, str]) -> Fetched:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    # A connection a request: there is one in half a minute.
    async with (
        httpcore.AsyncConnectionPool(max_connections=1) as pool,
        pool.stream("GET", url.encode(), headers=raw) as response,
    ):
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise SourceAway(f"an answer is larger than {ANSWER_BYTES_MAX} bytes")
        got = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Fetched(response.status, got, bytes(body))
