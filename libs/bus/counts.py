"""What is counted of the bus, for metrics.

Invariant: nothing is decided by any of it. A process's own counts only grow while it lives; they are told on
`<p>.ctl.<boot>` (`vitals.py`).
"""

from collections import Counter
from typing import Literal, NamedTuple, Protocol

# Records that were stored; appends that somebody else's record forestalled; messages that a queue delivered again;
# messages that were kept because nobody could handle them.
Count = Literal["appends", "append_conflicts", "redeliveries", "dead_letters"]
COUNTS: tuple[Count, ...] = ("appends", "append_conflicts", "redeliveries", "dead_letters")


class Extent(NamedTuple):
    """A shard's stream: when it was made (another time: another log) and the sequence of its newest record (0: none)."""

    made_at: str
    last: int


class Backlog(NamedTuple):
    """What waits at a durable consumer: `pending` was never delivered, `unanswered` was and is not acked yet, of which
    `again` not for the first time."""

    stream: str
    consumer: str
    pending: int
    unanswered: int
    again: int


class Counted(Protocol):
    """What a bus tells about itself."""

    # What this process did on it since it began.
    counts: Counter[Count]

    async def backlogs(self) -> list[Backlog]:
        """What waits in the work queues, consumer by consumer. Raises `Unavailable`."""
        ...

    async def letters_kept(self) -> dict[str, int]:
        """How many dead letters are kept, by their subject. Raises `Unavailable`."""
        ...
