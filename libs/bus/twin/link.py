"""A process's connection to the twin, and the server's own timers.

Invariant: what was sent arrives (or not) whatever becomes of the sender meanwhile: the server's timers run in its own
context, so that a process that dies takes none of them with it.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from libs.bus.twin.network import Fate, Network, Op
from libs.contracts.errors import BusUnavailable, PerdureError

T = TypeVar("T")

# How long a call goes on trying, as on the servers (`libs/bus/jetstream.py`).
PATIENCE_S = 15.0


class Timers:
    """The server's own time: everything that is to happen later happens in its context."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    def at(self, delay_s: float, callback: Callable[[], object]) -> asyncio.Handle:
        """Do it after `delay_s`."""
        loop = asyncio.get_running_loop()
        if delay_s <= 0.0:
            return loop.call_soon(callback, context=self._context)
        return loop.call_later(delay_s, callback, context=self._context)

    def now(self) -> float:
        return asyncio.get_running_loop().time()


class Link:
    """One process's connection. Cut (`closed`), nothing more goes through it."""

    def __init__(self, name: str, timers: Timers, network: Network) -> None:
        self.name, self.timers, self.network = name, timers, network
        self.closed = False

    async def call(
        self, kind: str, subject: str, work: Callable[[], T], *, lost: Callable[[], T] | None = None
    ) -> T:
        """Have the server do `work` and learn what came of it; `lost` in its place when the network says that nothing
        is kept. Raises `BusUnavailable` when the outcome stays unknown."""
        op = Op(self.name, kind, subject)
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._sent(op, work, answered, lost=lost)
        return await answered

    def send(
        self, kind: str, subject: str, work: Callable[[], object], *, again_s: float | None = None
    ) -> None:
        """Have the server do `work`, without an answer. What is lost on its way is sent again after `again_s`."""
        self._sent(Op(self.name, kind, subject), work, None, again_s)

    def delivery_s(self, kind: str, subject: str) -> float | None:
        """How long something takes to this process; `None`: it is lost."""
        return self.network.delivery_s(Op(self.name, kind, subject))

    def _sent(
        self,
        op: Op,
        work: Callable[[], T],
        answered: asyncio.Future[T] | None,
        again_s: float | None = None,
        lost: Callable[[], T] | None = None,
    ) -> None:
        if self.closed:
            raise BusUnavailable("this connection to the twin is cut")
        fate = self.network.fate(op)
        if self.closed:
            return  # The process died of this very operation.
        if lost is not None and not fate.kept:
            work = lost
        there_s = fate.there_s if fate.there_s is not None else again_s
        if there_s is not None:
            self.timers.at(there_s, lambda: self._arrived(op, work, fate, answered))
        if answered is not None and (
            fate.there_s is None or fate.back_s is None or fate.there_s + fate.back_s > PATIENCE_S
        ):
            self.timers.at(PATIENCE_S, lambda: _give_up(op, answered))

    def _arrived(self, op: Op, work: Callable[[], T], fate: Fate, answered: asyncio.Future[T] | None) -> None:
        back_s = fate.back_s
        try:
            if fate.refusal is not None:
                raise fate.refusal
            result = work()
        except PerdureError as error:
            self.network.done(op, error.message)
            failure = error
            if answered is not None and back_s is not None:
                self.timers.at(back_s, lambda: _fail(answered, failure))
            return
        self.network.done(op, "")
        if answered is not None and back_s is not None:
            self.timers.at(back_s, lambda: _answer(answered, result))


class Tap(AsyncIterator[T], Generic[T]):
    """What the server brings to a process, in order. A cancelled `anext` loses nothing.

    What is lost on the way comes after `again_s`, as the followers of the servers look for it; `None`: never.
    """

    def __init__(
        self, link: Link, kind: str, subject: str, *, again_s: float | None, most: int | None = None
    ) -> None:
        self._link, self._kind, self._subject = link, kind, subject
        self._again_s = again_s
        self._queue: deque[T] = deque(maxlen=most)
        self._news = asyncio.Event()
        self._last_at = 0.0

    def fill(self, items: list[T]) -> None:
        """What was there before."""
        self._queue.extend(items)
        self._news.set()

    def push(self, item: T) -> None:
        """Bring it to the process, behind what is on its way already."""
        delay_s = self._link.delivery_s(self._kind, self._subject)
        if delay_s is None:
            delay_s = self._again_s
            if delay_s is None:
                return
        now = self._link.timers.now()
        self._last_at = max(self._last_at, now + delay_s)
        if self._last_at <= now:
            self._take(item)
        else:
            self._link.timers.at(self._last_at - now, lambda: self._take(item))

    async def __anext__(self) -> T:
        while not self._queue:
            self._news.clear()
            await self._news.wait()
        return self._queue.popleft()

    def _take(self, item: T) -> None:
        self._queue.append(item)
        self._news.set()


def _answer(answered: asyncio.Future[T], result: T) -> None:
    if not answered.done():
        answered.set_result(result)


def _fail(answered: asyncio.Future[T], error: PerdureError) -> None:
    if not answered.done():
        answered.set_exception(error)


def _give_up(op: Op, answered: asyncio.Future[T]) -> None:
    _fail(answered, BusUnavailable(f"what became of {op.kind} {op.subject} is not known", retry_after_s=1))
