"""What it costs one executor to hold very many runs that all wait for their model.

Invariant: both windows are of the same length, in one process, with nothing going on but what goes on for ever: renewals
of the lease, and the look whether the logs of the held runs have news.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.http import LimitsIn, TaskCreate
from tests.bench.figures import Row
from tests.bench.fleet import CLIENTS
from tests.bench.http_wire import connected
from tests.bench.processes import cpu_s
from tests.bench.single import created
from tests.e2e.stage import Stage, says, stage

FEW = 20
# Four looks for news, and some sixty beats of the five leases.
WINDOW_S = 20.0
# The looks that compare new follows with the whole log are over by then.
SETTLE_S = 12.0
CPU_PERCENT = 3.0
# Longer than any of this: the scripted model says nothing before that.
HELD_S = 600.0
PATIENCE_S = 240.0
_LOOK_S = 0.1


class Window(NamedTuple):
    """One quiet time: CPU of the executor in percent of a core, and writes to the leases a second."""

    cpu_percent: float
    puts: float


async def held_rows(folder: Path, runs: int) -> list[Row]:
    """The executor with a few runs, and then with all of them."""
    folder.mkdir()
    script = {"[held]": [says("At last.", delay_s=HELD_S)]}
    environment = {"MAX_CONCURRENT_RUNS_PER_REPLICA": str(runs)}
    async with stage(folder, script, environment) as on, connect(on.bus, SystemClock()) as bus:
        await _hold(on, FEW)
        few = await _quiet(on, bus)
        await _hold(on, runs)
        many = await _quiet(on, bus)
    beyond = max(0.0, many.cpu_percent - few.cpu_percent)
    shares = f"{few.cpu_percent:.2f} % with {FEW}, {many.cpu_percent:.2f} % with {runs}"
    return [
        Row(
            name=f"CPU to hold {runs} runs, beyond {FEW}",
            value=beyond,
            unit="%",
            target=CPU_PERCENT,
            note=f"of a core, in {WINDOW_S:.0f} s: {shares}",
        ),
        Row(
            name=f"  writes to the leases, {runs} runs",
            value=many.puts,
            unit="/s",
            target=few.puts * 1.2,
            note=f"{few.puts:.2f}/s with {FEW}",
        ),
    ]


async def _hold(on: Stage, runs: int) -> None:
    """Have so many runs in all wait for their model."""
    task = TaskCreate(goal="[held]", auto_start=True, tools=[], limits=LimitsIn(timeout_s=HELD_S))
    body = task.model_dump_json(exclude_unset=True).encode()
    left = iter(range(runs - len(on.model.asked)))

    async def create() -> None:
        async with connected(on.perdure.url) as gateway:
            for _ in left:
                created(await gateway.send("POST", "/api/tasks", body))

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(create())
    async with asyncio.timeout(PATIENCE_S):
        while len(on.model.asked) < runs:
            await asyncio.sleep(_LOOK_S)


async def _quiet(on: Stage, bus: Bus) -> Window:
    await asyncio.sleep(SETTLE_S)
    pid = on.perdure.pids["executor"]
    spent_s, puts = cpu_s(pid), await _puts(bus)
    await asyncio.sleep(WINDOW_S)
    return Window((cpu_s(pid) - spent_s) / WINDOW_S * 100, (await _puts(bus) - puts) / WINDOW_S)


class _State(msgspec.Struct):
    last_seq: int


class _Info(msgspec.Struct):
    state: _State


async def _puts(bus: Bus) -> int:
    """Writes to the leases so far; what the server itself writes when a key lapses counts too."""
    answer = await bus.wire.request("$JS.API.STREAM.INFO.KV_perdure-leases", b"", timeout_s=5.0)
    return msgspec.json.decode(answer, type=_Info).state.last_seq
