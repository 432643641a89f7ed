"""What a schedule is: a task and the times at which it is to be done.

Invariant: a schedule has a bounded size, whatever its age.
"""

from datetime import datetime
from enum import StrEnum
from typing import Literal

import msgspec

from libs.contracts.clock import rfc3339
from libs.contracts.cron import next_time
from libs.contracts.tasks import TaskSpec

Overlap = Literal["skip", "queue", "allow"]

# Times that wait for an earlier run to end; a schedule that is further behind will not catch up.
HELD_MAX = 100
# Runs of a schedule that are known to go on; of more, which only `allow` can make, the oldest are forgotten.
GOING_MAX = 16
# Fires that people asked for and that no scheduler has seen yet.
ASKED_MAX = 100
ERROR_CHARS_MAX = 1_000


class ScheduleStatus(StrEnum):
    """The state in the headers of a schedule's log. `HOLDING`: something waits to be made as soon as it may."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    HOLDING = "HOLDING"
    DELETED = "DELETED"


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it was asked for. `task_hash` is the identity of the task's body, as runs keep it."""

    name: str
    cron: str
    task: TaskSpec
    task_hash: str
    timezone: str = "UTC"
    overlap: Overlap = "skip"
    enabled: bool = True


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """One time that became a run. `at`: when that was recorded."""

    run_id: str
    due_at: str
    at: str


def first_time(spec: ScheduleSpec, now: datetime) -> str | None:
    """When a schedule that begins now, or is changed now, comes next."""
    at = next_time(spec.cron, spec.timezone, now) if spec.enabled else None
    return rfc3339(at) if at is not None else None
