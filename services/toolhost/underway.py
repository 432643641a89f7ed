"""Work that may take longer than whoever asks for it waits.

Invariant: of each piece of work there is one at a time; it goes on when its asker has gone away, whoever asks again joins it,
and it ends with the host.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, Self, TypeVar

from libs.chassis.effects import DEFECTS

T = TypeVar("T")


class Underway(Generic[T]):
    """The pieces of work of one host, by their keys. Nobody waits longer than `patience_s` for one."""

    def __init__(self, group: asyncio.TaskGroup, patience_s: float) -> None:
        self._group, self._patience_s = group, patience_s
        self._tasks: dict[str, asyncio.Task[T | Exception]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, patience_s: float) -> AsyncGenerator[Self]:
        """While the context lasts, work goes on; what is left then is cut off."""
        async with asyncio.TaskGroup() as group:
            underway = cls(group, patience_s)
            try:
                yield underway
            finally:
                for task in underway._tasks.values():
                    task.cancel()

    async def join(self, key: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What comes of the work, which begins now if it is not under way; `None` when that takes longer than the
        patience. Raises what the work raises."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = self._group.create_task(_outcome(begin()))
            task.add_done_callback(lambda _: self._tasks.pop(key))
        await asyncio.wait([task], timeout=self._patience_s)
        if not task.done():
            return None
        outcome = task.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def _outcome(work: Coroutine[Any, Any, T]) -> T | Exception:
    """An error is for whoever joins, not for the host."""
    try:
        return await work
    except DEFECTS as error:
        return error
