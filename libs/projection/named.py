"""The statements of both stores by name, and which of them a change means.

Invariant: SQL stands in `*.sql` beside this file and nowhere else; parameters have names there (`:tenant`).
"""

from pathlib import Path
from typing import assert_never

from libs.projection.fold import (
    Answered,
    Asked,
    Change,
    ProjectMade,
    ProjectMoved,
    RunMade,
    RunMoved,
    RunRemoved,
    UsageCounted,
)
from libs.projection.schedules import ScheduleMade, ScheduleMoved, ScheduleRemoved

_HERE = Path(__file__).parent


def statements(*files: str) -> dict[str, str]:
    """The statements of the files by name."""
    found: dict[str, str] = {}
    for file in files:
        for part in (_HERE / file).read_text(encoding="utf-8").split("-- name: ")[1:]:
            name, _, text = part.partition("\n")
            found[name.strip()] = text.strip()
    return found


def names_of(change: Change) -> tuple[str, ...]:
    """The statements that a change means, in order; its fields are their parameters."""
    match change:
        case ProjectMade():
            return ("create_project",)
        case ProjectMoved():
            return ("move_project",)
        case ScheduleMade():
            return ("create_schedule",)
        case ScheduleMoved():
            return ("move_schedule",)
        case ScheduleRemoved():
            return ("remove_schedule",)
        case RunMade():
            return ("create_run",)
        case RunMoved():
            return ("move_run",)
        case UsageCounted():
            return ("count_usage",)
        case RunRemoved():
            return ("remove_run", "remove_questions")
        case Asked():
            return ("ask",)
        case Answered():
            return ("answer",)
        case _:
            assert_never(change)
