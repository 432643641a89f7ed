"""Waiting for facts: the one loop that looks again and again, under a deadline, and says what never came true.

Invariant: nothing else in the tests polls without a deadline; the deadline is for a machine that does something else,
never a measure of what is tested.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

PATIENCE_S = 60.0
_LOOK_S = 0.02
# What was seen last is for reading.
_SEEN_CHARS_MAX = 2_000

T = TypeVar("T")


@overload
async def eventually(
    look: Callable[[], Awaitable[T | None]], what: str, *, every_s: float = _LOOK_S
) -> T: ...
@overload
async def eventually(
    look: Callable[[], Awaitable[T]], what: str, *, fits: Callable[[T], object], every_s: float = _LOOK_S
) -> T: ...
async def eventually(
    look: Callable[[], Awaitable[T]],
    what: str,
    *,
    fits: Callable[[T], object] = bool,
    every_s: float = _LOOK_S,
) -> T:
    """What `look` finds, looking again until it fits; without `fits`, until it finds something.

    Raises `TimeoutError` that says what was waited for and what was seen last.
    """
    seen: T | str = "nothing yet"
    scope = asyncio.timeout(PATIENCE_S)
    try:
        async with scope:
            while not fits(found := await look()):
                seen = found
                await asyncio.sleep(every_s)
            return found
    except TimeoutError as error:
        if not scope.expired():
            raise
        told = repr(seen)[:_SEEN_CHARS_MAX]
        raise TimeoutError(f"waited {PATIENCE_S:g} s for this: {what}; last seen: {told}") from error


async def until(fact: Callable[[], object], what: str) -> None:
    """Wait for a fact of this process."""

    async def look() -> object:
        return fact()

    await eventually(look, what, fits=bool)
