"""When a snapshot of the workspace is due.

Invariant: pure; a snapshot is a hint, so nothing waits for one that failed, and none is due while nothing was done since
the last one was made or tried. While one is made no call of the run goes on but those that only read, so it holds
exactly what the log says.
"""

from datetime import datetime, timedelta

from libs.contracts.clock import parse_rfc3339
from libs.contracts.run import RunState

# What a dead machine costs at most beside the tools that are replayed; a snapshot takes some 50 ms of git and the time to
# store what changed, beside the model's own.
SAVE_EVERY_S = 30.0


# After each failure in a row twice as long, up to half an hour: a workspace that is too large stays so, and every try
# costs the run its time.
FAILURES_COUNTED_MAX = 6


def something_to_save(state: RunState, now: datetime, *, attached: bool) -> bool:
    """Whether the workspace holds what no snapshot does, and a try is not known to be in vain."""
    if not state.unsaved or not attached or state.attachment is None:
        return False
    return not state.save_failures or _waited(state, now)


def due(state: RunState, now: datetime, *, attached: bool) -> bool:
    """Whether it is time to keep it, between two steps."""
    return something_to_save(state, now, attached=attached) and _waited(state, now)


def _waited(state: RunState, now: datetime) -> bool:
    if state.saved_at is None:
        return True
    pause_s = SAVE_EVERY_S * 2 ** min(state.save_failures, FAILURES_COUNTED_MAX)
    return now - parse_rfc3339(state.saved_at) >= timedelta(seconds=pause_s)
