"""Waiting for threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from libs.chassis.waiting import in_thread


async def test_what_a_thread_uses_is_in_use_until_it_has_ended_however_often_its_caller_is_cancelled() -> (
    None
):
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    working = asyncio.create_task(in_thread(work))
    await begun.wait()
    for _ in range(2):
        working.cancel()
        await asyncio.wait({working}, timeout=0.05)
        assert not working.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_the_end_of_a_thread_is_its_callers() -> None:
    assert await in_thread(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
