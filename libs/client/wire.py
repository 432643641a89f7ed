"""Requests and answers of the gateway, as views and errors.

Invariant: every failure is raised as one of `libs/contracts/errors.py`; nothing of the HTTP library passes this file but
the connection that streams are made of. A request is repeated only where twice is once: it reads, it has an
`Idempotency-Key`, or it never left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from libs.client.problems import GatewayUnreachable, problem
from libs.contracts.errors import PerdureError

DEFAULT_URL = "http://127.0.0.1:8000"
# A command may wait 15 s for the bus to elect a leader; the gateway answers by then.
TIMEOUT_S = 30.0

# What may be repeated is, after 0.2 s and then twice as long each time: longer than a gateway takes to be restarted, shorter
# than a person waits. A gateway that asks for more patience than the last figure is not waited for.
RETRIES_MAX, RETRY_S, RETRY_AFTER_S_MAX = 5, 0.2, 10.0

IDEMPOTENCY_KEY = "Idempotency-Key"

V = TypeVar("V", bound=BaseModel)
Sleep = Callable[[float], Awaitable[None]]


class Wire:
    """One gateway; use it as a context manager."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout_s, transport=_Transport()
        )
        self._url, self._sleep = url, sleep
        self._was_there = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, view: type[V], query: Mapping[str, object] | None = None) -> V:
        params = {name: str(value) for name, value in (query or {}).items() if value is not None}
        return view.model_validate_json(await self.send("GET", path, params=params))

    async def post(
        self,
        path: str,
        view: type[V],
        body: BaseModel | None = None,
        idempotency_key: str | None = None,
        *,
        method: str = "POST",
    ) -> V:
        headers = {"Content-Type": "application/json"}
        if idempotency_key is not None:
            headers[IDEMPOTENCY_KEY] = idempotency_key
        content = body.model_dump_json(exclude_unset=True, by_alias=True) if body is not None else "{}"
        return view.model_validate_json(await self.send(method, path, headers=headers, content=content))

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: str | None = None,
    ) -> bytes:
        """The body of the answer. Repeats what may be repeated; a gateway that was never there is not waited for."""
        again = method == "GET" or IDEMPOTENCY_KEY in (headers or {})
        for attempt in range(RETRIES_MAX + 1):
            try:
                response = await self._http.request(
                    method, path, params=params, headers=headers, content=content
                )
            except httpx.TransportError as error:
                failed, helps = self._lost(error), again or isinstance(error, httpx.ConnectError)
                may_wait, cause = self._was_there and helps, error
            else:
                self._was_there = True
                if not response.is_error:
                    return response.content
                failed = problem(response.status_code, response.content, response.headers.get("Retry-After"))
                may_wait, cause = failed.retryable and again, None
            wait_s = max(RETRY_S * 2**attempt, failed.retry_after_s or 0)
            if not may_wait or attempt == RETRIES_MAX or wait_s > RETRY_AFTER_S_MAX:
                raise failed from cause
            await self._sleep(wait_s)
        raise AssertionError("the last attempt neither answered nor failed")

    def _lost(self, error: Exception) -> PerdureError:
        if isinstance(error, PerdureError):
            return error
        return GatewayUnreachable(
            f"no gateway answers at {self._url} ({type(error).__name__}); start one with `perdure up`, "
            "or name the right one in PERDURE_URL"
        )


class _Transport(httpx.AsyncHTTPTransport):
    """A gateway that dies while a connection to it is made looks like any other that is not there."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            # On uvloop the library below asks the socket of a connection that is closed already for its peer.
            raise httpx.ConnectError("the connection broke while it was made", request=request) from error


def part(identifier: str) -> str:
    """An identifier as one part of a path."""
    return quote(identifier, safe="")
