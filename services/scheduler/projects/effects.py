"""What the core of projects is asked with, and what it answers.

Invariant: plain values; whoever performs an effect may perform it twice.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from libs.contracts.project_events import ProjectEvent
from services.scheduler.projects.facts import RunSeen


class Env(NamedTuple):
    """What is known beside the log. `runs` are those that the project has asked for, as far as they exist; `fired` is the
    sequence of the wait whose timer went off, so that a clock that lags does not matter."""

    now: datetime
    runs: Mapping[str, RunSeen]
    fired: int | None = None


class MakeRun(NamedTuple):
    """The run of this work's stage should exist; making it again finds it."""

    lane: int


class MakeItem(NamedTuple):
    """The run of this item's attempt should exist; making it again finds it."""

    item: int


class StopRun(NamedTuple):
    run_id: str
    by: str


class PauseRun(NamedTuple):
    run_id: str
    by: str


class ResumeRun(NamedTuple):
    run_id: str
    by: str


class Watch(NamedTuple):
    """To be looked at again once the run has shown no sign of life for so long."""

    run_id: str
    silent_s: float


class Wait(NamedTuple):
    """A timer should stand for the event `sequence`."""

    sequence: int
    until: datetime


Effect = MakeRun | MakeItem | StopRun | PauseRun | ResumeRun | Watch | Wait


class Say(NamedTuple):
    """To be recorded; then decide again."""

    events: Sequence[ProjectEvent]


class Do(NamedTuple):
    """What should be true now."""

    effects: tuple[Effect, ...]
