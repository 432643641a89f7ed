"""Runs over the log, and projects: what a process loads and writes them with.

Invariant: all of it is `folds.py`; a run and a project differ only in what their events mean.
"""

from collections.abc import Callable, Sequence

from libs.bus.checkpoints import PROJECT_FOLD, Checkpoints, FoldCheckpoints, Folded, FoldedLog
from libs.bus.folds import COMMAND_TRIES_MAX, Folds
from libs.bus.ports import Bus, Log
from libs.contracts.clock import Clock
from libs.contracts.events import LogEvent
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectEvent
from libs.contracts.run import RunState

__all__ = ["COMMAND_TRIES_MAX", "Decide", "Folded", "FoldedProject", "Projects", "Runs", "projects_of"]

Decide = Callable[[RunState], Sequence[LogEvent]]
FoldedProject = FoldedLog[ProjectState]


class Runs(Folds[RunState, LogEvent]):
    """Loads and writes runs for one process."""

    def __init__(self, log: Log, checkpoints: Checkpoints, clock: Clock) -> None:
        super().__init__(log, checkpoints, clock)


class Projects(Folds[ProjectState, ProjectEvent]):
    """Loads and writes projects for one process."""


def projects_of(bus: Bus, clock: Clock) -> Projects:
    """The projects of a bus, with their checkpoints beside those of runs."""
    checkpoints = FoldCheckpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log, PROJECT_FOLD)
    return Projects(bus.log, checkpoints, clock)
