"""Reading requests: bodies within bounds, query parameters and path ids checked and named.

Invariant: nothing unchecked passes this file; a handler works on values that are valid by type.
"""

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection
from typing import TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from libs.contracts import bodies, http
from libs.contracts.errors import (
    InvalidCursor,
    NotFound,
    PayloadTooLarge,
    UnsupportedMediaType,
    ValidationFailed,
)
from libs.contracts.ids import is_id, shard_of
from libs.projection.rows import Cursor

# Sequences are counted by the log: more digits than this are no sequence of ours.
SEQUENCE_DIGITS_MAX = 15

R = TypeVar("R", bound=http.Request)


async def body_of(request: Request, model: type[R]) -> R:
    """The validated JSON body. Raises `PayloadTooLarge`, `UnsupportedMediaType`, `ValidationFailed`."""
    body = await _bytes_of(request)
    if body and not _is_plain(request):
        raise UnsupportedMediaType(
            "send the body as it is, without Content-Encoding or a transfer coding but chunked"
        )
    if body and not _is_json(request.headers.get("content-type", "")):
        raise UnsupportedMediaType("send the body as 'Content-Type: application/json'")
    return http.parse_body(model, body)


def answer(view: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A view as a JSON response."""
    return Response(
        view.model_dump_json(), status_code=status, media_type="application/json", headers=headers
    )


def run_id_of(request: Request, shards: int) -> str:
    """The run id of the path. Raises `NotFound` for what no run can be called, without asking anybody."""
    return _existing_id(request, "run", shards)


def task_id_of(request: Request, shards: int) -> str:
    return _existing_id(request, "task", shards)


def project_id_of(request: Request, shards: int) -> str:
    return _existing_id(request, "project", shards)


def schedule_id_of(request: Request, shards: int) -> str:
    return _existing_id(request, "schedule", shards)


def log_id_of(request: Request, shards: int) -> str:
    """The id of the log that a stream is of: a run's, or a project's."""
    return (
        project_id_of(request, shards) if "project_id" in request.path_params else run_id_of(request, shards)
    )


def flag(request: Request, name: str, *, default: bool) -> bool:
    """A boolean query parameter: `true` or `false`."""
    text = _query(request, name)
    match text:
        case None:
            return default
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise _bad(name, "must be true or false")


def number(request: Request, name: str, *, default: int, least: int, most: int) -> int:
    """An integer query parameter within bounds."""
    text = _query(request, name)
    if text is None:
        return default
    if not _is_number(text) or not least <= int(text) <= most:
        raise _bad(name, f"must be a whole number from {least} to {most}")
    return int(text)


def choice(request: Request, name: str, choices: Collection[str]) -> tuple[str, ...]:
    """A query parameter of one or more values, separated by commas."""
    text = _query(request, name)
    if text is None:
        return ()
    values = tuple(text.split(","))
    if any(value not in choices for value in values):
        raise _bad(name, f"must be one of {', '.join(sorted(choices))}")
    return values


def text(request: Request, name: str) -> str | None:
    value = _query(request, name)
    if value is not None and (len(value) > bodies.NAME_CHARS_MAX or "\0" in value):
        raise _bad(name, f"must be at most {bodies.NAME_CHARS_MAX} characters without U+0000")
    return value


def sequence(name: str, value: str | None) -> int | None:
    """A sequence of events from a header or a parameter. Raises `InvalidCursor` when it is malformed."""
    if value is None:
        return None
    if not _is_number(value):
        raise InvalidCursor(f"{name} must be a sequence of this run: a whole number from 0")
    return int(value)


def query_sequence(request: Request, name: str) -> int | None:
    return sequence(name, _query(request, name))


def cursor_of(request: Request) -> Cursor | None:
    """The place that a page begins behind. Raises `InvalidCursor`."""
    given = _query(request, "cursor")
    if given is None:
        return None
    try:
        created_at, run_id = msgspec.json.decode(_decoded(given), type=tuple[str, str])
    except (binascii.Error, UnicodeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidCursor("this cursor is none of ours; take next_cursor as it was given") from error
    return Cursor(created_at, run_id)


def cursor_text(cursor: Cursor) -> str:
    return urlsafe_b64encode(msgspec.json.encode(tuple(cursor))).decode("ascii")


def path_cursor_of(request: Request) -> bytes:
    """The path that a page of files begins behind. Raises `InvalidCursor`."""
    given = _query(request, "cursor")
    try:
        return _decoded(given) if given is not None else b""
    except (binascii.Error, UnicodeError) as error:
        raise InvalidCursor("this cursor is none of ours; take next_cursor as it was given") from error


def path_cursor_text(path: bytes) -> str:
    return urlsafe_b64encode(path).decode("ascii")


def is_known(request: Request, tag: str) -> bool:
    """Whether the client has this very answer already (`If-None-Match`, RFC 9110: weak comparison)."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    known = {one.strip().removeprefix("W/") for one in given.split(",")}
    return "*" in known or tag.removeprefix("W/") in known


def _decoded(cursor: str) -> bytes:
    """Strictly: what no gateway has given is refused, not guessed at."""
    return b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)


def tagged(request: Request, body: bytes, tag: str) -> Response:
    """JSON with an `ETag`, or 304 when the client has it already. It is asked again each time: runs go on."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if is_known(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


async def _bytes_of(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > http.BODY_BYTES_MAX:
        raise _too_large()
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > http.BODY_BYTES_MAX:
                raise _too_large()
    except ClientDisconnect as error:
        raise ValidationFailed("the client left before its request was complete") from error
    return bytes(body)


def _existing_id(request: Request, kind: str, shards: int) -> str:
    identifier = str(request.path_params[f"{kind}_id"])
    if not is_id(kind, identifier) or shard_of(identifier) >= shards:
        raise NotFound(f"there is no {kind} {identifier[:80]!r}")
    return identifier


def _query(request: Request, name: str) -> str | None:
    """The parameter's value; given twice it is ambiguous and refused."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise _bad(name, "was given more than once")
    return values[0] if values else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= SEQUENCE_DIGITS_MAX


def _is_plain(request: Request) -> bool:
    """Whether the body is what it stands for, not something to be decoded first."""
    headers = request.headers
    return headers.get("content-encoding", "identity").lower() == "identity" and (
        headers.get("transfer-encoding", "chunked").lower() == "chunked"
    )


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


def _bad(name: str, message: str) -> ValidationFailed:
    return ValidationFailed(f"{name} {message}", details=[{"field": name, "message": message}])


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a body has at most {http.BODY_BYTES_MAX} bytes; put long texts into files of the workspace"
    )
