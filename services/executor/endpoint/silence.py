"""How long a peer may say nothing: counted while this process lives, and not while it stands still.

Invariant: a process that was stopped (a suspended machine, a frozen container) looks at what has come meanwhile before it
calls its peer silent. Waiting costs next to nothing, because a stream has thousands of pieces a second.
"""

import asyncio
from collections.abc import Awaitable
from typing import Self, TypeVar

T = TypeVar("T")

# A silence is counted in so many steps, or in fewer when they would be shorter than the second number.
_STEPS_MAX = 10
_STEP_S_MIN = 0.1
# A step that ends this much too late (and a step's length) says that the process stood still, not that it was busy.
_LATE_S = 0.5


class Silence:
    """Bounds each wait of one exchange, while its context lasts. A wait may be up to a step longer than the bound."""

    def __init__(self, bound_s: float) -> None:
        self._steps = max(1, min(_STEPS_MAX, int(bound_s / _STEP_S_MIN)))
        self._step_s = bound_s / self._steps
        self._left = self._steps
        # Who waits now; nobody else is ever cancelled.
        self._waiting: asyncio.Task[object] | None = None
        self._expired = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    async def broken(self, sign: Awaitable[T]) -> T:
        """The sign of life that is waited for. Raises `TimeoutError` when it does not come in time."""
        task = asyncio.current_task()
        assert task is not None
        cancelled = task.cancelling()
        # The step that is under way began before this wait.
        self._left, self._waiting = self._steps + 1, task
        try:
            return await sign
        except asyncio.CancelledError:
            # As `asyncio.timeout` does: a cancellation by somebody else goes first.
            expired, self._expired = self._expired, False
            if expired and task.uncancel() <= cancelled:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def _begin(self) -> None:
        self._due = self._loop.time() + self._step_s
        self._timer = self._loop.call_at(self._due, self._passed)

    def _passed(self) -> None:
        late_s = self._loop.time() - self._due
        if late_s <= max(_LATE_S, self._step_s):
            self._left -= 1
        if self._waiting is not None and self._left <= 0:
            self._expired = True
            self._waiting.cancel()
        else:
            self._begin()
