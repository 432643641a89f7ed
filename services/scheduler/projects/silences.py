"""Which runs of sessions show no sign of life. Pure.

Invariant: silence is what the living owner of a run says of it; of a run that it does not hold although the log says so,
the run's last event counts. What an owner does that is dead, or not heard of yet, is unknown, and no silence.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeVar

from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Record, decode_events
from libs.contracts.run import OWNED, RunState, RunStatus

# Who asks a run to end that showed no sign of life.
STALL = "stall"

Key = TypeVar("Key")


def silence_of(state: RunState, told: Mapping[str, float] | None, now: datetime) -> float | None:
    """Seconds for which the run has shown no sign of life; `None`: nobody who could is expected to. `told` is what the
    run's owner says of all that it holds."""
    if state.status not in OWNED or told is None:
        return None
    known = told.get(state.run_id)
    return known if known is not None else _since(state.last_event_at, now)


def silence_behind(
    tail: Record, status: RunStatus, told: Mapping[str, float] | None, now: datetime
) -> float | None:
    """The same by the newest record of a run, of many that nobody folds. `told` is by whoever wrote that: its owner, or
    somebody who owns nothing and says nothing. Raises `UnreadableRecord`."""
    if status not in OWNED or told is None:
        return None
    known = told.get(tail.log_id)
    return known if known is not None else _since(decode_events(tail)[-1].at, now)


def _since(at: str, now: datetime) -> float:
    return max(0.0, (now - parse_rfc3339(at)).total_seconds())


def overdue(watched: Mapping[Key, Mapping[str, float]], told: Iterable[Mapping[str, float]]) -> list[Key]:
    """The projects to look at: a run of theirs was silent for as long as it may be."""
    silent: dict[str, float] = {}
    for one in told:
        silent |= one
    return [
        key
        for key, limits in watched.items()
        if any(silent.get(run_id, 0.0) >= limit for run_id, limit in limits.items())
    ]
