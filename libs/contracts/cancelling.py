"""What cancelling means for a run, whoever asks: a client, or the end of its parent.

Invariant: a run that somebody carries is ended by its owner alone; every other ends in the record that asks.
"""

from libs.contracts.events import LogEvent, RunCancelled, RunCancelRequested
from libs.contracts.run import RunState


def cancelled(state: RunState, by: str, *, owner_is_dead: bool) -> list[LogEvent]:
    """What to append to a run that is to end; nothing when it has ended or was asked before. `owner_is_dead`: the boot
    that the run names is written dead."""
    if state.terminal:
        return []
    asked = state.cancel_requested_by is not None
    request: list[LogEvent] = [] if asked else [RunCancelRequested(by=by)]
    if state.owner is not None and not owner_is_dead:
        return request
    return [*request, RunCancelled(by=by, usage=state.usage)]
