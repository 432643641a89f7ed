"""What it costs an executor to listen: deltas by the thousand, and tool arguments of megabytes.

Invariant: the share of a core is the executor's alone, of deltas that came over a connection; the growth is of CPU
time, so that a busy machine does not show in it.
"""

import asyncio
from pathlib import Path
from time import process_time
from typing import NamedTuple

import msgspec

from libs.contracts.http import TaskCreate
from services.executor.ingress.turn import ModelTurn, TurnBuilder
from tests.bench.figures import Row
from tests.bench.processes import cpu_s
from tests.e2e.stage import Stage, says, stage
from tests.fakes.wire import DONE, fin, tc


class Mix(NamedTuple):
    """Runs that listen at the same time, and the deltas of each."""

    name: str
    marker: str
    runs: int
    deltas: int
    delay_s: float


# 2,000 deltas a second each. A few fast models share reads and messages; of many slow ones each delta has its own.
FAST = Mix("CPU of an executor for 2,000 deltas/s", "[fast]", runs=4, deltas=4_000, delay_s=0.002)
SLOW = Mix("  of 64 models at once", "[slow]", runs=64, deltas=160, delay_s=0.032)
CPU_PERCENT = 25.0
MEGABYTES = 5
FRAGMENT_CHARS = 100
# Twice as long may take twice the time, and what the machine adds.
GROWTH = 2.5
PATIENCE_S = 120.0
_LOOK_S = 0.05


async def streaming_rows(folder: Path) -> list[Row]:
    """Deltas, then arguments."""
    folder.mkdir()
    script = {
        mix.marker: [says(["so many "] * mix.deltas, chunk_delay_s=mix.delay_s)] for mix in (FAST, SLOW)
    }
    async with asyncio.timeout(PATIENCE_S), stage(folder, script) as on:
        deltas = [await _deltas(on, mix) for mix in (FAST, SLOW)]
    return [*deltas, *_arguments()]


async def _deltas(on: Stage, mix: Mix) -> Row:
    pid = on.perdure.pids["executor"]
    task = TaskCreate(goal=mix.marker, auto_start=True, tools=[])
    asked = len(on.model.asked)
    runs = [(await on.client.create_task(task)).run_id for _ in range(mix.runs)]
    while len(on.model.asked) < asked + mix.runs:
        await asyncio.sleep(_LOOK_S)
    clock = asyncio.get_running_loop().time
    began, spent_s = clock(), cpu_s(pid)
    await asyncio.gather(*(on.ended(run_id) for run_id in runs))
    took_s, spent_s = clock() - began, cpu_s(pid) - spent_s
    deltas = mix.runs * mix.deltas
    return Row(
        name=mix.name,
        value=spent_s / deltas * 2_000 * 100,
        unit="%",
        target=CPU_PERCENT,
        note=f"of a core; measured at {deltas / took_s:.0f}/s, {spent_s / deltas * 1e6:.0f} us a delta",
    )


def _arguments() -> list[Row]:
    half, whole = _read_s(MEGABYTES / 2), _read_s(MEGABYTES)
    return [
        Row(
            name=f"a {MEGABYTES} MB tool argument",
            value=whole * 1000,
            unit="ms",
            note="CPU, 100 characters a delta",
        ),
        Row(name="  against one of half the size", value=whole / half, unit="x", target=GROWTH),
    ]


def _read_s(megabytes: float) -> float:
    """CPU seconds for one argument, of the text that is hardest to find the end of: all braces."""
    encoded = msgspec.json.encode({"content": "{}" * int(megabytes * 500_000)}).decode()
    pieces = [
        tc(0, "a", "f", encoded[at : at + FRAGMENT_CHARS]) for at in range(0, len(encoded), FRAGMENT_CHARS)
    ]
    builder, began = TurnBuilder(), process_time()
    for piece in (*pieces, fin("tool_calls"), DONE):
        builder.feed(piece)
    turn = builder.finish(iteration=1, schemas={}, input_tokens=1)
    assert isinstance(turn, ModelTurn)
    return process_time() - began
