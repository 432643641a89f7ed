"""Every event of a schedule's own log, frozen, in the past tense.

Invariant: as in `events.py`: an event says what became true and carries all that the fold needs. Each says when the next
time is, so that the newest record of a log is all that a timer needs to know.
"""

import msgspec

from libs.contracts.eventbody import EventBody
from libs.contracts.schedules import ScheduleSpec


class ScheduleCreated(EventBody, frozen=True, kw_only=True):
    type = "schedule.created"
    life = True
    tenant: str
    spec: ScheduleSpec
    body_hash: str
    by: str
    next_at: str | None = None


class ScheduleChanged(EventBody, frozen=True, kw_only=True):
    """`spec` is the whole of it, as it is from now on. What waited for its turn does no more when it is switched off."""

    type = "schedule.changed"
    life = True
    spec: ScheduleSpec
    by: str
    next_at: str | None = None


class ScheduleFireRequested(EventBody, frozen=True, kw_only=True):
    """A person wants it to run now, whatever goes on: the id of the run was told."""

    type = "schedule.fire_requested"
    life = True
    run_id: str
    by: str
    next_at: str | None = None


class ScheduleFired(EventBody, frozen=True, kw_only=True):
    """The intent of a run; its id derives from the schedule and the time (or the request), so there is one however often
    it is made. `missed`: later times that had passed as well and are passed over. `going`: earlier runs that went on."""

    type = "schedule.fired"
    life = True
    due_at: str
    run_id: str
    missed: int = 0
    going: list[str] = msgspec.field(default_factory=list[str])
    next_at: str | None = None


class ScheduleHeld(EventBody, frozen=True, kw_only=True):
    """A time came while an earlier run went on: its run is made when that one has ended (`overlap: queue`)."""

    type = "schedule.held"
    life = True
    due_at: str
    missed: int = 0
    going: list[str] = msgspec.field(default_factory=list[str])
    next_at: str | None = None


class ScheduleSkipped(EventBody, frozen=True, kw_only=True):
    """A time came and passes without a run, and why."""

    type = "schedule.skipped"
    life = True
    due_at: str
    reason: str
    missed: int = 0
    going: list[str] = msgspec.field(default_factory=list[str])
    next_at: str | None = None


class ScheduleFireFailed(EventBody, frozen=True, kw_only=True):
    """The run of a fire could not be made, and never will."""

    type = "schedule.fire_failed"
    life = True
    run_id: str
    reason: str
    next_at: str | None = None


class ScheduleRetimed(EventBody, frozen=True, kw_only=True):
    """The next time was one of a clock that had gone wrong and is right again."""

    type = "schedule.retimed"
    life = True
    next_at: str | None = None


class ScheduleDeleted(EventBody, frozen=True, kw_only=True):
    """The tombstone. Runs that were made go on."""

    type = "schedule.deleted"
    life = True
    tombstone = True
    body_hash: str
    by: str


ScheduleEvent = (
    ScheduleCreated
    | ScheduleChanged
    | ScheduleFireRequested
    | ScheduleFired
    | ScheduleHeld
    | ScheduleSkipped
    | ScheduleFireFailed
    | ScheduleRetimed
    | ScheduleDeleted
)
