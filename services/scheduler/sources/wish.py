"""What a source says, and what it is told.

Invariant: `key` names the wish for ever: the same key is the same run.
"""

from typing import NamedTuple, Protocol

from libs.contracts.errors import Unavailable
from libs.contracts.http import TaskCreate
from libs.contracts.run import RunStatus


class Wish(NamedTuple):
    """Something that somebody wants done. Without a `task` it cannot be read, and `problem` says why. `over`: nobody wants
    it any more; a run of it that goes on is cancelled."""

    key: str
    task: TaskCreate | None
    problem: str = ""
    over: bool = False


class Outcome(NamedTuple):
    """What became of a wish: its run has ended, or there will be none (`run_id` is empty)."""

    run_id: str
    status: RunStatus | None
    answer: str = ""
    error: str = ""

    @property
    def done(self) -> bool:
        return self.status is RunStatus.COMPLETED


class SourceAway(Unavailable):
    """The source cannot be read now; what is known stays as it is."""

    code = "SOURCE_UNAVAILABLE"


class Source(Protocol):
    """One source. `look` may name a wish as often as it likes; `tell` may be called twice with the same."""

    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def every_s(self) -> float: ...

    async def look(self) -> list[Wish]:
        """All that is wanted now. Raises `SourceAway`."""
        ...

    async def tell(self, key: str, outcome: Outcome) -> None:
        """Raises `SourceAway`."""
        ...
