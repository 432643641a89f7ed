"""Beginnings of runs for tests of pure code."""

from libs.contracts.envelope import Event
from libs.contracts.events import RunCreated
from libs.contracts.evolve import evolve
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec

RUN_ID = "run_0_0123456789abcdefghjkmnpqrs"
TASK_ID = "task_0_0123456789abcdefghjkmnpqrs"


def created(limits: Limits, task: TaskSpec) -> RunState:
    """A run that was created a moment ago."""
    body = RunCreated(
        tenant="local", task_id=TASK_ID, task=task, limits=limits, workspace=RUN_ID, body_hash="h"
    )
    return evolve(None, Event(1, RUN_ID, "2026-11-29T12:00:00.000Z", body))
