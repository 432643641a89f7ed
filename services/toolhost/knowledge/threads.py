"""Threads for clients that block.

Invariant: at most `AT_ONCE` calls of one client run at a time, also when those who waited for them gave up; the others
wait in the order in which they came.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

# More searches at a time would take the processor from each other.
AT_ONCE = 4

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """The threads of one client."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, f"knowledge-{name}")

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return await asyncio.wrap_future(self._pool.submit(work, *arguments, **named))

    async def ended(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> "asyncio.Future[T]":
        """The same for a library whose exceptions have no common type: the future when it is done, however it ended."""
        future = asyncio.wrap_future(self._pool.submit(work, *arguments, **named))
        await asyncio.wait([future])
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
