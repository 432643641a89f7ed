"""What a run may have going on in the world, as the decision names it.

Invariant: plain data; the same activity decided twice is one activity (`session.activity_key`).
"""

from typing import NamedTuple

from libs.contracts.run import CallState, PendingVerification


class Attach(NamedTuple):
    """Attach the workspace (again, after a claim or the death of its host)."""


class CallModel(NamedTuple):
    iteration: int


class Offer(NamedTuple):
    """Settle which tools the run offers its model, and store that for the request to name."""


class ReadResult(NamedTuple):
    """Answer a call that reads an earlier result: from the log."""

    call: CallState


class Summarise(NamedTuple):
    """Buy a summary of what leaves the context; there is a compaction in any case. `compacted` is what has left."""

    compacted: int
    overflowed: bool


class CallTool(NamedTuple):
    call: CallState


class SpawnChild(NamedTuple):
    """Make the run that a `delegate` call asks for; making it again finds it."""

    call: CallState


class Verify(NamedTuple):
    pending: PendingVerification


class Save(NamedTuple):
    """Keep the workspace as it is, with what the run has done up to this event."""

    sequence: int


BesideModel = Attach | Offer | ReadResult | CallTool | SpawnChild | Verify | Save
Activity = BesideModel | CallModel | Summarise
