"""Schedules: made once for each Idempotency-Key, shown, changed, fired by hand, deleted.

Invariant: a command is answered only after its record is in the log. Times are the scheduler's; what a person wants done
now has its run before the answer says which.
"""

import hashlib
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.creation import Creation, scheduled
from libs.bus.runs import Schedules
from libs.contracts.clock import Clock
from libs.contracts.errors import (
    AppendConflict,
    IdempotencyConflict,
    InvalidState,
    NotFound,
    RunDeleted,
    ValidationFailed,
)
from libs.contracts.http import Nothing, body_hash, idempotency_key
from libs.contracts.ids import derived_schedule_id, random_schedule_id, scheduled_run_id
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedule_events import (
    ScheduleChanged,
    ScheduleCreated,
    ScheduleDeleted,
    ScheduleEvent,
    ScheduleFireRequested,
)
from libs.contracts.schedulehttp import ScheduleChange, ScheduleCreate
from libs.contracts.schedules import ASKED_MAX, ScheduleSpec, ScheduleStatus, first_time
from libs.contracts.scheduleviews import ScheduleCreated as Created
from libs.contracts.scheduleviews import (
    ScheduleFireAccepted,
    ScheduleList,
    ScheduleSummary,
    schedule_view,
)
from libs.contracts.tasks import Limits
from libs.projection.follow import Projection
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX, ScheduleQuery, ScheduleRow
from services.gateway import edge
from services.gateway.quotas import Quotas
from services.gateway.roster import Roster
from services.gateway.tasks import KEY_CAUSE


