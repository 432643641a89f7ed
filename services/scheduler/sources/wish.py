"""What a source says, and what it is told.

Invariant: `key` names the wish for ever: the same key is the same run.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from libs.contracts.errors import Unavailable
from libs.contracts.http import TaskCreate
from libs.contracts.run import RunStatus


class Wish(NamedTuple):
    """Something that somebody wants done. Without a `task` it cannot be read, and `problem` says why. `over`: nobody wants
    it any more, for the reason `problem`; a run of it that goes on is cancelled.

    `label`: by which label it is a wish; of one that is `over`, the label that it has no more, which ends only a run that
    was wished by this label: another one in the configuration takes nothing off."""

    key: str
    task: TaskCreate | None
    problem: str = ""
    over: bool = False
    label: str | None = None


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
    """The source cannot be read now; what is known stays as it is. `retry_after_s`: when it wants to be asked again."""

    code = "SOURCE_UNAVAILABLE"


class Source(Protocol):
    """One source. `look` may name a wish as often as it likes; `tell` may be called twice with the same."""

    @property
    def name(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def every_s(self) -> float: ...

    async def look(self, going: Collection[str], *, afresh: bool) -> list[Wish]:
        """What is wanted now, and which of the wishes `going`, whose runs go on, are over. What has not changed since the
        last look may be left out, unless `afresh`: some of the last wishes could not be seen to. Raises `SourceAway`."""
        ...

    async def tell(self, key: str, outcome: Outcome) -> None:
        """Raises `SourceAway`."""
        ...
