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

FOLDER = Path(__file__).resolve().parent


def histories() -> list[Path]:
    """Every golden log of every schema."""
    return sorted(FOLDER.glob("v*/*.jsonl"))


def read(history: Path) -> list[WireEvent]:
    """The events of a golden log, as stored."""
    return [msgspec.json.decode(line, type=WireEvent) for line in history.read_bytes().splitlines()]


def folded(history: Path) -> dict[str, Any]:
    """The state that a golden log folds to today, as plain values."""
    state = fold(None, (decode_event(wire) for wire in read(history)))
    return json.loads(msgspec.json.encode(state, order="deterministic"))


def expected(history: Path) -> dict[str, Any]:
    """The state that it folded to when it was stored; later fields of the state are not in it."""
    return json.loads(state_file(history).read_text(encoding="utf-8"))


def state_file(history: Path) -> Path:
    return history.with_suffix(".state.json")
