"""Failures become envelopes, and every response carries its request id.

Invariant: whatever goes wrong, a client reads `{"error_code", "message", "request_id"}`; what it reads about a defect
of ours is the request id, the rest is in the log under that id.
"""

import re
from collections.abc import Iterable
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import (
    ConfigurationError,
    InternalError,
    LogError,
    MethodNotAllowed,
    NewerRecord,
    NotFound,
    NotHttp,
    PerdureError,
    RequestTimeout,
    Unauthorized,
    Unavailable,
)
from libs.contracts.views import ErrorView, FieldProblem
from services.gateway.quotas import quota_headers

REQUEST_ID = "X-Request-ID"
# Where the scope keeps the server's own `send`, for bodies in many pieces, once the head has gone the usual way.
BARE_SEND = "perdure.send"
# An id goes into headers and logs: what could break either is left out, and what is too long is cut.
REQUEST_ID_CHARS_MAX = 128
_UNWANTED = re.compile(r"[^!-~]+")
# What a message repeats of a path that leads nowhere.
PATH_CHARS_MAX = 200
# What a client waits before it tries again when the error does not say more: an election takes 4 to 9 s.
RETRY_AFTER_S = 2

_log = get_logger("gateway.http")

Headers = Iterable[tuple[bytes, bytes]]


class RequestIds:
    """Wraps the application: gives each request its id and each response the header."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app, self._clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"], self._clock)
        scope["request_id"], scope[BARE_SEND] = request_id, send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                headers.update(quota_headers(scope))
            await send(message)

        await self._app(scope, receive, send_with_id)


def unreadable(headers: Headers, clock: Clock) -> bytes:
    """The whole answer, head included, to bytes that are no HTTP request; `headers` are those that were read."""
    problem = NotHttp(
        "this is no HTTP/1.1 request; see to its method, its URL (at most 64 KiB, percent-encoded where it is not ASCII), "
        "its headers (64 KiB in all; one Host, none twice) and the length of its body, and send at most 100 ahead of their answers"
    )
    return _last_words(problem, headers, clock)


def overdue(headers: Headers, clock: Clock) -> bytes:
    """The whole answer to a request that does not come whole."""
    problem = RequestTimeout(
        "the request did not arrive whole in time; send it again at once, without pauses in it"
    )
    return _last_words(problem, headers, clock)


def _last_words(problem: PerdureError, headers: Headers, clock: Clock) -> bytes:
    """An answer beside the application, behind which the connection is closed."""
    request_id = _request_id(headers, clock)
    response = _envelope(problem, request_id)
    head = [*response.raw_headers, (REQUEST_ID.encode(), request_id.encode()), (b"connection", b"close")]
    return b"".join(
        [
            b"HTTP/1.1 %d %b\r\n" % (problem.status, HTTPStatus(problem.status).phrase.encode()),
            *(b"%b: %b\r\n" % field for field in head),
            b"\r\n",
            bytes(response.body),
        ]
    )


async def failed(request: Request, error: Exception) -> Response:
    """The answer to a failure of a request. The one place where an exception meets HTTP."""
    match error:
        case PerdureError():
            problem = error
        case HTTPException():
            problem = _of_http(error, request)
        case _:
            problem = InternalError("an internal error; the log has more under this request id")
    if isinstance(problem, NewerRecord):
        # Nothing is guessed and nothing appended on top of what this version does not understand.
        problem = ConfigurationError(
            "this run was written by a newer version of Perdure than this gateway; upgrade the gateway, or ask a newer one"
        )
    elif isinstance(problem, LogError):
        # A defect between two writers: what the client can do about it is to try again.
        problem = InternalError(f"the run's log refused: {problem.message}")
    request_id: str = request.scope["request_id"]
    if problem.status >= 500:
        # What is away for now is no defect; a monitor of errors should not drown in an outage of the bus.
        tell = _log.warning if isinstance(problem, Unavailable) else _log.error
        tell(
            "http.failed",
            request_id=request_id,
            method=request.method,
            path=request.url.path,
            code=problem.code,
            reason=repr(error),
        )
    return _envelope(problem, request_id)


def _request_id(headers: Headers, clock: Clock) -> str:
    """The client's own, as far as it can be repeated, or a new one."""
    given = dict(headers).get(b"x-request-id", b"").decode("latin-1")
    return _UNWANTED.sub("", given)[:REQUEST_ID_CHARS_MAX] or f"req_{clock.entropy(10).hex()}"


def _envelope(problem: PerdureError, request_id: str) -> Response:
    details = [FieldProblem(**item) for item in problem.details] if problem.details else None
    view = ErrorView(error_code=problem.code, message=problem.message, request_id=request_id, details=details)
    headers: dict[str, str] = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    elif isinstance(problem, Unavailable) and problem.retryable:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(problem, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="perdure"'
    if isinstance(problem, NotAllowedHere):
        headers["Allow"] = problem.allow
    return Response(
        view.model_dump_json(exclude_none=True),
        status_code=problem.status,
        headers=headers,
        media_type="application/json",
    )


class NotAllowedHere(MethodNotAllowed):
    """`METHOD_NOT_ALLOWED` with what the path does allow."""

    def __init__(self, method: str, path: str, allow: str) -> None:
        super().__init__(f"{path} does not take {method}; it takes {allow}")
        self.allow = allow


def _of_http(error: HTTPException, request: Request) -> PerdureError:
    """What the framework itself refuses."""
    if error.status_code == NotFound.status:
        path = request.url.path[:PATH_CHARS_MAX]
        return NotFound(f"there is nothing at {path}; /docs lists what there is")
    return InternalError(error.detail)
