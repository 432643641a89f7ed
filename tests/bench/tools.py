"""What a tool call costs beyond the tool: from the request on the bus to the result in the owner's hands.

Invariant: one call at a time, against a tool host in a process of its own and a server that syncs every write; the
tools are the cheapest of their kind (a line of a file, a small file, `true`), so that what is left is the way there and
back: checks, journal, sandbox.
"""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from deploy.dev.nats_server import ServerSettings, nats_server
from libs.bus.connection import BusSettings, connect
from libs.bus.ports import Bus
from libs.chassis.asking import noticed
from libs.chassis.clock import SystemClock
from libs.contracts.errors import InternalError
from libs.contracts.tools import JournalState
from tests.bench.figures import Row, spread
from tests.service.hosting_owner import TENANT, Owner, host_of, owned_run

READ_MS, JOURNALED_MS, SANDBOXED_MS = 4.0, 7.0, 40.0
# The first calls pay for what every later one finds warm.
_WARM_UP = 5


async def tool_rows(folder: Path, rounds: int) -> list[Row]:
    """The three kinds of calls."""
    folder.mkdir()
    async with nats_server(ServerSettings(folder / "nats")) as server:
        address = server.address
        settings = BusSettings(
            address.url,
            address.user,
            address.password,
            None,
            prefix="perdure",
            name="bench",
            monitor_url=address.monitor_url,
        )
        async with connect(settings, SystemClock()) as bus:
            await bus.ensure_topology()
            environment = {
                "PATH": os.environ["PATH"],
                "NATS_URL": address.url,
                "NATS_USER": address.user,
                "NATS_PASSWORD": address.password,
                "NATS_MONITOR_URL": address.monitor_url,
                "PERDURE_DATA": str(folder / "data"),
                "RUN_TESTS_COMMAND": '["true"]',
                "LOG_LEVEL": "warning",
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.toolhost", env=environment, stdout=asyncio.subprocess.DEVNULL
            )
            try:
                return await _measured(bus, folder / "data" / "workspaces", rounds)
            finally:
                process.terminate()
                await process.wait()


async def _measured(bus: Bus, root: Path, rounds: int) -> list[Row]:
    boot = (await host_of(bus, shared=False)).boot
    owner = await owned_run(bus, "bench")
    await owner.attach(boot)
    (root / "bench" / "line").write_text("a line\n")

    async def read(number: int) -> float:
        del number
        result = await owner.read(boot, "read_file", path="line")
        _check(result.ok, result.output)
        return 0.0

    async def write(number: int) -> float:
        return await _effect(
            owner, boot, "write_file", {"path": "small", "content": f"{number}\n"}, f"call_1_{number}"
        )

    async def tests(number: int) -> float:
        # What the sandbox costs is counted, so nothing is the tool's own.
        await _effect(owner, boot, "run_tests", {}, f"call_2_{number}")
        return 0.0

    sandboxed = "sandboxed" if shutil.which("bwrap") else "without a sandbox"
    return [
        await _row("tool call, READ_ONLY", READ_MS, rounds, read),
        await _row("tool call, journaled", JOURNALED_MS, rounds, write),
        await _row(f"tool call, a process, {sandboxed}", SANDBOXED_MS, rounds, tests),
    ]


async def _row(name: str, target: float, rounds: int, once: Callable[[int], Awaitable[float]]) -> Row:
    """`once` gives the milliseconds of a call that were the tool's own."""
    for number in range(_WARM_UP):
        await once(number)
    whole_ms, beyond_ms = list[float](), list[float]()
    for number in range(_WARM_UP, _WARM_UP + rounds):
        began = time.monotonic()
        own_ms = await once(number)
        whole_ms.append((time.monotonic() - began) * 1000)
        beyond_ms.append(whole_ms[-1] - own_ms)
    found = spread(beyond_ms)
    note = f"p99 {found.p99:.1f} ms; with the tool's own time p50 {spread(whole_ms).p50:.1f} ms"
    return Row(name=f"{name} (p50)", value=found.p50, unit="ms", target=target, note=note)


async def _effect(owner: Owner, boot: str, name: str, arguments: dict[str, object], call_id: str) -> float:
    """As an executor does it: send, wait for the notice, read the journal. The milliseconds that the tool took itself."""
    bus, call = owner.bus, owner.call(name, arguments, call_id)
    async with bus.wire.listen(bus.subjects.live(TENANT, owner.run_id)) as messages:
        await owner.send(bus.subjects.tool_host(boot), call)
        while True:
            await noticed(messages, call)
            entry = await owner.entry(call)
            if entry is not None and entry.state is JournalState.FINISHED:
                _check(entry.result is not None and entry.result.ok, f"{entry.result}")
                return float(entry.result.duration_ms) if entry.result is not None else 0.0


def _check(ok: bool, said: str) -> None:
    if not ok:
        raise InternalError(f"a tool failed while it was measured: {said[:500]}")
