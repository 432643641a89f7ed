"""Many runs at once through one process per service: iterations a second, their CPU, and what went wrong.

Invariant: a run that did not complete, a request that the model saw twice or refused, and a POST that was not answered
201 are each an error; a rate is never given without their number.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from deploy.dev.model_server import Asked
from tests.bench import work
from tests.bench.deployment import Deployment
from tests.bench.figures import Row, rate, steady_rate
from tests.bench.floors import plain_loop
from tests.bench.http_wire import connected
from tests.bench.processes import CpuMeter
from tests.bench.single import created

# So many clients create runs, each one after the other; more would measure the clients.
CLIENTS = 8
# How long a fleet may take: ten times the targeted rate's time, and what it takes to be told.
PATIENCE = 10.0
TARGET_RATE = 80.0
# The rate is promised for this many; more than that must only go well.
TARGET_RUNS = 64


class Fleet(NamedTuple):
    """What a fleet did."""

    runs: int
    length: int
    asked: list[Asked]
    ended: dict[str, str]
    cpu_ms: dict[str, float]

    @property
    def iterations(self) -> int:
        return self.runs * self.length

    @property
    def per_second(self) -> float:
        return rate(self.iterations, [asked.at for asked in self.asked])

    @property
    def errors(self) -> int:
        """Runs that did not complete, and model requests that were refused, broken off or too many."""
        incomplete = self.runs - sum(state == "COMPLETED" for state in self.ended.values())
        refused = sum(asked.status != 200 or asked.aborted for asked in self.asked)
        repeated = max(0, len(self.asked) - self.runs * (self.length + 1))
        return incomplete + refused + repeated


async def fleet(here: Deployment, runs: int, length: int) -> Fleet:
    """Create all runs and wait for their ends."""
    await here.model.forget()
    cpu = CpuMeter(here.pids)
    left = iter(range(runs))
    async with asyncio.TaskGroup() as group:
        creating = [group.create_task(_create(here, left, length)) for _ in range(min(CLIENTS, runs))]
    run_ids = [run_id for task in creating for run_id in task.result()]
    ended = await here.ends.wait(run_ids, 10.0 + PATIENCE * runs * length / TARGET_RATE)
    cpu_ms = {name: seconds * 1000 / (runs * length) for name, seconds in cpu.spent_s().items()}
    return Fleet(runs, length, await here.model.asked(), ended, cpu_ms)


async def _create(here: Deployment, left: Iterator[int], length: int) -> list[str]:
    async with connected(here.perdure.url) as gateway:
        return [created(await gateway.send("POST", "/api/tasks", work.task(length))) for _ in left]


async def fleet_rows(here: Deployment, runs: int, length: int) -> tuple[list[Row], dict[str, float]]:
    """A fleet beside the plain loop with as many runs at once. Also the CPU milliseconds an iteration by process."""
    plain = await plain_loop(here.model, runs=runs, iterations=length, at_once=runs)
    floor = rate(runs * length, [asked.at for asked in plain.asked])
    done = await fleet(here, runs, length)
    steady = steady_rate([(asked.at, asked.turn) for asked in done.asked], length)
    many = "1 run" if runs == 1 else f"{runs} runs"
    while_all = "" if steady is None else f"; {steady:.0f}/s while all were under way"
    rows = [
        Row(
            name=f"iterations a second, {many}",
            value=done.per_second,
            unit="/s",
            target=TARGET_RATE if runs == TARGET_RUNS else None,
            floor=floor,
            more_is_better=True,
            note=f"{length} iterations each{while_all}",
        ),
        Row(name=f"  errors, {many}", value=done.errors, unit="", target=0),
        Row(
            name=f"  CPU an iteration, {many}",
            value=sum(done.cpu_ms.values()),
            unit="ms",
            target=14,
            floor=plain.cpu_ms,
            note="five services and NATS, whole runs; plain loop: its process",
        ),
    ]
    return rows, done.cpu_ms
