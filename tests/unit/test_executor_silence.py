"""How long a peer may say nothing."""

import asyncio

import pytest

from services.executor.endpoint.silence import Silence


async def after(delay_s: float) -> float:
    """A sign of life after so long."""
    sign: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(delay_s, sign.set_result, delay_s)
    return await sign


async def test_a_wait_that_takes_too_long_ends_and_its_task_goes_on() -> None:
    with Silence(0.1) as silence, pytest.raises(TimeoutError):
        await silence.broken(asyncio.Event().wait())
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await after(0.0) == 0.0


async def test_each_sign_of_life_begins_the_count_anew_and_what_nobody_waits_for_is_no_silence() -> None:
    with Silence(0.3) as silence:
        for _ in range(4):
            assert await silence.broken(after(0.15)) == 0.15
        await after(0.5)
        assert await silence.broken(after(0.0)) == 0.0


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def waits() -> None:
        with Silence(60.0) as silence:
            await silence.broken(asyncio.Event().wait())

    task = asyncio.create_task(waits())
    await after(0.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
