"""From a record of a schedule to the changes of rows that it means. Pure.

Invariant: as in `fold.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from libs.contracts import schedule_events as s
from libs.contracts.envelope import Event, Record


class ScheduleMade(NamedTuple):
    schedule_id: str
    tenant: str
    name: str
    cron: str
    timezone: str
    overlap: str
    enabled: int
    status: str
    created_at: str
    next_at: str | None
    last_sequence: int


class ScheduleMoved(NamedTuple):
    """What a record changed about a schedule: `None` leaves a column as it is but `next_at`; counts are added."""

    schedule_id: str
    status: str
    last_sequence: int
    next_at: str | None = None
    name: str | None = None
    cron: str | None = None
    timezone: str | None = None
    overlap: str | None = None
    enabled: int | None = None
    run_id: str | None = None
    due_at: str | None = None
    fired: int = 0
    missed: int = 0
    skipped: int = 0


class ScheduleRemoved(NamedTuple):
    schedule_id: str


ScheduleChange = ScheduleMade | ScheduleMoved | ScheduleRemoved


def schedule_changes(record: Record, events: Sequence[tuple[str, Event | None]]) -> list[ScheduleChange]:
    """The changes of rows that a record of a schedule means. `events`: its events with their times."""
    header, found = record.header, list[ScheduleChange]()
    moved: ScheduleMoved | None = None
    for at, event in events:
        body = event.body if event is not None else None
        if isinstance(body, s.ScheduleCreated):
            found.append(_schedule_made(record, body, at))
        elif isinstance(body, s.ScheduleDeleted):
            return [ScheduleRemoved(record.log_id)]
        elif isinstance(body, s.ScheduleEvent):
            moved = moved or ScheduleMoved(record.log_id, header.state, header.last)
            moved = _schedule_moved(moved._replace(next_at=body.next_at), body)
    return [*found, moved] if moved is not None else found


def _schedule_made(record: Record, body: s.ScheduleCreated, at: str) -> ScheduleMade:
    return ScheduleMade(
        schedule_id=record.log_id,
        tenant=body.tenant,
        name=body.spec.name,
        cron=body.spec.cron,
        timezone=body.spec.timezone,
        overlap=body.spec.overlap,
        enabled=int(body.spec.enabled),
        status=record.header.state,
        created_at=at,
        next_at=body.next_at,
        last_sequence=record.header.last,
    )


def _schedule_moved(moved: ScheduleMoved, body: s.ScheduleEvent) -> ScheduleMoved:
    match body:
        case s.ScheduleChanged(spec=spec):
            return moved._replace(
                name=spec.name,
                cron=spec.cron,
                timezone=spec.timezone,
                overlap=spec.overlap,
                enabled=int(spec.enabled),
            )
        case s.ScheduleFired(run_id=run_id, due_at=due_at, missed=missed):
            return moved._replace(
                run_id=run_id, due_at=due_at, fired=moved.fired + 1, missed=moved.missed + missed
            )
        case s.ScheduleHeld(missed=missed):
            return moved._replace(missed=moved.missed + missed)
        case s.ScheduleSkipped(missed=missed):
            return moved._replace(skipped=moved.skipped + 1, missed=moved.missed + missed)
        case _:
            return moved
