"""An event loop whose time is virtual, and the simulated processes whose callbacks it runs.

Invariant: one thread, no sockets, no real time: the same seed gives the same order of callbacks. Each callback belongs
to the process in whose context it was made; one that died takes all of its own with it, one that is frozen keeps them
for later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# What a callback costs: nothing real happens in no time, and code relies on that (a wait of what rounding left over).
STEP_S = 1e-6
# Callbacks without a timer between them; more is a loop that does not wait.
BURST_MAX = 200_000


class Spinning(RuntimeError):
    """A process runs callback after callback and waits for nothing."""


class Process:
    """A process of the simulation, as the loop sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        # It died of what it did itself.
        self.broke = False
        self.backlog: deque[SimHandle] = deque()
        # Processes that die with this one, and who wants to know of its end.
        self.children: list[Process] = []
        self.ended: asyncio.Future[None] | None = None


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class SimHandle(asyncio.TimerHandle):
    """One callback. Both kinds of handle in one, as small as possible."""

    __slots__ = ("args", "callback", "context", "gone", "process", "when_s")

    def __init__(  # A handle of the base class would look at the loop's debug mode and keep a traceback.
        self,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.when_s, self.callback, self.args = when_s, callback, args
        self.context = context if context is not None else contextvars.copy_context()
        self.process = self.context.get(PROCESS)
        self.gone = False

    def cancel(self) -> None:
        self.gone = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.when_s

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<SimHandle {self.callback!r} at {self.when_s}>"


class SimTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    _count = 0

    def __init__(self, coro: Coroutine[Any, Any, T], **how: Any) -> None:
        SimTask._count += 1
        self._number = SimTask._count
        context: contextvars.Context | None = how.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coro, **how)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    @classmethod
    def begin_again(cls) -> None:
        cls._count = 0


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. `run` drives it until something is true or a moment has come."""

    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now = start_s
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._count = 0
        self.steps = 0
        # What a callback raised: a defect of the simulation itself.
        self.failures: list[BaseException] = []

    def run(self, until: Callable[[], bool], at_most_s: float) -> bool:
        """Drive until `until()`, at most `at_most_s` of virtual time; whether it came true."""
        end = self._now + at_most_s
        ready, timers = self._ready, self._timers
        asyncio._set_running_loop(self)
        try:
            while True:
                self._drain(ready)
                if self.failures:
                    raise self.failures[0]
                if until():
                    return True
                while timers and timers[0][2].gone:
                    heapq.heappop(timers)
                if not timers or timers[0][0] > end:
                    self._now = end
                    return False
                self._now = max(self._now, timers[0][0])
                while timers and timers[0][0] <= self._now:
                    handle = heapq.heappop(timers)[2]
                    if not handle.gone:
                        ready.append(handle)
        finally:
            asyncio._set_running_loop(None)

    def _drain(self, ready: deque[SimHandle]) -> None:
        burst = 0
        while ready:
            handle = ready.popleft()
            process = handle.process
            if handle.gone or (process is not None and not process.alive):
                continue
            if process is not None and process.frozen:
                process.backlog.append(handle)
                continue
            burst += 1
            self._now += STEP_S
            if burst > BURST_MAX:
                raise Spinning(f"no time passes: {handle!r} of {process.name if process else 'nobody'}")
            try:
                handle.context.run(handle.callback, *handle.args)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 whatever a callback raises ends the schedule, below
                self.failures.append(error)
                return
        self.steps += burst

    def thaw(self, process: Process) -> None:
        """The process goes on where it was; all that it missed comes at once."""
        process.frozen = False
        self._ready.extend(process.backlog)
        process.backlog.clear()

    def close(self) -> None:
        """End every coroutine that is still suspended, so that nothing of this schedule is left."""
        asyncio._set_running_loop(self)
        try:
            for task in asyncio.all_tasks(self):
                if not task.done():
                    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] the only way not to be told that it was pending
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        self._ready.clear()
        self._timers.clear()

    # --- What asyncio asks of a loop ---

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = SimHandle(when, callback, args, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # pyright: ignore[reportIncompatibleMethodOverride] the stubs want type variables
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        return SimTask(coro, loop=self, name=name, context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What asyncio wants to say about tasks that nobody waited for: a dead process's, mostly."""


def _close(coroutine: Any) -> None:
    """Close a suspended coroutine; one that insists on going on is closed again."""
    for _ in range(5):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001 its own last words are of no interest: its process is gone
            continue
        return
