"""Waiting for the first of several things, and for a thread.

Invariant: no waiter is left behind, however the wait ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def first_of(*events: asyncio.Event) -> None:
    """Return once one of the events is set."""
    waiters = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()


async def in_thread(work: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but who is cancelled waits until the thread has ended: then what that used may be closed."""
    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    finally:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
