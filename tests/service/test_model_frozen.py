"""A process that was stopped for longer than the silence it bears (case 40d): its own pause is no silence of the endpoint."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from deploy.dev.model_script import Answer
from tests.fakes.model import DEADLINE_S, scripted, sent
from tests.fakes.waiting import until
from tests.fakes.wire import DONE, chunk, fin, usage

IDLE_S = 1.0
# Asks once, without a second try, and prints what came of it.
ASKING = """
import asyncio, sys
import uvloop
from services.executor.endpoint.completion import Patience
from tests.fakes.model import asked, connected, ignore

async def main():
    patience = Patience(waits_s=())
    async with connected(sys.argv[1], idle_timeout_s=float(sys.argv[2]), patience=patience) as model:
        print("ready", flush=True)
        try:
            print((await model.complete(asked(), ignore)).content)
        except Exception as error:
            print(error)

uvloop.run(main())
"""


async def frozen(answer: Answer, *, when: str) -> str:
    """What a process hears of an answer over which it was stopped for longer than it waits for a sign of life."""
    async with asyncio.timeout(6 * DEADLINE_S), scripted(answer) as endpoint:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ASKING, endpoint.url, str(IDLE_S)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        await until(lambda: bool(endpoint.server.asked), f"it asks ({when})")
        os.kill(process.pid, signal.SIGSTOP)
        began = asyncio.get_running_loop().time()
        try:
            await until(lambda: asyncio.get_running_loop().time() - began > 2 * IDLE_S, "it was stopped")
        finally:
            os.kill(process.pid, signal.SIGCONT)
        heard = await process.stdout.read()
        await process.wait()
        return heard.decode().strip()


async def test_a_stream_that_went_on_while_the_process_stood_still_is_read_to_its_end() -> None:
    pieces = [chunk(content="a"), chunk(content="b"), fin("stop") + usage(1, 1) + DONE]
    slow = Answer(base64=[one for piece in pieces for one in sent(piece)], chunk_delay_s=0.6)
    assert await frozen(slow, when="before the first byte") == "ab"


async def test_an_endpoint_that_is_silent_is_found_so_although_the_process_stood_still() -> None:
    assert "ReadTimeout" in await frozen(Answer(delay_s=60), when="and hears nothing")
