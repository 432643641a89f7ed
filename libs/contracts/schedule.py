"""A schedule as its log tells it, and the fold: `evolve_schedule(state, event) -> state`, without clock, I/O or bus.

Invariant: nothing happens to a schedule after its tombstone; its next time is what its newest event says.
"""

from typing import cast

import msgspec

from libs.contracts import schedule_events as s
from libs.contracts.envelope import Event
from libs.contracts.errors import IllegalTransition
from libs.contracts.schedules import (
    ERROR_CHARS_MAX,
    GOING_MAX,
    Fire,
    ScheduleSpec,
    ScheduleStatus,
)

# The version of this fold: a checkpoint made by another one is not used.
SCHEDULE_FOLD_VERSION = 1


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a schedule's log up to `sequence`.

    `going`: runs that went on when the last one was made, and that one; `held`: times that wait for them to end;
    `asked`: ids of runs that people asked for and that are not in the log yet. `decided_at`: the newest of its times that
    had its run, was held or passed; never of a person's. `missed` and `skipped` count times that
    came and have no run of their own.
    """

    schedule_id: str
    tenant: str
    spec: ScheduleSpec
    body_hash: str
    created_at: str
    by: str

    sequence: int = 1
    last_event_at: str = ""
    # For the machinery of logs: nobody owns a schedule.
    epoch: int = 0
    deleted: bool = False

    next_at: str | None = None
    decided_at: str | None = None
    last_fire: Fire | None = None
    fires: int = 0
    missed: int = 0
    skipped: int = 0
    going: list[str] = []
    held: list[str] = []
    asked: list[str] = []
    last_error: str = ""

    @property
    def log_id(self) -> str:
        return self.schedule_id

    @property
    def status(self) -> ScheduleStatus:
        if self.deleted:
            return ScheduleStatus.DELETED
        if self.held or self.asked:
            return ScheduleStatus.HOLDING
        return ScheduleStatus.ACTIVE if self.spec.enabled else ScheduleStatus.PAUSED


_replace = msgspec.structs.replace


def evolve_schedule(state: ScheduleState | None, event: Event) -> ScheduleState:
    """The state after `event`. `None` is the state before the first event, which must be `schedule.created`."""
    if state is None:
        return _created(event)
    if event.sequence != state.sequence + 1 or state.deleted:
        raise IllegalTransition(
            f"event {event.sequence} of {state.schedule_id} ({event.body.type}) does not follow {state.sequence}"
        )
    return _replace(_folded(state, event), sequence=event.sequence, last_event_at=event.at)


def _created(event: Event) -> ScheduleState:
    body = event.body
    if not isinstance(body, s.ScheduleCreated) or event.sequence != 1:
        raise IllegalTransition(f"the log of {event.run_id} begins with {body.type} ({event.sequence})")
    return ScheduleState(
        schedule_id=event.run_id,
        tenant=body.tenant,
        spec=body.spec,
        body_hash=body.body_hash,
        created_at=event.at,
        by=body.by,
        last_event_at=event.at,
        next_at=body.next_at,
    )


def _folded(state: ScheduleState, event: Event) -> ScheduleState:
    match event.body:
        case s.ScheduleChanged() as body:
            held = state.held if body.spec.enabled else []
            return _replace(state, spec=body.spec, next_at=body.next_at, held=held)
        case s.ScheduleFireRequested() as body:
            return _replace(state, asked=[*state.asked, body.run_id], next_at=body.next_at)
        case s.ScheduleFired():
            return _fired(state, event)
        case s.ScheduleHeld() as body:
            return _replace(
                state,
                held=[*state.held, body.due_at],
                decided_at=_later(state.decided_at, body.due_at),
                going=body.going,
                missed=state.missed + body.missed,
                next_at=body.next_at,
            )
        case s.ScheduleSkipped() as body:
            return _replace(
                state,
                skipped=state.skipped + 1,
                decided_at=_later(state.decided_at, body.due_at),
                going=body.going,
                missed=state.missed + body.missed,
                next_at=body.next_at,
            )
        case s.ScheduleFireFailed() as body:
            going = [run_id for run_id in state.going if run_id != body.run_id]
            return _replace(
                state, going=going, last_error=body.reason[:ERROR_CHARS_MAX], next_at=body.next_at
            )
        case s.ScheduleRetimed() as body:
            return _replace(state, next_at=body.next_at)
        case s.ScheduleDeleted():
            return _replace(state, deleted=True, next_at=None)
        case other:
            raise IllegalTransition(f"{other.type} is no event of a schedule ({state.schedule_id})")


def _fired(state: ScheduleState, event: Event) -> ScheduleState:
    body = cast(s.ScheduleFired, event.body)
    of_a_person = body.run_id in state.asked
    return _replace(
        state,
        decided_at=state.decided_at if of_a_person else _later(state.decided_at, body.due_at),
        last_fire=Fire(run_id=body.run_id, due_at=body.due_at, at=event.at),
        fires=state.fires + 1,
        missed=state.missed + body.missed,
        going=[*body.going, body.run_id][-GOING_MAX:],
        held=[due_at for due_at in state.held if due_at != body.due_at],
        asked=[run_id for run_id in state.asked if run_id != body.run_id],
        last_error="",
        next_at=body.next_at,
    )


def _later(one: str | None, other: str) -> str:
    return max(one or other, other)
