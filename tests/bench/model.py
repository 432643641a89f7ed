"""The scripted model as a process of its own, and what it saw.

Invariant: arrival times are the model server's own, on the machine's monotonic clock; every figure of an iteration and
of a start is taken there, for the plain loop and for Perdure alike.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from deploy.dev.child import Child, Program
from deploy.dev.mergedlog import MergedLog
from deploy.dev.model_server import Asked
from deploy.dev.nats_server import free_port
from tests.bench.http_wire import connected

_READY_S = 15.0
_LOOK_S = 0.02


class _Requests(msgspec.Struct):
    requests: list[Asked]


class ScriptedModel:
    """A running model server."""

    def __init__(self, url: str, child: Child) -> None:
        self.url, self._child = url, child

    @property
    def pid(self) -> int:
        pid = self._child.pid
        assert pid is not None, "the scripted model died"
        return pid

    async def forget(self) -> None:
        async with connected(self.url) as connection:
            await connection.send("DELETE", "/requests")

    async def asked(self) -> list[Asked]:
        """All requests since `forget`, in the order in which they came."""
        async with connected(self.url) as connection:
            answered = await connection.send("GET", "/requests")
        return msgspec.json.decode(answered.body, type=_Requests).requests


@asynccontextmanager
async def scripted_model(folder: Path, script: bytes, log: MergedLog) -> AsyncGenerator[ScriptedModel]:
    """Run the server while the context lasts."""
    path = folder / "script.json"
    path.write_bytes(script)
    port = free_port()
    argv = (sys.executable, "-m", "deploy.dev.model_server", "--script", str(path), "--port", str(port))
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    child = Child(Program(name="model", argv=argv, environment=environment, drain_s=2.0), log)
    running = asyncio.create_task(child.run())
    model = ScriptedModel(f"http://127.0.0.1:{port}", child)
    try:
        async with asyncio.timeout(_READY_S):
            while not await _answers(model):
                await asyncio.sleep(_LOOK_S)
        yield model
    finally:
        await child.drain()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _answers(model: ScriptedModel) -> bool:
    try:
        await model.forget()
    except OSError:
        return False
    return True
