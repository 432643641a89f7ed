"""Places for runs that are about to be started: a tenant has so many at once over all gateways, and never more.

Invariant: what holds a place is a set of run ids, those that the read model shows as going on and those that were let in
moments ago; so nothing is counted twice and nothing has to be given back: a run leaves the set with its status, and a
reservation whose process died expires by itself.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from libs.bus.combining import Combining
from libs.bus.ports import Bucket, Entry
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict, BusUnavailable
from libs.contracts.run import RunStatus
from libs.contracts.subjects import starts_key

# How long a reservation stands for a run that no read model knows yet. An append takes milliseconds; one that waits for
# the bus longer than this waits for what reservations are written to as well.
RESERVED_S = 10.0
# How long it stands beside what this gateway's read model knows already: another one may be so far behind.
LAG_S = 5.0
KEPT_S = 2 * RESERVED_S
TRIES = 50

# What holds a place: waiting runs do not, and neither do children, which no read model is asked for.
HOLDING = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.VERIFYING)

# The ids of runs that hold places, and the statuses of those that were asked for by id.
Known = Callable[[str, Collection[str]], Awaitable[Mapping[str, str]]]


def places_of(runs_max: int | None, queued_max: int) -> int | None:
    """How many runs of a tenant may be under way or queued, children aside; `None`: as many as it likes."""
    return None if runs_max is None else runs_max + queued_max


_decoder = msgspec.json.Decoder(dict[str, float])


class Place(NamedTuple):
    """Whether a run may be started, and how many more may be."""

    granted: bool
    remaining: int


def places(
    reserved: Mapping[str, float], known: Mapping[str, str], asked: Collection[str], now: float, most: int
) -> tuple[dict[str, float], list[Place]]:
    """The reservations after the runs `asked` asked for places at time `now`, and who of them has one. Pure."""
    begun = {run_id for run_id, status in known.items() if status != RunStatus.PENDING}
    standing = {
        run_id: at
        for run_id, at in reserved.items()
        if now - RESERVED_S < at <= now + RESERVED_S and (run_id not in begun or now - at < LAG_S)
    }
    holding = {run_id for run_id, status in known.items() if status in HOLDING} | (standing.keys() - begun)
    found: list[Place] = []
    for run_id in asked:
        granted = run_id in holding or len(holding) < most
        if granted:
            holding.add(run_id)
            standing.setdefault(run_id, now)
        found.append(Place(granted, max(0, most - len(holding))))
    return standing, found


class Starts:
    """The places of this process's tenants, shared with all others. Without `most` there are enough."""

    def __init__(self, bucket: Bucket, clock: Clock, known: Known, *, most: int | None) -> None:
        self._bucket, self._clock, self._known, self.most = bucket, clock, known, most
        self._combining: Combining[str, Place] = Combining(self._reserve)

    async def reserve(self, tenant: str, run_id: str) -> Place | None:
        """A place for this run; `None` without a limit. Raises `Unavailable`."""
        if self.most is None:
            return None
        return await self._combining.ask(tenant, run_id)

    async def _reserve(self, tenant: str, asked: list[str]) -> list[Place]:
        assert self.most is not None
        key = starts_key(tenant)
        for _ in range(TRIES):
            entry = await self._bucket.get(key)
            reserved = _decoder.decode(entry.value) if entry is not None else {}
            known = await self._known(tenant, {*reserved, *asked})
            after, found = places(reserved, known, asked, self._clock.now().timestamp(), self.most)
            if after == reserved or await self._written(key, after, entry):
                return found
        raise BusUnavailable(f"the runs of tenant {tenant} cannot be counted now", retry_after_s=1)

    async def _written(self, key: str, reserved: Mapping[str, float], entry: Entry | None) -> bool:
        value = msgspec.json.encode(reserved)
        try:
            if entry is None:
                await self._bucket.create(key, value, ttl_s=KEPT_S)
            else:
                await self._bucket.update(key, value, entry.revision, ttl_s=KEPT_S)
        except AppendConflict:
            return False
        return True
