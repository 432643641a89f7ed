"""How long a peer may say nothing: counted while this process lives, and not while it stands still.

Invariant: a process that was stopped (a suspended machine, a frozen container) looks at what has come meanwhile before it
calls its peer silent.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

# A silence is counted in so many steps, or in fewer when they would be shorter than the second number.
_STEPS_MAX = 10
_STEP_S_MIN = 0.1
# A step that ends this much too late (and a step's length) says that the process stood still, not that it was busy.
_LATE_S = 0.5


class Silence:
    """Bounds each wait for a peer. One object for one exchange."""

    def __init__(self, bound_s: float) -> None:
        self._steps = max(1, min(_STEPS_MAX, int(bound_s / _STEP_S_MIN)))
        self._step_s = bound_s / self._steps

    async def broken(self, sign: Awaitable[T]) -> T:
        """The sign of life that is waited for. Raises `TimeoutError` when it does not come in time."""
        async with asyncio.timeout(None) as scope:
            count = _Count(scope, self._steps, self._step_s)
            try:
                return await sign
            finally:
                count.stop()


class _Count:
    """Ends the scope once all its steps have passed."""

    def __init__(self, scope: asyncio.Timeout, steps: int, step_s: float) -> None:
        self._scope, self._left, self._step_s = scope, steps, step_s
        self._loop = asyncio.get_running_loop()
        self._begin()

    def stop(self) -> None:
        self._timer.cancel()

    def _begin(self) -> None:
        self._due = self._loop.time() + self._step_s
        self._timer = self._loop.call_at(self._due, self._passed)

    def _passed(self) -> None:
        late_s = self._loop.time() - self._due
        if late_s <= max(_LATE_S, self._step_s):
            self._left -= 1
        if self._left > 0:
            self._begin()
        else:
            self._scope.reschedule(self._loop.time())
