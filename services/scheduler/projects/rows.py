"""The projects that have not ended, as their latest records say; and those that have, and leave lanes behind.

Invariant: made of what the log said; losing it costs a replay. Nothing is decided from it but whom to look at.
"""

from collections.abc import Callable
from itertools import islice

from libs.bus.ports import LogKey, Wakeup
from libs.contracts.envelope import decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.project import TERMINAL
from libs.contracts.project_events import ProjectCancelled, ProjectCompleted

# Ended projects whose lanes are still to be looked at; what is forgotten comes again with the replay at the next start.
ENDED_MAX = 10_000
_ENDED = frozenset(status.value for status in TERMINAL)


class ProjectRows:
    """The live projects of one scheduler process."""

    def __init__(self, known: Callable[[LogKey], int]) -> None:
        """`known`: up to which stream sequence this process itself has folded a project and acted on it."""
        self._known = known
        self._live: dict[LogKey, int] = {}
        # The lanes whose workspaces nobody needs any more.
        self.vacated: dict[LogKey, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def note(self, wakeup: Wakeup) -> bool:
        """Take in a record; whether the project goes on and this was news."""
        key, sequence = wakeup.key, wakeup.stream_sequence
        if wakeup.header_state in _ENDED:
            self._live.pop(key, None)
            if lanes := _removed_by(wakeup):
                self.vacated[key] = lanes
                if len(self.vacated) > ENDED_MAX:
                    del self.vacated[next(iter(self.vacated))]
            return False
        if sequence <= self._live.get(key, 0):
            return False
        self._live[key] = sequence
        # Most records are this process's own: of them it has nothing to learn.
        return sequence > self._known(key)

    def next(self, count: int) -> list[LogKey]:
        """As many as `count` of them, in turn: those that were given go to the end of the line."""
        given = list(islice(self._live, count))
        for key in given:
            self._live[key] = self._live.pop(key)
        return given


def _removed_by(wakeup: Wakeup) -> tuple[int, ...]:
    """The lanes that the last word of a project names."""
    if wakeup.record is None:
        return ()
    try:
        last = decode_events(wakeup.record)[-1].body
    except UnreadableRecord:
        return ()
    return tuple(last.removed) if isinstance(last, ProjectCompleted | ProjectCancelled) else ()
