"""One request to a tracker that the operator named.

Invariant: whatever the other side does ends as an answer, or as `SourceAway`: within a time, and of a bounded size.
Redirects are not followed: a token goes to nobody else. What the other side says of a failure is not repeated, but for
numbers.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import urlencode

import httpcore

from services.scheduler.sources.wish import SourceAway

REQUEST_S = 30.0
# A hundred issues with the longest bodies that a tracker takes.
ANSWER_BYTES_MAX = 16 * 1024 * 1024
# When to ask again, as trackers say it: in seconds, or at a time in seconds or milliseconds since 1970.
_RETRY_AFTER = "retry-after"
_RESETS = ("x-ratelimit-reset", "x-ratelimit-requests-reset", "x-ratelimit-complexity-reset")
_MILLISECONDS_FROM = 1e11
# What no limit of a tracker is longer than.
WAIT_S_MAX = 3600


class Fetched(NamedTuple):
    """`headers` by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def get(url: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Fetched:
    """The answer, whatever its status. Raises `SourceAway` that says why there is none."""
    return await _ask("GET", f"{url}?{urlencode(query)}" if query else url, headers, None)


async def post(url: str, body: bytes, headers: Mapping[str, str]) -> Fetched:
    """The same, for a question that is a JSON document."""
    return await _ask("POST", url, {"Content-Type": "application/json", **headers}, body)


def refused(url: str, fetched: Fetched, now: datetime, said: str = "") -> SourceAway:
    """An answer that is of no use, with what it says of the time to ask again. `said`: a word of ours about it."""
    wait_s = _wait_s(fetched.headers, now)
    told = f" {said}" if said else ""
    told += f" (wait {wait_s} s)" if wait_s is not None else ""
    return SourceAway(
        f"{url} answered {fetched.status}{told}; look at the token, the name and the limits",
        retry_after_s=wait_s,
    )


def _wait_s(headers: Mapping[str, str], now: datetime) -> int | None:
    """When to ask again; the tracker's limits count only when nothing is left of one."""
    given = headers.get(_RETRY_AFTER, "")
    if given.isdecimal():
        return min(int(given[:9]), WAIT_S_MAX)
    ends = [_seconds(headers[name]) - now.timestamp() for name in _RESETS if _is_used_up(headers, name)]
    return max(0, min(int(max(ends)) + 1, WAIT_S_MAX)) if ends else None


def _is_used_up(headers: Mapping[str, str], reset: str) -> bool:
    return (
        headers.get(reset, "").isdecimal() and headers.get(reset.replace("-reset", "-remaining"), "0") == "0"
    )


def _seconds(text: str) -> float:
    number = float(text[:15])
    return number / 1000 if number >= _MILLISECONDS_FROM else number


async def _ask(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Fetched:
    named = url.partition("?")[0]
    try:
        async with asyncio.timeout(REQUEST_S):
            return await _answer(method, url, {"User-Agent": "perdure", **headers}, body)
    except TimeoutError as error:
        raise SourceAway(f"{named} did not answer within {REQUEST_S:g} s") from error
    except (
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.TimeoutException,
        httpcore.UnsupportedProtocol,
        OSError,
        UnicodeError,
    ) as error:
        raise SourceAway(f"{named} cannot be reached: {type(error).__name__}") from error


async def _answer(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Fetched:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    # A connection a request: there is one in half a minute.
    async with (
        httpcore.AsyncConnectionPool(max_connections=1) as pool,
        pool.stream(method, url.encode(), headers=raw, content=body) as response,
    ):
        got = bytearray()
        async for chunk in response.aiter_stream():
            got += chunk
            if len(got) > ANSWER_BYTES_MAX:
                raise SourceAway(f"an answer is larger than {ANSWER_BYTES_MAX} bytes")
        told = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Fetched(response.status, told, bytes(got))
