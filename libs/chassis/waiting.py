"""Waiting for the first of several things.

Invariant: no waiter is left behind, however the wait ends.
"""

import asyncio


async def first_of(*events: asyncio.Event) -> None:
    """Return once one of the events is set."""
    waiters = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
