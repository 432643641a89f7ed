"""The demo's run under orders to die: what a deployment needs for it, the points, and what has to hold afterwards.

Invariant: whichever process dies at whichever point, the run ends as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from deploy.dev import demo_repair
from deploy.dev.plan import SERVICES, Service
from libs.client import GatewayUnreachable
from libs.contracts.errors import Unavailable
from libs.contracts.http import TaskCreate
from libs.contracts.views import EventView
from tests.e2e.stage import Stage, call, calls, stage
from tests.fakes.waiting import PATIENCE_S

VICTIMS = ("executor", "toolhost", "verifier", "scheduler", "gateway")
# What a process does about its own life is no point of a run, and how many deltas there are is chance.
IRRELEVANT = frozenset({"write.leases", "write.catalog", "write.checkpoints"})
# Of a run that answers faster than those that were counted, the last points may be one or two too many.
TRIES = 3
COUNTING_HOST = Service(name="countinghost", argv=(sys.executable, "-m", "tests.fakes.counting_host"))


class Point(NamedTuple):
    """One place of a process's work."""

    service: str
    kind: str
    number: int
    moment: str


class Crashing(NamedTuple):
    """A deployment that dies on order."""

    on: Stage
    folder: Path

    async def discover(self) -> list[Point]:
        """Every point that two undisturbed runs had, in a fixed order.

        What happens at once is appended at once: outputs that come together save an append, so runs differ by a few.
        """
        first, second = await self._counted("counted"), await self._counted("counted-again")
        return [
            Point(service, kind, number, moment)
            for service in VICTIMS
            for kind, times in sorted((first[service] & second[service]).items())
            if kind not in IRRELEVANT
            for number in range(1, times + 1)
            for moment in ("before", "after")
        ]

    async def _counted(self, name: str) -> dict[str, Counter[str]]:
        """How often each service came by each kind of point."""
        for service in VICTIMS:
            self._points(service).touch()
        await self.run(name)
        counted = {service: Counter(self._points(service).read_text().split()) for service in VICTIMS}
        for service in VICTIMS:
            self._points(service).unlink()
        return counted

    async def crash(self, point: Point) -> None:
        """Runs whose `point` is deadly, until one came by it; raises `AssertionError` unless each ends like an
        undisturbed one."""
        for attempt in range(1, TRIES + 1):
            order = self.folder / f"{point.service}-1"
            name = f"{point.service}-{point.kind.replace('.', '-')}-{point.number}-{point.moment}-{attempt}"
            order.write_text(f"{point.kind} {point.number} {point.moment} {name}")
            await self.run(name)
            died = not order.exists()
            order.unlink(missing_ok=True)
            await self.on.perdure.healthy(PATIENCE_S)
            # How many deltas, notices and looks there are depends on time alone.
            if died or point.kind in {"tell", "answer", "request"}:
                return
        raise AssertionError(f"{point} was not reached in {TRIES} runs")

    async def run(self, name: str) -> None:
        """The demo's run in a workspace of this name, and all that must be true of it."""
        on = self.on
        files = {path.name: path.read_text() for path in demo_repair.PROJECT.iterdir() if path.is_file()}
        on.workspace(name, {**files, "run_tests.sh": "python3 -B -m unittest -q\n"})
        task = TaskCreate.model_validate(
            {
                "goal": demo_repair.GOAL,
                "auto_start": True,
                "workspace": name,
                "acceptance": demo_repair.ACCEPTANCE,
            }
        )
        asked_before = on.model.count
        run_id = await self._submitted(task, name)
        run = await self._ended(run_id)
        events = await on.events(run_id)
        told = f"{name}: {run}\n" + "\n".join(f"{e.sequence} {e.type} {e.payload}" for e in events)
        assert run == "COMPLETED PASSED", told
        assert [event.sequence for event in events] == list(range(1, len(events) + 1)), told
        assert [event.type for event in events if _is_end(event)] == [events[-1].type], told
        assert tree(on, name) == {**tree(on, "counted")}, told
        asked = on.model.count - asked_before
        answers = [event.sequence for event in events if event.type == "model.completed"]
        claims = [event.sequence for event in events if event.type == "run.claimed"]
        # An answer that was recorded is never asked for again; only an owner that dies before may cost one more call.
        may_have_lost_one = any(claims[0] < claim < answers[-1] for claim in claims)
        assert len(answers) <= asked <= len(answers) + may_have_lost_one, (
            f"{asked} calls of the model\n{told}"
        )
        effects = (self.folder / "effects").read_text().splitlines()
        assert [line.split()[2] for line in effects if line.startswith(f"{run_id} ")] == ["1"], told

    async def _submitted(self, task: TaskCreate, key: str) -> str:
        """The run's id, asking again like a client that does not know what became of its request."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return (await self.on.client.create_task(task, idempotency_key=key)).run_id
                except (GatewayUnreachable, Unavailable):
                    await asyncio.sleep(0.05)

    async def _ended(self, run_id: str) -> str:
        """How the run ended, however often the gateway is away meanwhile."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    run = await self.on.client.run(run_id)
                    if run.status in ("COMPLETED", "FAILED", "CANCELLED"):
                        return f"{run.status} {(run.verification or {}).get('status')}"
                except (GatewayUnreachable, Unavailable):
                    pass
                await asyncio.sleep(0.05)

    def _points(self, service: str) -> Path:
        return self.folder / f"{service}-1.points"


def selection(points: list[Point], number: int) -> list[Point]:
    """About `number` of the points, some of every service, spread over its kinds and moments; of an executor also those
    around the verification: the final answer is recorded by its last append but one, the end by its last."""
    last = max(point.number for point in points if point.service == "executor" and point.kind == "append")
    chosen = [Point("executor", "append", last - 1, "after"), Point("executor", "append", last, "before")]
    number -= len(chosen)
    for service in VICTIMS:
        own = [point for point in points if point.service == service and point.kind != "tell"]
        share = max(2, round(number * len(own) / len(points)))
        chosen += (
            own if len(own) <= share else [own[(2 * n + 1) * len(own) // (2 * share)] for n in range(share)]
        )
    return chosen


def tree(on: Stage, name: str) -> dict[str, bytes]:
    """All files of a workspace."""
    root = on.data / "workspaces" / name
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@asynccontextmanager
async def crashing(folder: Path) -> AsyncGenerator[Crashing]:
    """A deployment that dies on order, with a tool that counts its effects."""
    orders = folder / "orders"
    orders.mkdir()
    turns = demo_repair.turns()
    script = {demo_repair.MARKER: [*turns[:-1], calls(call("count", counter="once")), turns[-1]]}
    environment = {"PERDURE_TEST_CRASH": str(orders), "COUNTING_FOLDER": str(orders)}
    async with stage(folder, script, environment, services=(*SERVICES, COUNTING_HOST)) as on:
        yield Crashing(on, orders)


def _is_end(event: EventView) -> bool:
    return event.type in ("run.completed", "run.failed", "run.cancelled")
