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

from deploy.dev.plan import SERVICES, twice
from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import decode_events
from libs.contracts.errors import Unavailable
from libs.contracts.events import RunClaimed, RunCompleted, RunCreated
from libs.contracts.http import read_body
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projectviews import ProjectView
from tests.e2e.stage import Stage, says, stage
from tests.fakes.waiting import eventually

COUNT = int(os.environ.get("ITEMS", "40"))
FAILING = range(10, COUNT, 100 if COUNT >= 1_000 else 20)
NAMES = [f"paper-{number:04}" for number in range(COUNT)]
# How often one looks: a card of thousands of items is read each time.
LOOK_S = 0.05 if COUNT < 1_000 else 1.0
REFUSED: dict[str, object] = {"status": 400, "body": {"error": {"message": "not today"}}}

# A first attempt fails whoever is killed meanwhile: only the prompt of the next one says that it is one.
SCRIPT: list[dict[str, object]] = [
    *(
        {"marker": NAMES[index], "also": ["This is attempt"], "turns": [says("At last.")]}
        for index in FAILING
    ),
    *({"marker": NAMES[index], "turns": [REFUSED]} for index in FAILING),
    {"marker": "", "turns": [says("Read.", delay_s=0.05)]},
]
SECOND = next(one for one in twice() if (one.name, one.replica) == ("executor", 2))


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
        # Patience is for the next item, however many there are and however slow the machine is.
        done = 0
        while done < count:
            card = await once(partial(has_done, done + 1), f"more than {done} items are done")
            done = card.features["committed"]

    await until_done(COUNT // 3)
    for name in list(on.perdure.pids):
        on.perdure.kill(name)
    await until_done(COUNT)
    ended = await once(lambda card: card.status == "COMPLETED", "the project is over")
    assert {status: count for status, count in ended.features.items() if count} == {"committed": COUNT}
    assert ended.features_total == COUNT
    asked, done, owners = await runs_of(on, made.project_id)
    assert done == Counter(range(COUNT)), "each item has one run that completed"
    assert asked.total() == ended.sessions
    assert all(asked[index] >= 2 for index in FAILING)
    assert set(owners) == {"executor-1", "executor-2"}, "both executors took part"
    sys.stdout.write(f"{COUNT} items in {SystemClock().monotonic() - began:.0f} s, {asked.total()} runs\n")


def has_done(count: int, card: ProjectView) -> bool:
    return card.features["committed"] >= count


async def runs_of(on: Stage, project_id: str) -> tuple[Counter[int], Counter[int], Counter[str]]:
    """How many runs each item has in the log, how many of them completed, and how many each executor claimed."""
    items: dict[str, int] = {}
    done: Counter[int] = Counter()
    owners: Counter[str] = Counter()
    async with connect(on.bus, SystemClock()) as bus, bus.log.life(0, 0) as records:
        async for record in records:
            for event in decode_events(record):
                match event.body:
                    case RunCreated(task=task) if task.metadata.get("project_id") == project_id:
                        items[record.log_id] = int(task.metadata["item"])
                    case RunClaimed(owner=owner) if record.log_id in items:
                        owners[owner] += 1
                    case RunCompleted() if record.log_id in items:
                        done[items[record.log_id]] += 1
                    case _:
                        pass
            if done.total() >= COUNT:
                return Counter(items.values()), done, owners
    raise AssertionError("the log ends nowhere")
