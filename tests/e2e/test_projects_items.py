"""A project over many items on real processes: two executors, scripted failures, everything killed in the middle.

`ITEMS` (40; soak: 5,000) are done, each hundredth (here: each twentieth) fails once.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from deploy.dev.plan import SERVICES, Service
from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import decode_events
from libs.contracts.errors import Unavailable
from libs.contracts.events import RunCompleted, RunCreated
from libs.contracts.http import read_body
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projectviews import ProjectView
from tests.e2e.stage import Stage, says, stage
from tests.fakes.waiting import eventually

COUNT = int(os.environ.get("ITEMS", "40"))
FAILING = range(10, COUNT, 100 if COUNT >= 1_000 else 20)
NAMES = [f"paper-{number:04}" for number in range(COUNT)]
# How many have to be done within one's patience, and how often one looks: a card of thousands of items is read each time.
STEP = max(1, COUNT // 100)
LOOK_S = 0.05 if COUNT < 1_000 else 1.0
REFUSED: dict[str, object] = {"status": 400, "body": {"error": {"message": "not today"}}}

SCRIPT: dict[str, list[dict[str, object]]] = {
    **{NAMES[index]: [{"attempts": [REFUSED, says("Read at last.")]}] for index in FAILING},
    "": [says("Read.", delay_s=0.05)],
}
SECOND = Service(name="executor-2", argv=(sys.executable, "-m", "services.executor"))


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("items"), SCRIPT, services=(*SERVICES, SECOND)) as ready:
        yield ready


async def test_each_item_is_done_once_although_everything_is_killed_in_the_middle(on: Stage) -> None:
    began = SystemClock().monotonic()
    given = {"items": NAMES, "goal": "Read {item} and say so.", "retry_s": 0.5}
    body = {"name": "papers", "brief": "Read them all.", "concurrency": 16, "map": given}
    made = await on.client.create_project(read_body(ProjectCreate, body))

    async def once(fact: Callable[[ProjectView], bool], what: str) -> ProjectView:
        """The card, once the fact holds; no gateway answers while all are dead."""

        async def look() -> ProjectView | None:
            try:
                card = await on.client.project(made.project_id)
            except Unavailable:
                return None
            return card if fact(card) else None

        return await eventually(look, what, every_s=LOOK_S)

    async def until_done(count: int) -> None:
        # Each part has the whole of one's patience.
        for some in (*range(STEP, count, STEP), count):
            await once(partial(has_done, some), f"{some} items are done")

    await until_done(COUNT // 3)
    for name in list(on.perdure.pids):
        on.perdure.kill(name)
    await until_done(COUNT)
    ended = await once(lambda card: card.status == "COMPLETED", "the project is over")
    assert {status: count for status, count in ended.features.items() if count} == {"committed": COUNT}
    assert ended.features_total == COUNT
    asked, done = await runs_of(on, made.project_id)
    assert done == Counter(range(COUNT)), "each item has one run that completed"
    assert asked.total() == ended.sessions
    assert all(asked[index] >= 2 for index in FAILING)
    sys.stdout.write(f"{COUNT} items in {SystemClock().monotonic() - began:.0f} s, {asked.total()} runs\n")


def has_done(count: int, card: ProjectView) -> bool:
    return card.features["committed"] >= count


async def runs_of(on: Stage, project_id: str) -> tuple[Counter[int], Counter[int]]:
    """How many runs each item has in the log, and how many of them completed."""
    items: dict[str, int] = {}
    done: Counter[int] = Counter()
    async with connect(on.bus, SystemClock()) as bus, bus.log.life(0, 0) as records:
        async for record in records:
            for event in decode_events(record):
                match event.body:
                    case RunCreated(task=task) if task.metadata.get("project_id") == project_id:
                        items[record.log_id] = int(task.metadata["item"])
                    case RunCompleted() if record.log_id in items:
                        done[items[record.log_id]] += 1
                    case _:
                        pass
            if done.total() >= COUNT:
                return Counter(items.values()), done
    raise AssertionError("the log ends nowhere")
