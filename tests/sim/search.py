"""The search: which schedules are run, in which order, and what a seed stands for.

Invariant: a case is told by its text alone (`seed 17`, `plain crash 12 before`); running the text again runs the case.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.sim.faults import CRASHES, LOST, SERVICES, Noise, Plan, Point
from tests.sim.scenarios import NAMES, scenario
from tests.sim.schedule import GRACE_S, Outcome, Sabotage, run
from tests.sim.services import Sizes

# A few faults in a schedule find more than a storm: each has to be survived alone and with each other.
NOISES = (
    Noise(),
    Noise(crash=0.025),
    Noise(freeze=0.02),
    Noise(crash=0.015, late=0.02, lost=0.01),
    Noise(slow=0.04, lost_answer=0.04, unknown=0.015, late=0.03, lost=0.02),
    Noise(isolate=0.01, crash=0.006, late=0.02),
    Noise(drain=0.025, crash=0.006, freeze=0.004),
    Noise(vandal=0.025, crash=0.006, drain=0.004),
    Noise(
        crash=0.01,
        freeze=0.006,
        slow=0.02,
        lost_answer=0.02,
        unknown=0.006,
        vanish=0.03,
        late=0.02,
        lost=0.02,
    ),
    Noise(outage=0.01, crash=0.008, late=0.02),
    Noise(full=0.01, crash=0.008, drain=0.006),
    Noise(
        crash=0.006,
        freeze=0.004,
        slow=0.01,
        lost_answer=0.01,
        unknown=0.004,
        vanish=0.02,
        isolate=0.002,
        drain=0.006,
        vandal=0.004,
        outage=0.002,
        full=0.002,
        late=0.01,
        lost=0.01,
    ),
)
# In some schedules one kind of process alone is killed, frozen and ended, and more often: a scheduler takes few steps, and
# faults that are spread over all processes seldom meet the moment between two of them.
ALONE_RATE, ALONE_MORE = 0.3, 6.0
# One in so many schedules is watched for much longer after its end.
LONG_GRACE = 20
LONG_GRACE_S = 45.0
POINT_SIZES = Sizes()


class Case(NamedTuple):
    """One schedule to run."""

    scenario: str
    seed: int = 0
    point: Point | None = None

    def __str__(self) -> str:
        if self.point is None:
            return f"seed {self.seed} ({self.scenario})"
        return f"{self.scenario} seed {self.seed} {self.point}"


def case_of(seed: int, names: tuple[str, ...] = NAMES) -> Case:
    """The random schedule of a seed."""
    return Case(random.Random(f"{seed} case").choice(names), seed)


def outcome_of(case: Case, *, traced: bool = False, sabotage: Sabotage | None = None) -> Outcome:
    """Run a case."""
    told = scenario(case.scenario, case.seed)
    if case.point is not None:
        plan = Plan(point=case.point)
        return run(case.seed, told, plan, sizes=POINT_SIZES, traced=traced, sabotage=sabotage)
    chance = random.Random(f"{case.seed} plan")
    sizes = Sizes(
        schedulers=chance.choice((1, 1, 2)),
        executors=chance.choice((1, 2, 2)),
        toolhosts=chance.choice((1, 2, 2)),
        verifiers=chance.choice((1, 1, 2)),
    )
    noise, services = chance.choice(NOISES), SERVICES
    if chance.random() < ALONE_RATE:
        noise, services = noise.more_of_processes(ALONE_MORE), (chance.choice(SERVICES),)
    plan = Plan(noise=noise, services=services)
    grace_s = LONG_GRACE_S if case.seed % LONG_GRACE == 0 else GRACE_S
    return run(case.seed, told, plan, sizes=sizes, grace_s=grace_s, traced=traced, sabotage=sabotage)


def points(name: str, hows: Sequence[str] = CRASHES, *, seed: int = 0) -> Iterator[Case]:
    """A scenario with one of these faults at each of its steps (of what is brought to processes, for `lost`)."""
    undisturbed = outcome_of(Case(name, seed, Point(0, "nothing")))
    for how in hows:
        for number in range(1, (undisturbed.brought if how == LOST else undisturbed.steps) + 1):
            yield Case(name, seed, Point(number, how))
