"""What the HTTP API takes about schedules.

Invariant: as in `http.py`: what passed here is valid all the way down; a schedule has a next time.
"""

from typing import Annotated

import msgspec
from pydantic import AfterValidator, ConfigDict, Field

from libs.contracts.cron import CRON_CHARS_MAX, require_cron, require_zone
from libs.contracts.http import Name, Request, TaskCreate, body_hash
from libs.contracts.schedules import Overlap, ScheduleSpec

Cron = Annotated[
    str,
    Field(
        max_length=CRON_CHARS_MAX,
        description="Five fields as Debian's cron reads them, six with seconds in front, or @hourly, @daily, ...",
    ),
    AfterValidator(require_cron),
]
Zone = Annotated[
    str,
    Field(max_length=64, description="A name of the IANA database."),
    AfterValidator(require_zone),
]
_OVERLAP = (
    "What becomes of a time that comes while an earlier run goes on: it passes (skip), waits for its end (queue), or has "
    "its run all the same (allow)."
)


class ScheduleCreate(Request):
    """The body of `POST /api/schedules`. `task` is that of `POST /api/tasks`; its runs always start by themselves."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "nightly",
                    "cron": "30 2 * * 1-5",
                    "timezone": "Europe/Berlin",
                    "task": {"goal": "Bring the dependencies up to date.", "workspace": "shop"},
                }
            ]
        }
    )

    name: Name
    cron: Cron
    task: TaskCreate
    timezone: Zone = "UTC"
    overlap: Annotated[Overlap, Field(description=_OVERLAP)] = "skip"
    enabled: bool = True

    def spec(self) -> ScheduleSpec:
        return ScheduleSpec(
            name=self.name,
            cron=self.cron,
            task=self.task.spec(),
            task_hash=body_hash(self.task),
            timezone=self.timezone,
            overlap=self.overlap,
            enabled=self.enabled,
        )


class ScheduleChange(Request):
    """The body of `PATCH /api/schedules/{id}`: what is named is changed, the rest stays."""

    name: Name | None = None
    cron: Cron | None = None
    task: TaskCreate | None = None
    timezone: Zone | None = None
    overlap: Annotated[Overlap, Field(description=_OVERLAP)] | None = None
    enabled: bool | None = None

    def applied(self, spec: ScheduleSpec) -> ScheduleSpec:
        """The schedule as it is with this change."""
        given = self.model_dump(exclude_none=True, exclude={"task"})
        if self.task is not None:
            given |= {"task": self.task.spec(), "task_hash": body_hash(self.task)}
        return msgspec.structs.replace(spec, **given)
