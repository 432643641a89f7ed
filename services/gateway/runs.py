"""Runs and their events, read: from the log what is about one run, from the read model what is a list.

Invariant: what is said of one run is folded up to the leader's tail at the time of the request.
"""

import hashlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.bus.history import blob_name
from libs.bus.ports import Blobs, Log, LogKey
from libs.bus.runs import Folded, Runs
from libs.chassis.run import VERSION
from libs.contracts.errors import InvalidCursor, NotFound
from libs.contracts.run import RunStatus
from libs.contracts.values import WireRecording
from libs.contracts.views import (
    QuestionList,
    RunErrorView,
    RunList,
    RunSummary,
    UsageView,
    question_view,
    run_view,
)
from libs.projection.follow import Projection
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX, RunQuery, RunRow
from services.gateway import edge
from services.gateway.frames import Shown, whole_event
from services.gateway.outline import Outline
from services.gateway.watch import Watches

# One page of events: what fits a response that is built in memory and read on a phone.
EVENTS_LIMIT_DEFAULT, EVENTS_LIMIT_MAX = 200, 1000
EVENTS_BYTES_MAX = 4 * 1024 * 1024


class _Payload(msgspec.Struct, frozen=True):
    wire: WireRecording | None = None


class _Recorded(msgspec.Struct, frozen=True):
    sequence: int
    payload: _Payload


class RunsApi:
    """Everything that reads runs, but the stream."""

    def __init__(
        self, *, runs: Runs, log: Log, blobs: Blobs, rows: Projection, watches: Watches, shards: int
    ) -> None:
        self._runs, self._log, self._blobs, self._rows = runs, log, blobs, rows
        self._watches, self._shards = watches, shards

    async def find(self, request: Request, tenant: str) -> Response:
        limit = edge.number(request, "limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)
        query = RunQuery(
            tenant=tenant,
            limit=limit + 1,
            statuses=edge.choice(request, "status", frozenset(RunStatus)),
            task_id=edge.text(request, "task_id"),
            project_id=edge.text(request, "project_id"),
            text=edge.text(request, "q"),
            before=edge.cursor_of(request),
        )
        rows = await self._rows.runs(query)
        more = edge.cursor_text(rows[limit - 1].cursor) if len(rows) > limit else None
        return edge.answer(RunList(runs=[summary(row) for row in rows[:limit]], next_cursor=more))

    async def show(self, request: Request, tenant: str) -> Response:
        folded = await self._loaded(request, tenant)
        # The newest record's id: a run is what its log says, and how this version says it.
        tag = f'"{VERSION}-{folded.message_id}"'
        return edge.tagged(request, run_view(folded.state).model_dump_json().encode(), tag)

    async def questions(self, request: Request, tenant: str) -> Response:
        state = (await self._loaded(request, tenant)).state
        newest_first = [question_view(question) for question in reversed(state.questions)]
        return edge.answer(QuestionList(run_id=state.run_id, questions=newest_first))

    async def events(self, request: Request, tenant: str) -> Response:
        after = edge.query_sequence(request, "after_sequence") or 0
        limit = edge.number(request, "limit", default=EVENTS_LIMIT_DEFAULT, least=1, most=EVENTS_LIMIT_MAX)
        seen = await self._seen(request, tenant)
        if after > seen.last:
            raise InvalidCursor(f"run {seen.key.log_id} has {seen.last} events; {after} is beyond its end")
        events = await self._events(seen, after, min(limit, seen.last - after))
        body = b'{"run_id":"%s","events":[%s],"next_after_sequence":%d}' % (
            seen.key.log_id.encode(),
            b",".join(event.data for event in events),
            events[-1].sequence if events else after,
        )
        return Response(body, media_type="application/json")

    async def event(self, request: Request, tenant: str) -> Response:
        body = await self._whole(request, tenant)
        return edge.tagged(request, body, f'"{hashlib.sha256(body).hexdigest()}"')

    async def recording(self, request: Request, tenant: str) -> Response:
        """What went over the wire in the model call that an event tells of."""
        event = msgspec.json.decode(await self._whole(request, tenant), type=_Recorded)
        wire, run_id = event.payload.wire, edge.run_id_of(request, self._shards)
        data = await self._blobs.get(blob_name(tenant, wire.blob)) if wire is not None else None
        if data is None:
            raise NotFound(
                f"event {event.sequence} of {run_id} has no recording of a model call; executors record with "
                "PERDURE_RECORD_WIRE=true"
            )
        exchanges = b",".join(data.splitlines())
        body = b'{"run_id":"%s","sequence":%d,"exchanges":[%s]}' % (
            run_id.encode(),
            event.sequence,
            exchanges,
        )
        return Response(body, media_type="application/json")

    async def _whole(self, request: Request, tenant: str) -> bytes:
        """The event that the path names, with all of its text."""
        seen = await self._seen(request, tenant)
        text = str(request.path_params["sequence"])
        unknown = NotFound(f"run {seen.key.log_id} has no event {text[:20]!r}; it has 1 to {seen.last}")
        try:
            sequence = edge.sequence("sequence", text)
        except InvalidCursor:
            raise unknown from None
        if sequence is None or not 0 < sequence <= seen.last:
            raise unknown
        start = await self._watches.replay(seen).start(sequence)
        while records := await self._log.page(seen.key, start):
            for record in records:
                found = whole_event(record, sequence)
                if found is not None:
                    return found
            start = records[-1].header.stream_sequence
        raise unknown

    async def _loaded(self, request: Request, tenant: str) -> Folded:
        return await self._runs.load(tenant, edge.run_id_of(request, self._shards))

    async def _seen(self, request: Request, tenant: str) -> Outline:
        return await self._watches.outline(LogKey(tenant, edge.run_id_of(request, self._shards)))

    async def _events(self, seen: Outline, after: int, limit: int) -> list[Shown]:
        """At most `limit` events behind `after`, fewer when they are large."""
        replay = self._watches.replay(seen)
        position = await replay.start(after + 1)
        found: list[Shown] = []
        size = 0
        while len(found) < limit and size < EVENTS_BYTES_MAX:
            piece = await replay.piece(position)
            if not piece.events:
                break
            position = piece.position
            found += [event for event in piece.events if event.sequence > after]
            size = sum(len(event.data) for event in found)
        return found[:limit]


def summary(row: RunRow) -> RunSummary:
    """A row as lists show it."""
    error = None
    if row.error_code is not None:
        error = RunErrorView(error_code=row.error_code, message=row.error_message or "")
    return RunSummary(
        run_id=row.run_id,
        task_id=row.task_id,
        parent_run_id=row.parent_run_id,
        tenant=row.tenant,
        goal=row.title,
        status=RunStatus(row.status),
        attempt=row.attempt,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_sequence=row.last_sequence,
        last_event_at=row.last_event_at,
        workspace=row.workspace,
        priority=row.priority,
        metadata=msgspec.json.decode(row.metadata, type=dict[str, str]),
        pending_question=row.pending_question,
        answer=row.answer,
        verdict=row.verdict,
        error=error,
        usage=UsageView(
            requests=row.requests,
            input_tokens=row.input_tokens,
            cached_tokens=row.cached_tokens,
            cache_write_tokens=row.cache_write_tokens,
            output_tokens=row.output_tokens,
            reasoning_tokens=row.reasoning_tokens,
            cost_usd=row.cost_usd,
        ),
    )
