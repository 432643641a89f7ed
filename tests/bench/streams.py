"""A gateway with a thousand clients: how late events come, what it takes, and whether one that stands still matters.

Invariant: late is counted from before an append is sent, in the writer's process, to the read in the clients';
the gateway is a process of its own, as `perdure up` runs it. `python -m tests.bench.streams` measures the full form.
"""

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.dev.plan import SERVICES
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.contracts.events import LogEvent
from libs.contracts.http import TaskCreate
from tests.bench.figures import Row, percentile, table
from tests.bench.processes import CpuMeter, rss_mb
from tests.e2e.stage import Stage, stage
from tests.service.gateway_served import Owner

LATE_MS = 100.0
RSS_MB = 250.0
# A turn of `Owner` is four events in three records.
TURN_EVENTS = 4
PATIENCE_S = 240.0


class Sizes(NamedTuple):
    """`events_a_second` is the sum over all runs."""

    runs: int
    clients: int
    turns: int
    events_a_second: float


FULL = Sizes(runs=100, clients=10, turns=30, events_a_second=500)


class Seen(NamedTuple):
    """What came of it. `late_ms` and `beside_ms` are sorted: of all clients, and of those beside the frozen one.
    `missing` counts events that a client did not get, or got twice or out of order."""

    late_ms: Sequence[float]
    beside_ms: Sequence[float]
    missing: int
    rate: float
    gateway_mb: float
    gateway_cpu: float


class TimedOwner(Owner):
    """Remembers when it began to append each event, by its sequence."""

    def __init__(self, bus: Bus, runs: Runs, folded: Folded) -> None:
        super().__init__(bus, runs, folded)
        self.times: dict[int, float] = {}

    async def write(self, *bodies: LogEvent) -> None:
        began_s, before = asyncio.get_running_loop().time(), self.folded.state.sequence
        await super().write(*bodies)
        self.times.update(dict.fromkeys(range(before + 1, self.folded.state.sequence + 1), began_s))


async def measured(folder: Path, sizes: Sizes) -> Seen:
    """Write `sizes.runs` runs at once while `sizes.clients` watch each of them, and one more, frozen, the first."""
    async with (
        asyncio.timeout(PATIENCE_S),
        stage(folder, {}, services=SERVICES[:1]) as on,
        connect(on.bus, SystemClock()) as bus,
    ):
        tasks = [TaskCreate(goal=f"stream {number}") for number in range(sizes.runs)]
        runs = [(await on.client.create_task(task)).run_id for task in tasks]
        owners = [await TimedOwner.of(bus, run_id) for run_id in runs]
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.streamclients"),
            *(str(on.perdure.port), str(sizes.clients), *runs),
            stdout=PIPE,
            limit=256 * 1024 * 1024,
        )
        try:
            assert watching.stdout is not None
            assert await watching.stdout.readline() == b"ready\n"
            return await _seen(on, owners, sizes, watching.stdout)
        finally:
            if watching.returncode is None:
                watching.kill()
            await watching.wait()


async def _seen(on: Stage, owners: list[TimedOwner], sizes: Sizes, said: asyncio.StreamReader) -> Seen:
    pid, clock = on.perdure.pids["gateway"], asyncio.get_running_loop().time
    meter, began_s = CpuMeter({"gateway": pid}), clock()
    pace_s = sizes.runs * TURN_EVENTS / sizes.events_a_second
    begun = await asyncio.gather(
        *(
            _write(owner, sizes.turns, pace_s, start_s=pace_s * number / sizes.runs)
            for number, owner in enumerate(owners)
        )
    )
    took_s = clock() - began_s
    gateway_mb, gateway_cpu = rss_mb(pid), meter.spent_s()["gateway"] / took_s
    read: list[list[tuple[int, float]]] = [[] for _ in range(sizes.runs * sizes.clients + 1)]
    lines: list[tuple[int, int, float]] = json.loads(await said.readline())
    for client, sequence, at_s in lines:
        read[client].append((sequence, at_s))
    frozen = sizes.clients
    del read[frozen]
    late_ms: list[float] = []
    beside_ms: list[float] = []
    missing = 0
    for number, seen in enumerate(read):
        times = begun[number // sizes.clients]
        last = max(times)
        if [sequence for sequence, _ in seen] != list(range(1, last + 1)):
            missing += 1
        found = [(at_s - times[sequence]) * 1000 for sequence, at_s in seen if sequence in times]
        late_ms += found
        if number < sizes.clients:
            beside_ms += found
    rate = sum(map(len, begun)) / took_s
    return Seen(sorted(late_ms), sorted(beside_ms), missing, rate, gateway_mb, gateway_cpu)


async def _write(owner: TimedOwner, turns: int, pace_s: float, *, start_s: float) -> dict[int, float]:
    """When each event was begun to be appended. A writer that is late does not catch up."""
    clock = asyncio.get_running_loop().time
    owner.times.clear()
    await asyncio.sleep(start_s)
    for turn in range(1, turns + 1):
        due_s = clock() + pace_s
        await owner.turn(turn)
        await asyncio.sleep(max(0.0, due_s - clock()))
    await owner.complete()
    return owner.times


def rows(seen: Seen, sizes: Sizes) -> list[Row]:
    late, beside = seen.late_ms, seen.beside_ms
    clients = sizes.runs * sizes.clients
    return [
        Row(
            name=f"append to {clients:,} clients, p99",
            value=percentile(late, 0.99),
            unit="ms",
            target=LATE_MS,
            note=f"{seen.rate:.0f} events/s on {sizes.runs} runs; p50 {percentile(late, 0.5):.1f}, "
            f"worst {late[-1]:.0f} ms; {seen.missing} clients without every event once",
        ),
        Row(
            name="  beside a frozen client, p99",
            value=percentile(beside, 0.99),
            unit="ms",
            target=LATE_MS,
        ),
        Row(
            name=f"RSS of a gateway with {clients:,} clients",
            value=seen.gateway_mb,
            unit="MB",
            target=RSS_MB,
            note=f"{seen.gateway_cpu * 100:.0f} % of a core",
        ),
    ]


async def _main() -> None:
    # Not in a temporary folder: that may lie in memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-results-") as folder:
        seen = await measured(Path(folder).resolve(), FULL)
    print(table(rows(seen, FULL), 1.0))
    assert not seen.missing, f"{seen.missing} clients did not get every event once and in order"


if __name__ == "__main__":
    asyncio.run(_main())