class SchedulesApi:
    """Everything about schedules."""

    def __init__(
        self,
        *,
        schedules: Schedules,
        creation: Creation,
        rows: Projection,
        roster: Roster,
        quotas: Quotas,
        clock: Clock,
        limits: Limits,
        shards: int,
    ) -> None:
        self._schedules, self._creation, self._rows = schedules, creation, rows
        self._roster, self._quotas, self._clock = roster, quotas, clock
        self._limits, self._shards = limits, shards

    def handlers(self) -> dict[str, Callable[[Request, str], Awaitable[Response]]]:
        """What serves each operation, by its name."""
        return {
            "create_schedule": self.create,
            "list_schedules": self.find,
            "show_schedule": self.show,
            "change_schedule": self.change,
            "delete_schedule": self.delete,
            "fire_schedule": self.fire,
        }

    async def create(self, request: Request, tenant: str) -> Response:
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, ScheduleCreate)
        spec, digest = body.spec(), body_hash(body)
        self._require_possible(spec)
        if key is None:
            shard = self._clock.entropy(1)[0] % self._shards
            schedule_id = random_schedule_id(self._clock, shard)
        else:
            schedule_id = derived_schedule_id(self._shards, tenant, KEY_CAUSE, key)
        event = ScheduleCreated(
            tenant=tenant,
            spec=spec,
            body_hash=digest,
            by=tenant,
            next_at=first_time(spec, self._clock.now()),
        )
        try:
            folded = await self._schedules.create(tenant, schedule_id, [event])
        except AppendConflict:
            return await self._made_before(tenant, schedule_id, digest)
        self._rows.acknowledged(schedule_id, folded.last)
        return _created(schedule_id, event.next_at, status=201)

    async def find(self, request: Request, tenant: str) -> Response:
        limit = edge.number(request, "limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)
        query = ScheduleQuery(
            tenant=tenant,
            limit=limit + 1,
            statuses=edge.choice(request, "status", frozenset(ScheduleStatus)),
            before=edge.cursor_of(request),
        )
        rows = await self._rows.schedules(query)
        more = edge.cursor_text(rows[limit - 1].cursor) if len(rows) > limit else None
        listed = [_summary(row) for row in rows[:limit]]
        return edge.answer(ScheduleList(schedules=listed, next_cursor=more))

    async def show(self, request: Request, tenant: str) -> Response:
        schedule_id = edge.schedule_id_of(request, self._shards)
        return edge.answer(schedule_view((await self._schedules.load(tenant, schedule_id)).state))

    async def change(self, request: Request, tenant: str) -> Response:
        schedule_id = edge.schedule_id_of(request, self._shards)
        body = await edge.body_of(request, ScheduleChange)

        def decide(state: ScheduleState) -> list[ScheduleEvent]:
            spec = body.applied(state.spec)
            self._require_possible(spec)
            return [_changed(state, spec, tenant, self._clock)] if spec != state.spec else []

        folded = await self._schedules.command(tenant, schedule_id, decide)
        self._rows.acknowledged(schedule_id, folded.last)
        return edge.answer(schedule_view(folded.state))

    async def delete(self, request: Request, tenant: str) -> Response:
        """Append the tombstone. Its runs go on; the scheduler purges what lies below."""
        schedule_id = edge.schedule_id_of(request, self._shards)
        await edge.body_of(request, Nothing)

        def decide(state: ScheduleState) -> list[ScheduleEvent]:
            if state.deleted:
                raise NotFound(f"there is no schedule {schedule_id}")
            return [ScheduleDeleted(body_hash=state.body_hash, by=tenant)]

        folded = await self._schedules.command(tenant, schedule_id, decide)
        self._rows.acknowledged(schedule_id, folded.last)
        return Response(status_code=204)

    async def fire(self, request: Request, tenant: str) -> Response:
        """Have it done now, once for each Idempotency-Key, whatever goes on and whether it is enabled or not."""
        schedule_id = edge.schedule_id_of(request, self._shards)
        key = idempotency_key(request.headers.get("idempotency-key"))
        await edge.body_of(request, Nothing)
        state = (await self._schedules.load(tenant, schedule_id)).state
        mark = hashlib.sha256(key.encode()).hexdigest() if key is not None else self._clock.entropy(16).hex()
        run_id = scheduled_run_id(schedule_id, f"{KEY_CAUSE}:{mark}")
        if not await self._creation.knows(tenant, run_id):
            await self._roster.require_model()
            await self._quotas.require_start(request.scope, tenant, run_id)
            folded = await self._schedules.command(
                tenant, schedule_id, lambda state: _asked(state, run_id, tenant)
            )
            state = folded.state
            created = await self._creation.create(scheduled(state, run_id))
            self._rows.acknowledged(run_id, max(folded.last, created.folded.last))
        return edge.answer(ScheduleFireAccepted(schedule_id=schedule_id, run_id=run_id), status=202)

    async def _made_before(self, tenant: str, schedule_id: str, digest: str) -> Response:
        """The answer to a client's own retry."""
        found = await self._schedules.find(tenant, schedule_id)
        if found is None or found.state.deleted:
            raise RunDeleted("the schedule of this Idempotency-Key was deleted; use a new key")
        if found.state.body_hash != digest:
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body; use a new key for a new schedule"
            )
        return _created(schedule_id, found.state.next_at, status=200)

    def _require_possible(self, spec: ScheduleSpec) -> None:
        """What only this deployment can judge. Raises `ValidationFailed`."""
        try:
            self._limits.lowered_by(spec.task.limits)
        except ValueError as error:
            field = "task.limits"
            raise ValidationFailed(
                f"{field}: {error}", details=[{"field": field, "message": str(error)}]
            ) from error


def _changed(state: ScheduleState, spec: ScheduleSpec, by: str, clock: Clock) -> ScheduleChanged:
    """Times are counted anew only if they are others."""
    same = all(getattr(spec, name) == getattr(state.spec, name) for name in ("cron", "timezone", "enabled"))
    next_at = state.next_at if same else first_time(spec, clock.now())
    return ScheduleChanged(spec=spec, by=by, next_at=next_at)


def _asked(state: ScheduleState, run_id: str, by: str) -> list[ScheduleEvent]:
    last = state.last_fire
    if run_id in state.asked or run_id in state.going or (last is not None and last.run_id == run_id):
        return []
    if len(state.asked) >= ASKED_MAX:
        raise InvalidState(
            f"{ASKED_MAX} fires of {state.schedule_id} wait to be noted already; is a scheduler running?"
        )
    return [ScheduleFireRequested(run_id=run_id, by=by, next_at=state.next_at)]


def _created(schedule_id: str, next_at: str | None, *, status: int) -> Response:
    view = Created(schedule_id=schedule_id, next_fire_at=next_at)
    return edge.answer(view, status=status, headers={"Location": f"/api/schedules/{schedule_id}"})


def _summary(row: ScheduleRow) -> ScheduleSummary:
    given = row._asdict()
    return ScheduleSummary.model_validate(
        {**given, "next_fire_at": row.next_at, "enabled": bool(row.enabled)}
    )
