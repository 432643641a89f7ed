"""Going back to an earlier point of a run: which snapshot of its workspace belongs to it. Pure.

Invariant: what is found holds nothing that the run did behind the point.
"""

from collections.abc import Sequence

from libs.contracts.envelope import Event
from libs.contracts.events import WorkspaceSnapshotted
from libs.contracts.workspaces import Saved


def nearest_saved(events: Sequence[Event], sequence: int) -> Saved | None:
    """The newest snapshot that a run's log names and that was made of events up to `sequence` only; `at_sequence` says
    of which. It is brought back by the newest chain of its workspace (`Snapshots.bring_back`)."""
    found: Saved | None = None
    for event in events:
        body = event.body
        if (
            isinstance(body, WorkspaceSnapshotted)
            and body.saved is not None
            and body.saved.at_sequence <= sequence
        ):
            found = body.saved
    return found
