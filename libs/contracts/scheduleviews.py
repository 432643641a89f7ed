"""What the HTTP API gives of schedules.

Invariant: as in `views.py`: fields are only added, and a view says nothing that the state does not hold.
"""

import msgspec

from libs.contracts.schedule import ScheduleState
from libs.contracts.schedules import Overlap, ScheduleStatus
from libs.contracts.views import Object, View


class ScheduleCreated(View):
    schedule_id: str
    next_fire_at: str | None


class ScheduleFireAccepted(View):
    """The run that was asked for."""

    schedule_id: str
    run_id: str


class FireView(View):
    """A time that became a run. `due_at` is the time, `at` when the run was asked for."""

    run_id: str
    due_at: str
    at: str


class ScheduleSummary(View):
    """A schedule as lists show it. `missed`: times that passed while nobody was there, or while the clock stood still;
    `skipped`: times that passed because an earlier run went on."""

    schedule_id: str
    tenant: str
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    enabled: bool
    status: ScheduleStatus
    created_at: str
    next_fire_at: str | None
    last_run_id: str | None
    fires: int
    missed: int
    skipped: int


class ScheduleView(View):
    """A summary with the task, the last fire and what went wrong. `waiting`: times that have come and wait for an earlier
    run to end (`overlap: queue`)."""

    schedule_id: str
    tenant: str
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    enabled: bool
    status: ScheduleStatus
    created_at: str
    next_fire_at: str | None
    last_run_id: str | None
    fires: int
    missed: int
    skipped: int
    task: Object
    last_fire: FireView | None
    waiting: list[str]
    last_error: str | None
    last_sequence: int


class ScheduleList(View):
    schedules: list[ScheduleSummary]
    next_cursor: str | None


def schedule_view(state: ScheduleState) -> ScheduleView:
    last = state.last_fire
    return ScheduleView(
        schedule_id=state.schedule_id,
        tenant=state.tenant,
        name=state.spec.name,
        cron=state.spec.cron,
        timezone=state.spec.timezone,
        overlap=state.spec.overlap,
        enabled=state.spec.enabled,
        status=state.status,
        created_at=state.created_at,
        next_fire_at=state.next_at,
        last_run_id=last.run_id if last is not None else None,
        fires=state.fires,
        missed=state.missed,
        skipped=state.skipped,
        task=msgspec.to_builtins(state.spec.task),
        last_fire=FireView(**msgspec.to_builtins(last)) if last is not None else None,
        waiting=state.held,
        last_error=state.last_error or None,
        last_sequence=state.sequence,
    )
