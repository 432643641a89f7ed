"""A tool host of somebody else: one tool with an effect that must not happen twice, and a file that counts it.

Invariant: every effect is one line `<run> <call> <attempt> <counter>` in `<COUNTING_FOLDER>/effects`, written in one go
before anything else can go wrong. The call then takes `seconds`, and with `hold` goes on until
`<COUNTING_FOLDER>/<counter>.go` exists.
Run as `python -m tests.fakes.counting_host`.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from libs.bus.liveness import Registration, register
from libs.chassis.effects import Effect, Prepared, failed
from libs.chassis.hosting import HostSetting, ToolHost
from libs.chassis.run import Chassis, start
from libs.chassis.settings import ServiceSettings
from libs.contracts.errors import LeaseLost
from libs.contracts.streams import host_consumer
from libs.contracts.tools import HostCatalog, Semantics, ToolCall, ToolResult, ToolSpec

SERVICE = "countinghost"
COUNT = ToolSpec(
    name="count",
    description="Counts one up, irrevocably.",
    parameters={
        "type": "object",
        "properties": {
            "counter": {"type": "string"},
            "hold": {"type": "boolean"},
            "seconds": {"type": "number"},
        },
        "required": ["counter"],
    },
    semantics=Semantics.NON_IDEMPOTENT,
    needs_workspace=False,
)
LOOK_S = 0.02


class CountingSettings(ServiceSettings):
    folder: Annotated[Path, Field(alias="COUNTING_FOLDER")]


class Counting:
    """What stands behind the protocol."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        del stop
        return failed(call, f"{call.name} is not read-only")

    @asynccontextmanager
    async def effect(self, call: ToolCall, /) -> AsyncGenerator[Prepared]:
        async def perform(stop: asyncio.Event) -> ToolResult:
            name = str(call.arguments["counter"])
            _append(self._folder / "effects", f"{call.run_id} {call.call_id} {call.attempt} {name}\n")
            await _until(stop, float(str(call.arguments.get("seconds", 0))))
            go = self._folder / f"{name}.go"
            while call.arguments.get("hold") and not go.exists() and not stop.is_set():
                await asyncio.sleep(LOOK_S)
            return ToolResult(call_id=call.call_id, attempt=call.attempt, ok=True, output=f"counted {name}")

        yield Effect(perform, {}, {})


async def serve(chassis: Chassis[CountingSettings]) -> None:
    """Host the tool until told to stop."""
    settings, died = chassis.settings, asyncio.Event()
    host = ToolHost(chassis.bus, chassis.clock, Counting(settings.folder))
    registration = Registration(
        service=SERVICE,
        replica=settings.replica_id,
        slots=1,
        model_configured=False,
        ttl_s=settings.lease_ttl_s,
        info={},
    )
    async with register(
        chassis.bus, chassis.clock, registration, control=host.control, on_death=died.set
    ) as liveness:
        catalog = HostCatalog(
            boot=liveness.boot, replica=settings.replica_id, host=platform.node(), tools=[COUNT]
        )
        effects = host_consumer(chassis.bus.subjects, liveness.boot)
        await host.serve(liveness, HostSetting(catalog, effects), stop=chassis.stop, died=died)
    if died.is_set():
        raise LeaseLost("the others declared this host dead; it starts again as a new boot")


async def _until(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await stop.wait()
    except TimeoutError:
        return


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    start(SERVICE, CountingSettings, serve)
