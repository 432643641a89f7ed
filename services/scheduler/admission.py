"""Which waiting runs may be executed now: fair between tenants, by priority within one. Pure.

Invariant: never more runs than free slots, never more of a tenant than its cap, and nobody waits for ever: a run that
has waited for two `AGING_S` stands with the highest priority, and there the longest waiting goes first. The cap counts
the runs that people started; a child needs no place below it, so delegation cannot lock itself up.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

Lane = Literal["orphaned", "high", "normal", "low"]

# A run that lost its owner was admitted before, so it goes first; the other lanes are the priorities.
_RANKS: Mapping[Lane, int] = {"orphaned": -1, "high": 0, "normal": 1, "low": 2}
# Each of these raises a waiting run by one priority. Far longer than a burst of more important runs takes to start,
# short enough for a person to wait for.
AGING_S = 30.0


class Waiting(NamedTuple):
    """A run that could be executed, and since when (monotonic seconds)."""

    run_id: str
    since: float


class Demand(NamedTuple):
    """What a tenant has in execution (tickets included) and what waits, each lane in order of `since`.

    `active` and `lanes` are the runs that people started, `children` and `children_lanes` those that runs delegated.
    """

    active: int
    lanes: Mapping[Lane, Iterable[Waiting]]
    children: int = 0
    children_lanes: Mapping[Lane, Iterable[Waiting]] = {}


def admit(demands: Mapping[str, Demand], *, free: int, cap: int | None, now: float) -> list[str]:
    """The runs to admit, in order: again and again one of the tenant that has the fewest in execution.

    Among tenants with equally many, the one whose next run waits longest. `cap` bounds what each tenant has in
    execution at once (`None`: the slots do).
    """
    admitted: list[str] = []
    turns: list[tuple[int, float, str]] = []
    tenants = {tenant: _Tenant(demand, cap, now) for tenant, demand in demands.items()}

    def line_up(tenant: str) -> None:
        head = tenants[tenant].head()
        if head is not None:
            heapq.heappush(turns, (tenants[tenant].running, head.since, tenant))

    for tenant in demands:
        line_up(tenant)
    while turns and len(admitted) < free:
        _, _, tenant = heapq.heappop(turns)
        admitted.append(tenants[tenant].take().run_id)
        line_up(tenant)
    return admitted


class _Tenant:
    """One tenant's turns: the better of its own next run, while it is below its cap, and its next child."""

    def __init__(self, demand: Demand, cap: int | None, now: float) -> None:
        self._active, self._cap = demand.active, cap
        self.running = demand.active + demand.children
        self._first, self._children = _Queue(demand.lanes, now), _Queue(demand.children_lanes, now)

    def head(self) -> Waiting | None:
        queue = self._next()
        return queue.head() if queue is not None else None

    def take(self) -> Waiting:
        """Remove and return the head, as one that is in execution now."""
        queue = self._next()
        assert queue is not None
        self._active += queue is self._first
        self.running += 1
        return queue.take()

    def _next(self) -> "_Queue | None":
        capped = self._cap is not None and self._active >= self._cap
        open_queues = [self._children] if capped else [self._first, self._children]
        return min((queue for queue in open_queues if queue.rank is not None), key=_rank, default=None)


class _Queue:
    """Waiting runs, merged over their lanes."""

    def __init__(self, lanes: Mapping[Lane, Iterable[Waiting]], now: float) -> None:
        self._now = now
        self._heads: list[tuple[int, float, int, Waiting, Iterator[Waiting]]] = []
        for lane, waiting in lanes.items():
            self._push(_RANKS[lane], iter(waiting))

    @property
    def rank(self) -> tuple[int, float] | None:
        """How the head compares with others': its priority by now, and since when it waits."""
        return self._heads[0][:2] if self._heads else None

    def head(self) -> Waiting | None:
        return self._heads[0][3] if self._heads else None

    def take(self) -> Waiting:
        """Remove and return the head."""
        _, _, rank, waiting, rest = heapq.heappop(self._heads)
        self._push(rank, rest)
        return waiting

    def _push(self, rank: int, rest: Iterator[Waiting]) -> None:
        waiting = next(rest, None)
        if waiting is not None:
            risen = rank if rank < 0 else max(0, rank - int((self._now - waiting.since) / AGING_S))
            # Lanes have different ranks, so the comparison never reaches the iterators.
            heapq.heappush(self._heads, (risen, waiting.since, rank, waiting, rest))


def _rank(queue: _Queue) -> tuple[int, float]:
    assert queue.rank is not None
    return queue.rank
