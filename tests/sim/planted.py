"""Bugs planted on purpose, outside of the production code: what the search is worth is how fast it finds them.

Invariant: each plant wraps a component or the twin for as long as its context lasts; nothing of it stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from libs.bus.ports import ACK, Delivery, LogKey, Outcome
from libs.bus.twin.logs import LogStore
from libs.bus.twin.queue import TwinQueue
from libs.bus.twin.stores import TwinBucket
from libs.contracts.envelope import Record
from libs.contracts.run import OWNED, RunState, RunStatus
from libs.contracts.streams import ConsumerSpec
from services.executor.claims import Claims
from services.scheduler.deadlines import Deadlines
from services.scheduler.rows import Rows
from services.scheduler.sweep import Sweep
from tests.sim.scenarios import NAMES
from tests.sim.search import Case, case_of, outcome_of, points

# A bug that needs more schedules than this is not found by the form of the suite.
SCHEDULES_MAX = 2_000


@contextlib.contextmanager
def in_place_of(owner: type, name: str, made: object) -> Generator[None]:
    """Replace one attribute of a class."""
    kept = owner.__dict__[name]
    setattr(owner, name, made)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def missing_fence() -> AbstractContextManager[None]:
    """The server stores a record whatever its writer expected."""
    kept = LogStore.store

    def store(self: LogStore, key: LogKey, expected: int, record: Record) -> Record:
        del expected
        newest = self.tail(key)
        return kept(self, key, newest.header.stream_sequence if newest is not None else 0, record)

    return in_place_of(LogStore, "store", store)


def ack_before_append() -> AbstractContextManager[None]:
    """A published task is acked before its run is in the log."""
    kept = TwinQueue.consume

    async def consume(
        self: TwinQueue,
        spec: ConsumerSpec,
        handler: Callable[[Delivery], Awaitable[Outcome]],
        *,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        async with asyncio.TaskGroup() as group:

            async def hasty(delivery: Delivery) -> Outcome:
                group.create_task(_handled(handler, delivery))
                return ACK

            hands = hasty if spec.name == "schedulers" else handler
            await kept(self, spec, hands, concurrency=concurrency, ready=ready)

    return in_place_of(TwinQueue, "consume", consume)


async def _handled(handler: Callable[[Delivery], Awaitable[Outcome]], delivery: Delivery) -> None:
    await handler(delivery)


def journal_after_effect() -> AbstractContextManager[None]:
    """A host says that it has created the journal key of a call, and writes it together with the result."""
    kept = TwinBucket.create

    async def create(self: TwinBucket, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        # Revision 0 is what the update that brings the result will find.
        return 0 if self.name == "journal" else await kept(self, key, value, ttl_s=ttl_s)

    return in_place_of(TwinBucket, "create", create)


def forgotten_timer() -> AbstractContextManager[None]:
    """Nobody handles fired timers and nobody looks for what is due."""

    async def fired(self: Deadlines, delivery: Delivery) -> Outcome:
        del self, delivery
        return ACK

    def fall_due(self: Rows, now: object) -> int:
        del self, now
        return 0

    return _both(in_place_of(Deadlines, "fired", fired), in_place_of(Rows, "fall_due", fall_due))


@contextlib.contextmanager
def _both(one: AbstractContextManager[None], other: AbstractContextManager[None]) -> Generator[None]:
    with one, other:
        yield


def forgotten_sweep() -> AbstractContextManager[None]:
    """Nobody sends a lost ticket again."""

    async def sweep(self: Sweep) -> None:
        del self

    return in_place_of(Sweep, "_sweep", sweep)


def unfolded_ticket() -> AbstractContextManager[None]:
    """An executor that gets a ticket claims the run as if it were queued, whoever owns it."""

    async def claimable(self: Claims, state: RunState, *_: object) -> bool:
        del self
        return state.status in OWNED | {RunStatus.QUEUED, RunStatus.RETRYING}

    return in_place_of(Claims, "_claimable", claimable)


class Plant(NamedTuple):
    """A bug. `where`: the scenario that shows it soonest."""

    name: str
    plant: Callable[[], AbstractContextManager[None]]
    where: str


PLANTS = (
    Plant("a missing fence", missing_fence, "delegate"),
    Plant("an ack before the append", ack_before_append, "published"),
    Plant("a journal write after the effect", journal_after_effect, "reconcile"),
    Plant("a forgotten timer", forgotten_timer, "deadline"),
    Plant("a forgotten sweep", forgotten_sweep, "delegate"),
    Plant("a double ticket acted on without folding", unfolded_ticket, "tickets"),
)


class Found(NamedTuple):
    """How many schedules it took, how many seconds, and what was said first."""

    schedules: int
    seconds: float
    case: str
    finding: str


def everywhere() -> Iterator[Case]:
    """The whole search: seeds in their order and, by turns with them, the crash points of all scenarios."""
    seeds = (case_of(seed) for seed in itertools.count(1))
    rounds = itertools.zip_longest(*(list(points(name)) for name in NAMES))
    steps = [case for one_each in rounds for case in one_each if case is not None]
    pairs = zip(steps, seeds, strict=False)
    return itertools.chain((case for pair in pairs for case in pair), seeds)


def where_it_shows(plant: Plant) -> Iterator[Case]:
    """Crashes at every step of one scenario, and seeds of it, by turns."""
    seeds = (case_of(seed, (plant.where,)) for seed in itertools.count(1))
    # Counted before the bug is there: a list.
    steps = list(points(plant.where))
    pairs = zip(steps, seeds, strict=False)
    return itertools.chain((case for pair in pairs for case in pair), seeds)


def seeds_alone() -> Iterator[Case]:
    """Seeds in their order and nothing else."""
    return (case_of(seed) for seed in itertools.count(1))


def hunt(plant: Plant, cases: Iterable[Case], most: int = SCHEDULES_MAX) -> Found | None:
    """Run cases until the bug shows."""
    began = time.perf_counter()
    with plant.plant():
        for number, case in enumerate(itertools.islice(cases, most), 1):
            findings = outcome_of(case).findings
            if findings:
                return Found(number, time.perf_counter() - began, str(case), findings[0])
    return None


SEARCHES: Mapping[str, Callable[[Plant], Iterator[Case]]] = {
    "all": lambda _: everywhere(),
    "quickly": where_it_shows,
    "seeds": lambda _: seeds_alone(),
}


def report(search: str) -> int:
    """Hunt for each and print how fast it was found; the exit code says whether all were."""
    missed = 0
    for plant in PLANTS:
        found = hunt(plant, SEARCHES[search](plant))
        if found is None:
            missed += 1
            print(f"{plant.name}: NOT FOUND in {SCHEDULES_MAX} schedules", flush=True)
        else:
            print(
                f"{plant.name}: {found.schedules} schedules, {found.seconds:.1f} s ({found.case}): {found.finding}",
                flush=True,
            )
    return 1 if missed else 0
