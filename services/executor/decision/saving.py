"""When a snapshot of the workspace is due.

Invariant: pure; a snapshot is a hint, so nothing waits for one that failed, and none is due while nothing was done since
the last one was made or tried. While one is made no call of the run goes on, so it holds exactly what the log says.
"""

from datetime import datetime, timedelta

from libs.contracts.clock import parse_rfc3339
from libs.contracts.run import RunState

# What a dead machine costs at most beside the tools that are replayed; a snapshot takes some 50 ms of git and the time to
# store what changed, beside the model's own.
SAVE_EVERY_S = 30.0


def something_to_save(state: RunState, *, attached: bool) -> bool:
    """Whether the workspace holds what no snapshot does."""
    return bool(state.unsaved) and attached and state.attachment is not None


def due(state: RunState, now: datetime, *, attached: bool) -> bool:
    """Whether it is time to keep it, between two steps."""
    if not something_to_save(state, attached=attached):
        return False
    return state.saved_at is None or now - parse_rfc3339(state.saved_at) >= timedelta(seconds=SAVE_EVERY_S)
