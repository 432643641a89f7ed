"""The plain loop, run as a process of its own and read at the model server.

Invariant: its figures are taken where Perdure's are: iterations between the arrivals of two requests, starts from the
moment before a call to the arrival of its request.
"""

import asyncio
import sys
from typing import NamedTuple

import msgspec

from deploy.dev.model_server import Asked
from libs.contracts.errors import InternalError
from tests.bench import work
from tests.bench.model import ScriptedModel
from tests.bench.plainloop import Report

# A plain loop that takes longer than this hangs.
PLAIN_S = 120.0


class Plain(NamedTuple):
    """What the plain loop did: its own report, and the requests of its runs at the model server."""

    report: Report
    asked: list[Asked]

    @property
    def cpu_ms(self) -> float:
        """CPU an iteration."""
        return self.report.cpu_s * 1000 / max(1, sum(1 for asked in self.asked if asked.turn > 0))


async def plain_loop(model: ScriptedModel, *, runs: int, iterations: int, at_once: int) -> Plain:
    """Run it to its end."""
    await model.forget()
    argv = ["-m", "tests.bench.plainloop", "--url", model.url, "--runs", str(runs)]
    argv += ["--iterations", str(iterations), "--at-once", str(at_once)]
    process = await asyncio.create_subprocess_exec(sys.executable, *argv, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PLAIN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise InternalError(f"the plain loop ended with {process.returncode}; its last words are above")
    asked = (await model.asked())[work.WARM_UPS :]
    return Plain(msgspec.json.decode(output, type=Report), asked)
