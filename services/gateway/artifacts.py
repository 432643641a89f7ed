"""The files of a run's workspace and their change, asked of a host that has them; a gateway touches no workspace.

Invariant: what is downloaded is one version of one file, byte for byte, or the connection breaks; no browser executes it
or guesses what it is.
"""

import mimetypes
import os
from typing import Protocol
from urllib.parse import quote, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.artifacts import Artifact, ArtifactList, DiffView
from libs.contracts.errors import BusUnavailable, InvalidState, NotFound, PerdureError
from libs.contracts.looks import (
    PART_BYTES_MAX,
    Diff,
    FileFound,
    FileList,
    ListFiles,
    NotSeen,
    Part,
    Question,
    ReadPart,
    ShowDiff,
)
from libs.contracts.run import RunState
from services.gateway import edge
from services.gateway.places import Place, Places

ARTIFACTS_LIMIT_DEFAULT, ARTIFACTS_LIMIT_MAX = 200, 1000
# /api/runs/{run_id}/artifacts/{path}: where the path begins.
_PATH_SEGMENT = 5

_log = get_logger("gateway.artifacts")


class ArtifactsApi:
    """Everything that shows workspaces."""

    def __init__(self, runs: Runs, places: Places, *, shards: int) -> None:
        self._runs, self._places, self._shards = runs, places, shards

    async def find(self, request: Request, tenant: str) -> Response:
        limit = edge.number(
            request, "limit", default=ARTIFACTS_LIMIT_DEFAULT, least=1, most=ARTIFACTS_LIMIT_MAX
        )
        after = edge.path_cursor_of(request)
        state = await self._loaded(request, tenant)
        place = await self._places.of(state)
        if place is None:
            nothing = ArtifactList(run_id=state.run_id, artifacts=[], complete=True, next_cursor=None)
            return edge.answer(nothing)
        found = await self._asked(state, place, ListFiles(after=after, limit=limit))
        assert isinstance(found, FileList), found
        more = edge.path_cursor_text(found.files[-1].path) if found.more and found.files else None
        artifacts = [_artifact(state.run_id, file) for file in found.files]
        return edge.answer(
            ArtifactList(run_id=state.run_id, artifacts=artifacts, complete=found.complete, next_cursor=more)
        )

    async def download(self, request: Request, tenant: str) -> Response:
        state = await self._loaded(request, tenant)
        path = _path_of(request)
        place = await self._places.of(state)
        if place is None:
            raise NotFound(f"the workspace of {state.run_id} is empty: nothing was done in it yet")
        length = 0 if request.method == "HEAD" else PART_BYTES_MAX
        first = await self._asked(state, place, ReadPart(path=path, length=length))
        assert isinstance(first, Part), first
        headers = {**_headers_for(path), "ETag": f'"{first.sha256}"'}
        if edge.is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        headers["Content-Length"] = str(first.size_bytes)
        if request.method == "HEAD" or len(first.data) == first.size_bytes:
            return Response(first.data, headers=headers)

        async def part(offset: int) -> bytes:
            question = ReadPart(path=path, offset=offset, version=first.version)
            found = await self._asked(state, place, question)
            assert isinstance(found, Part), found
            return found.data

        return _Download(first, headers, part)

    async def diff(self, request: Request, tenant: str) -> Response:
        narrowed = edge.text(request, "path") or ""
        state = await self._loaded(request, tenant)
        place = await self._places.of(state)
        baseline = state.attachment.baseline if state.attachment is not None else None
        if place is None or baseline is None:
            return edge.answer(DiffView(run_id=state.run_id, diff="", truncated=False))
        question = ShowDiff(baseline=baseline, path=os.fsencode(narrowed))
        found = await self._asked(state, place, question)
        assert isinstance(found, Diff), found
        text = found.text.decode("utf-8", "replace")
        return edge.answer(DiffView(run_id=state.run_id, diff=text, truncated=found.cut))

    async def _asked(self, state: RunState, place: Place, question: Question) -> FileList | Part | Diff:
        """What the host saw. Raises what the reason stands for when it saw nothing."""
        answer = await self._places.ask(state, place, question)
        if not isinstance(answer, NotSeen):
            return answer
        match answer.reason:
            case "missing" | "absent":
                raise NotFound(f"in the workspace of {state.run_id}: {answer.message}")
            case "large" | "baseline" | "changed":
                raise InvalidState(f"in the workspace of {state.run_id}: {answer.message}")
            case _:
                raise BusUnavailable(
                    f"the host of the workspace could not look: {answer.message}; see its log"
                )

    async def _loaded(self, request: Request, tenant: str) -> RunState:
        return (await self._runs.load(tenant, edge.run_id_of(request, self._shards))).state


class _ReadMore(Protocol):
    async def __call__(self, offset: int, /) -> bytes: ...


class _Download(Response):
    """Writes a file part by part; one that cannot be had whole ends the connection short of its length."""

    def __init__(self, first: Part, headers: dict[str, str], part: _ReadMore) -> None:
        super().__init__(headers=headers)
        self._first, self._part = first, part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        data, offset = self._first.data, 0
        while data:
            offset += len(data)
            whole = offset == self._first.size_bytes
            await send({"type": "http.response.body", "body": data, "more_body": not whole})
            if whole:
                return
            try:
                data = await self._part(offset)
            except PerdureError as error:
                _log.warning("download.broken", reason=error.message)
                return


def _artifact(run_id: str, file: FileFound) -> Artifact:
    return Artifact(
        path=file.path.decode("utf-8", "replace"),
        size_bytes=file.size_bytes,
        link=file.link,
        href=f"/api/runs/{run_id}/artifacts/{quote(file.path)}",
    )


def _path_of(request: Request) -> bytes:
    """The path as its bytes were sent: names of files need not be text."""
    segments: list[bytes] = request.scope["raw_path"].split(b"/", _PATH_SEGMENT)
    if len(segments) > _PATH_SEGMENT and segments[_PATH_SEGMENT - 1] == b"artifacts":
        return unquote_to_bytes(segments[_PATH_SEGMENT])
    return str(request.path_params["path"]).encode("utf-8", "surrogateescape")


def _headers_for(path: bytes) -> dict[str, str]:
    """What keeps a browser from taking a file for a page of this gateway."""
    name = path.rpartition(b"/")[2]
    kind, encoding = mimetypes.guess_type(name.decode("utf-8", "replace"))
    return {
        "Content-Type": kind if kind is not None and encoding is None else "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, no-cache",
    }
