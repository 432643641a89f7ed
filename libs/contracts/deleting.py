"""What deleting means for a run, whoever asks: a client, or the end of its retention.

Invariant: only an ended run whose end everybody knows who waits for it is buried; the tombstone keeps the hash that its
key is recognised by.
"""

from libs.contracts.errors import InvalidState
from libs.contracts.events import LogEvent, RunDeleted
from libs.contracts.run import RunState


def deleted(state: RunState, by: str, *, parent_waits: bool) -> list[LogEvent]:
    """Bury an ended run. `parent_waits`: the run that delegated to it lives and has not learned its end."""
    if not state.terminal:
        raise InvalidState(
            f"run {state.run_id} is {state.status}; cancel it and wait for its end before deleting it"
        )
    if parent_waits:
        parent = state.parent.run_id if state.parent is not None else "its parent"
        raise InvalidState(
            f"{parent} has not taken in the result of run {state.run_id} yet; delete it a moment later"
        )
    return [RunDeleted(body_hash=state.body_hash, by=by)]
