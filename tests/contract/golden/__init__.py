"""Golden histories: logs of every released schema, and the state that each folds to.

Invariant: a `*.jsonl` (one event a line, in its public form) is never changed; a `*.state.json` only when the fold was
wrong before. `python -m tests.contract.golden` rewrites the states, so that the diff shows what a change would do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from libs.contracts.envelope import WireEvent, decode_event
from libs.contracts.evolve import fold
from libs.contracts.evolve_project import evolve_project
from libs.contracts.project import ProjectState
from libs.contracts.run import RunState
from libs.contracts.schedule import ScheduleState, evolve_schedule

FOLDER = Path(__file__).resolve().parent
PROJECTS, SCHEDULES = "projects", "schedules"


def histories() -> list[Path]:
    """Every golden log of a run, of every schema."""
    return sorted(FOLDER.glob("v*/*.jsonl"))


def project_histories() -> list[Path]:
    """Every golden log of a project, of every schema."""
    return sorted(FOLDER.glob(f"v*/{PROJECTS}/*.jsonl"))


def schedule_histories() -> list[Path]:
    """Every golden log of a schedule, of every schema."""
    return sorted(FOLDER.glob(f"v*/{SCHEDULES}/*.jsonl"))


def all_histories() -> list[Path]:
    return [*histories(), *project_histories(), *schedule_histories()]


def read(history: Path) -> list[WireEvent]:
    """The events of a golden log, as stored."""
    return [msgspec.json.decode(line, type=WireEvent) for line in history.read_bytes().splitlines()]


def folded(history: Path) -> dict[str, Any]:
    """The state that a golden log folds to today, as plain values."""
    match history.parent.name:
        case "projects":
            state = _project(history)
        case "schedules":
            state = _schedule(history)
        case _:
            state = _run(history)
    try:
        return json.loads(msgspec.json.encode(state, order="deterministic"))
    except TypeError:
        # Its keys are numbers, which have no such order.
        return json.loads(msgspec.json.encode(state))


def expected(history: Path) -> dict[str, Any]:
    """The state that it folded to when it was stored; later fields of the state are not in it."""
    return json.loads(state_file(history).read_text(encoding="utf-8"))


def state_file(history: Path) -> Path:
    return history.with_suffix(".state.json")


def _run(history: Path) -> RunState:
    state = fold(None, (decode_event(wire) for wire in read(history)))
    assert state is not None, f"{history} is empty"
    return state


def _project(history: Path) -> ProjectState:
    state: ProjectState | None = None
    for wire in read(history):
        state = evolve_project(state, decode_event(wire))
    assert state is not None, f"{history} is empty"
    return state


def _schedule(history: Path) -> ScheduleState:
    state: ScheduleState | None = None
    for wire in read(history):
        state = evolve_schedule(state, decode_event(wire))
    assert state is not None, f"{history} is empty"
    return state
