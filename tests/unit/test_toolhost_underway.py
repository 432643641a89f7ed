"""Work that takes longer than whoever asks for it waits."""

import asyncio

import pytest

from libs.contracts.errors import Unavailable
from services.toolhost.underway import Underway


class Work:
    """Goes on until it is let go of."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()

    async def __call__(self) -> str:
        self.begun += 1
        await self.go.wait()
        return "done"


async def test_whoever_asks_again_joins_what_is_under_way() -> None:
    work = Work()
    async with Underway[str].open(0.01) as underway:
        assert await underway.join("a", work) is None
        gone = asyncio.create_task(underway.join("a", work))
        while not work.begun:
            await asyncio.sleep(0)
        gone.cancel()
        work.go.set()
        assert await underway.join("a", work) == "done"
        assert work.begun == 1
        # What is over is not remembered.
        assert await underway.join("a", work) == "done"
        assert work.begun == 2


async def test_an_error_is_for_whoever_asks_and_for_nobody_else() -> None:
    async def fails() -> str:
        raise Unavailable("the bus is away", retry_after_s=1)

    async with Underway[str].open(10) as underway:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await underway.join("a", fails)


async def test_what_is_left_is_cut_off_at_the_end() -> None:
    work = Work()
    async with Underway[str].open(0.01) as underway:
        assert await underway.join("a", work) is None
