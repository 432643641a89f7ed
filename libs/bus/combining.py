"""Many questions at once about one key of the bus become one: who comes while one is under way waits for the next.

Invariant: every question is answered once, in the order in which they came; one that is cancelled costs the others
nothing but another round.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from libs.contracts.errors import PerdureError

T = TypeVar("T")
R = TypeVar("R")


class Combining(Generic[T, R]):
    """`work` answers all questions about a key that have come together, in their order."""

    def __init__(self, work: Callable[[str, list[T]], Awaitable[list[R]]]) -> None:
        self._work = work
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: defaultdict[str, dict[asyncio.Future[R], T]] = defaultdict(dict)

    async def ask(self, key: str, question: T) -> R:
        """The answer to one question. Raises what `work` raises, as do all whose questions it was to answer."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[key]
        waiting[answer] = question
        try:
            async with self._turns[key]:
                if not answer.done():
                    await self._round(key, {one: asked for one, asked in waiting.items() if not one.done()})
            return await answer
        finally:
            del waiting[answer]

    async def _round(self, key: str, asked: dict[asyncio.Future[R], T]) -> None:
        try:
            answers = await self._work(key, list(asked.values()))
        except PerdureError as error:
            for one in asked:
                if not one.done():
                    one.set_exception(error)
                    # Marked as looked at: who was cancelled meanwhile does not look.
                    one.exception()
            return
        for one, answer in zip(asked, answers, strict=True):
            if not one.done():
                one.set_result(answer)
