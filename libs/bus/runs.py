"""Runs over the log, projects and schedules: what a process loads and writes them with.

Invariant: all of it is `folds.py`; they differ only in what their events mean.
"""

from collections.abc import Callable, Sequence

from libs.bus.checkpoints import (
    PROJECT_FOLD,
    SCHEDULE_FOLD,
    Checkpoints,
    FoldCheckpoints,
    Folded,
    FoldedLog,
)
from libs.bus.folds import COMMAND_TRIES_MAX, Folds
from libs.bus.ports import Bus, Log
from libs.contracts.clock import Clock
from libs.contracts.events import LogEvent
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectEvent
from libs.contracts.run import RunState
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedule_events import ScheduleEvent

__all__ = [
    "COMMAND_TRIES_MAX",
    "Decide",
    "Folded",
    "FoldedProject",
    "FoldedSchedule",
    "Projects",
    "Runs",
    "Schedules",
    "projects_of",
    "schedules_of",
]

Decide = Callable[[RunState], Sequence[LogEvent]]
FoldedProject = FoldedLog[ProjectState]
FoldedSchedule = FoldedLog[ScheduleState]


class Runs(Folds[RunState, LogEvent]):
    """Loads and writes runs for one process."""

    def __init__(self, log: Log, checkpoints: Checkpoints, clock: Clock) -> None:
        super().__init__(log, checkpoints, clock)


class Projects(Folds[ProjectState, ProjectEvent]):
    """Loads and writes projects for one process."""


class Schedules(Folds[ScheduleState, ScheduleEvent]):
    """Loads and writes schedules for one process."""


def projects_of(bus: Bus, clock: Clock) -> Projects:
    """The projects of a bus, with their checkpoints beside those of runs."""
    checkpoints = FoldCheckpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log, PROJECT_FOLD)
    return Projects(bus.log, checkpoints, clock)


def schedules_of(bus: Bus, clock: Clock) -> Schedules:
    """The schedules of a bus, with their checkpoints beside those of runs."""
    checkpoints = FoldCheckpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log, SCHEDULE_FOLD)
    return Schedules(bus.log, checkpoints, clock)
