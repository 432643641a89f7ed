"""One schedule from its seed: a world, a scenario, faults, and what was found.

Invariant: the same seed and plan give the same schedule, event for event.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import sys
from collections.abc import Callable, Generator
from typing import NamedTuple

from libs.bus.ports import LogKey
from libs.contracts.envelope import Record
from libs.contracts.ids import is_id
from libs.contracts.run import TERMINAL
from services.scheduler.settings import Timing
from tests.sim.faults import Plan
from tests.sim.invariants import Takeovers, broken, left_over, remains
from tests.sim.loop import Spinning
from tests.sim.person import Person
from tests.sim.scenarios import Scenario
from tests.sim.services import Sizes, start_all
from tests.sim.world import Machine, World

# Longer than any chain of patience, sweep and retry that a few faults can make.
BOUND_S = 900.0
# After the end: what is still on its way may arrive and must change nothing.
GRACE_S = 3.0
# A deletion that was interrupted is finished by the next sweep but one; what a process that was frozen or cut off writes
# behind it goes with the next listing.
DELETED_S = 65.0
LISTED_S = Timing().journals_s + DELETED_S
# Two calls of the bus that never answer, and some.
PATIENCE_S = 40.0

Sabotage = Callable[[World], None]


class Outcome(NamedTuple):
    """What a schedule came to. `digest` is the same for the same schedule."""

    findings: list[str]
    trace: list[str]
    steps: int
    brought: int
    callbacks: int
    virtual_s: float
    digest: int


def run(
    seed: int,
    scenario: Scenario,
    plan: Plan,
    *,
    sizes: Sizes,
    grace_s: float = GRACE_S,
    traced: bool = False,
    sabotage: Sabotage | None = None,
) -> Outcome:
    """Run one schedule to its end."""
    with still():
        world = World(seed, plan, traced=traced)
        try:
            return _run(world, scenario, sizes, grace_s, sabotage)
        except Spinning as spinning:
            trace = world.network.trace or []
            counts = (world.network.steps, world.network.brought, world.loop.steps)
            return Outcome([str(spinning)], trace, *counts, BOUND_S, 0)
        finally:
            world.close()


def _run(
    world: World, scenario: Scenario, sizes: Sizes, grace_s: float, sabotage: Sabotage | None
) -> Outcome:
    if sabotage is not None:
        sabotage(world)
    start_all(world, scenario.turns, sizes)
    ends = _Ends(world)
    world.server.logs.observers.append(ends.see)
    Takeovers(world)
    for story in scenario.stories:
        world.deadly.update(story.deadly)
    people: list[Person] = []
    wanted, deleted = len(scenario.stories), sum(story.habits.delete for story in scenario.stories)

    async def person(machine: Machine) -> None:
        one = Person(world, machine)
        people.append(one)
        async with asyncio.TaskGroup() as group:
            for number, story in enumerate(scenario.stories):
                group.create_task(one.ask_for(number, story.task, story.habits, published=story.published))
        await asyncio.get_running_loop().create_future()

    world.network.armed = True
    began_s = world.loop.time()
    world.start("person", person)

    def all_ended() -> bool:
        made, gone = (people[0].created, people[0].deleted) if people else ({}, set[LogKey]())
        return not ends.open and ends.roots >= wanted and (len(made), len(gone)) == (wanted, deleted)

    ended = world.loop.run(all_ended, BOUND_S)
    virtual_s = world.loop.time() - began_s
    if ended:
        world.loop.run(lambda: False, max(grace_s, DELETED_S) if deleted else grace_s)
        # The record that makes a child may have been on its way when all others had ended: it has its time as well.
        world.loop.run(all_ended, BOUND_S)
        if next(remains(world), None) is not None:
            world.loop.run(lambda: next(remains(world), None) is None, LISTED_S)
        if next(left_over(world), None) is not None:
            # Somebody waits for an answer of the bus, whose patience is bounded. A process that is cut off again and again
            # cannot know what has ended: from here on nothing goes wrong.
            world.network.armed = False
            world.loop.run(lambda: False, PATIENCE_S)
    found = world.findings + list(broken(world, scenario, people[0].created))
    digest = hash(
        tuple((r.header[:8], r.body) for records in world.server.logs.records.values() for r in records)
    )
    counts = (world.network.steps, world.network.brought, world.loop.steps)
    return Outcome(found, world.network.trace or [], *counts, virtual_s, digest)


class _Ends:
    """Which runs there are, and which of them have ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.open: set[str] = set()
        self.roots = 0

    def see(self, record: Record) -> None:
        if not is_id("run", record.log_id):
            return
        if record.header.first == 1:
            self.open.add(record.log_id)
            self.roots += 1
        if record.header.state in TERMINAL:
            self.open.discard(record.log_id)
            self._world.ends.setdefault(record.log_id, self._world.loop.time())


@contextlib.contextmanager
def still() -> Generator[None]:
    """No collection in the middle of a schedule, and no last words of what a dead process left behind."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    gc.disable()
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            yield
    finally:
        sys.unraisablehook = hook
        gc.enable()
