"""Dead letters as values: what is told of a message that nobody could handle.

Invariant: a letter says where its message came from and why it is here, and holds all of it.
"""

from typing import NamedTuple


class DeadLetter(NamedTuple):
    """A kept message. `sequence` is its id; `origin` the subject it was taken from; `at` (RFC 3339) when it was kept.

    `kind`: the queue nobody could handle it from (`work`, `tools`, `timers`, `run`, ...) or `rejected` for a task that
    was refused. `headers` are the message's own.
    """

    sequence: int
    kind: str
    subject: str
    origin: str
    reason: str
    at: str
    headers: dict[str, str]
    body: bytes


class Letters(NamedTuple):
    """Part of a listing, newest first. `next_before` goes into the next `newest`; `None`: there is nothing older."""

    letters: list[DeadLetter]
    next_before: int | None
