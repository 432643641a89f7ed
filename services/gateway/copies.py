"""Runs made of runs: a fork goes on from any event of another run, a retry begins its task again.

Invariant: the origin is only read; the same Idempotency-Key makes the same run, also when the first try died half way. What
was made without one, and half, is removed.
"""

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.bus.copies import Copies, Marker
from libs.bus.creation import CreateRequest, Creation
from libs.bus.ports import LogKey
from libs.bus.runs import Folded, Runs
from libs.contracts import copying
from libs.contracts.bodies import Request as Body
from libs.contracts.clock import Clock
from libs.contracts.envelope import Event
from libs.contracts.errors import (
    ConfigurationError,
    IdempotencyConflict,
    InvalidState,
    QuotaExceeded,
    RunDeleted,
    ValidationFailed,
)
from libs.contracts.events import LogEvent, RunForked
from libs.contracts.evolve import evolve
from libs.contracts.forks import Fork, Retry
from libs.contracts.http import body_hash, idempotency_key
from libs.contracts.ids import derived_run_id, random_run_id, shard_of
from libs.contracts.rewinding import nearest_saved
from libs.contracts.run import RunState, RunStatus
from libs.contracts.views import RunMade
from libs.projection.follow import Projection
from services.gateway import edge
from services.gateway.quotas import Quotas
from services.gateway.roster import Roster

# What keyed ids derive from, beside the tenant, the origin and the key: a key of a task is none of a fork.
_FORK, _RETRY = "fork", "retry"


class CopiesApi:
    """Fork and retry."""

    def __init__(
        self,
        *,
        copies: Copies,
        creation: Creation,
        runs: Runs,
        rows: Projection,
        roster: Roster,
        quotas: Quotas,
        clock: Clock,
        shards: int,
    ) -> None:
        self._copies, self._creation, self._runs, self._rows = copies, creation, runs, rows
        self._roster, self._quotas, self._clock, self._shards = roster, quotas, clock, shards

    async def fork(self, request: Request, tenant: str) -> Response:
        origin = await self._origin(request, tenant)
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, Fork)
        if body.after_sequence > origin.sequence:
            message = f"run {origin.run_id} has {origin.sequence} events; fork behind one of them"
            raise ValidationFailed(
                f"after_sequence: {message}", details=[{"field": "after_sequence", "message": message}]
            )
        return await self._forked(request, origin, body.after_sequence, body.goal, (_FORK, key), body)

    async def retry(self, request: Request, tenant: str) -> Response:
        origin = await self._origin(request, tenant)
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, Retry)
        if not origin.terminal:
            raise InvalidState(
                f"run {origin.run_id} is {origin.status}; only a run that has ended is tried again: cancel it first, or "
                "fork it"
            )
        if body.origin == "start":
            return await self._begun_again(request, origin, key, body)
        events = await self._copies.events(LogKey(tenant, origin.run_id))
        after = copying.last_checkpoint(events)
        return await self._forked(request, origin, after, None, (_RETRY, key), body)

    async def _begun_again(self, request: Request, origin: RunState, key: str | None, body: Body) -> Response:
        """A fresh run of the same task."""
        cause = (_RETRY, origin.run_id, key) if key is not None else None
        if cause is None:
            run_id = self._creation.fresh_run_id()
        else:
            run_id = derived_run_id(self._shards, origin.tenant, *cause)
        await self._may_start(request, origin.tenant, run_id, keyed=key is not None)
        created = await self._creation.create(
            CreateRequest(
                tenant=origin.tenant,
                task=origin.task,
                body_hash=body_hash(body),
                auto_start=True,
                by=origin.tenant,
                source="retry",
                cause=cause,
                task_id=origin.task_id,
                run_id=run_id,
            )
        )
        if not created.existed:
            self._rows.acknowledged(created.run_id, created.folded.last)
        return _answer(created.folded.state, origin.run_id, 0, None, existed=created.existed)

    async def _forked(
        self,
        request: Request,
        origin: RunState,
        after: int,
        goal: str | None,
        cause: tuple[str, str | None],
        body: Body,
    ) -> Response:
        kind, key = cause
        if key is not None:
            run_id = derived_run_id(self._shards, origin.tenant, kind, origin.run_id, key)
        else:
            run_id = random_run_id(self._clock, shard_of(origin.run_id))
        await self._may_start(request, origin.tenant, run_id, keyed=key is not None)
        there = await self._runs.find(origin.tenant, run_id) if key is not None else None
        target = LogKey(origin.tenant, run_id)
        if there is None:
            events = await self._copies.events(LogKey(origin.tenant, origin.run_id))
            if key is None:
                await self._copies.announce(target)
            saved = nearest_saved(events, after)
            saved = await self._copies.workspace(origin, saved, target)
            at = saved.at_sequence if saved is not None else None
            made = await self._copies.write(
                target, events[:after], _marker(origin, after, goal, at, body_hash(body))
            )
            if key is None:
                await self._copies.denounce(target)
            if made is not None:
                self._rows.acknowledged(run_id, made.last)
                return _answer(made.state, origin.run_id, after, at, existed=False)
            there = await self._runs.find(origin.tenant, run_id)
        return await self._same_again(there, target, body)

    async def _same_again(self, there: Folded | None, target: LogKey, body: Body) -> Response:
        """The first answer once more, read from the run's own marker."""
        if there is None or there.state.deleted:
            raise RunDeleted("the run of this Idempotency-Key was deleted; use a new key")
        if there.state.body_hash != body_hash(body):
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body; use a new key for a new run"
            )
        marker = _marker_of(await self._copies.events(target))
        return _answer(there.state, marker.origin, marker.sequence, marker.workspace_sequence, existed=True)

    async def _origin(self, request: Request, tenant: str) -> RunState:
        return (await self._runs.load(tenant, edge.run_id_of(request, self._shards))).state

    async def _may_start(self, request: Request, tenant: str, run_id: str, *, keyed: bool) -> None:
        """Nothing is made that cannot start, but a client's own retry gets its answer."""
        try:
            await self._roster.require_model()
            await self._quotas.require_start(request.scope, tenant, run_id)
        except (ConfigurationError, QuotaExceeded):
            if not keyed or await self._runs.find(tenant, run_id) is None:
                raise


def _marker(origin: RunState, after: int, goal: str | None, at: int | None, digest: str) -> Marker:
    """What makes a fork of the copied events: its marker, then what was open at the cut."""

    def marked(state: RunState, now: str) -> Sequence[LogEvent]:
        marker = RunForked(
            origin=origin.run_id,
            sequence=after,
            goal=goal,
            workspace_sequence=at,
            workspace=state.run_id,
            body_hash=digest,
            by=origin.tenant,
        )
        forked = evolve(state, Event(after + 1, state.run_id, now, marker))
        listed = copying.listed(forked, now)
        return [msgspec.structs.replace(marker, listed=listed), *copying.interrupted(state)]

    return marked


def _marker_of(events: Sequence[Event]) -> RunForked:
    return next(event.body for event in reversed(events) if isinstance(event.body, RunForked))


def _answer(
    state: RunState, origin: str, after: int, workspace_sequence: int | None, *, existed: bool
) -> Response:
    """Every fork and retry begins QUEUED: the first answer, given again to each retry of the request."""
    view = RunMade(
        task_id=state.task_id,
        run_id=state.run_id,
        status=RunStatus.QUEUED,
        from_run_id=origin,
        after_sequence=after,
        workspace_sequence=workspace_sequence,
    )
    location = {"Location": f"/api/runs/{state.run_id}"}
    return edge.answer(view, status=200 if existed else 201, headers=location)
