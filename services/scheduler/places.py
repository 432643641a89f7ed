"""Whether a tenant may have one more run under way or queued, as the gateways count it, and what waits for a place.

Invariant: places are counted together with the gateways (`libs/bus/starts.py`); what this process knows of the runs comes
from its rows, and of those that are in none, because they have just begun or just ended, from their logs.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

from libs.bus.ports import Bucket, Log, LogKey
from libs.bus.starts import Starts
from libs.contracts.clock import Clock
from services.scheduler.rows import Rows

# Runs that were let in moments ago and are in no row; more are as good as under way.
READS_MAX = 64
# One that waits for a place comes again after this while few wait, and ever more rarely up to the other: in one scheduler
# about so many a second come in vain, until all come at the longest.
PLACE_S = 1.0
PLACE_S_MAX = 15.0
COME_AGAIN_PER_S = 50
# For how long, and for how many newcomers, one goes by the last count of what waits.
KNOWN_S = 1.0
KNOWN_MAX = 100


class Places:
    """The places of all tenants. Without `most` there are enough."""

    def __init__(self, bucket: Bucket, log: Log, rows: Rows, clock: Clock, *, most: int | None) -> None:
        self._log, self._rows = log, rows
        self._starts = Starts(bucket, clock, self._known, most=most)

    @property
    def most(self) -> int | None:
        return self._starts.most

    async def reserve(self, tenant: str, run_id: str) -> bool:
        """Keep a place for this run; whether there is one. Raises `Unavailable`."""
        place = await self._starts.reserve(tenant, run_id)
        return place is None or place.granted

    async def _known(self, tenant: str, run_ids: Collection[str]) -> Mapping[str, str]:
        holding = self._rows.holding(tenant)
        seen = {run_id: row.status.value for run_id in run_ids if (row := self._rows.get(run_id)) is not None}
        unseen = [run_id for run_id in run_ids if run_id not in seen]
        assert self.most is not None
        if len(holding) + len(unseen) <= self.most:
            return {**holding, **seen}
        for run_id in unseen[:READS_MAX]:
            tail = await self._log.tail(LogKey(tenant, run_id))
            if tail is not None:
                seen[run_id] = tail.header.state
        return {**holding, **seen}


class Held:
    """Messages that wait in their queue for a place of their tenant, as far as this process gave them back.

    A queue hands out only so many messages that nobody has acked, to all tenants together; so what waits there is bounded:
    for each tenant and in all as this process knows it, and by what all processes have unanswered (`unanswered`). What is
    above it has to be answered. What waits already is never turned away, whoever let it wait.
    """

    def __init__(
        self,
        clock: Clock,
        unanswered: Callable[[], Awaitable[int]],
        *,
        tenant_max: int,
        most: int,
        queue_max: int,
    ) -> None:
        self._clock, self._ask = clock, unanswered
        self._tenant_max, self._most, self._queue_max = tenant_max, most, queue_max
        # By tenant and message: until when it is not seen again.
        self._until: dict[str, dict[int, float]] = {}
        self._forgot_at = self._asked_at = float("-inf")
        # What was unanswered when that was last asked, and who came to wait since.
        self._unanswered = self._since = 0

    async def hold(self, tenant: str, message: int, *, new: bool) -> float | None:
        """After how many seconds this message may come again; `None`: it may not wait. Raises `Unavailable`."""
        self._forget()
        if new and not (self._has_room(tenant) and await self._queue_has_room()):
            return None
        wait_s = self._wait_s()
        # Twice as long: it comes back when the queue gets to it.
        self._until.setdefault(tenant, {})[message] = self._clock.monotonic() + 2 * wait_s
        return wait_s

    def release(self, tenant: str, message: int) -> None:
        """It waits no more."""
        self._until.get(tenant, {}).pop(message, None)

    def has_any(self, tenant: str) -> bool:
        """Whether others of this tenant wait."""
        self._forget()
        return bool(self._until.get(tenant))

    def _wait_s(self) -> float:
        """The same for all who wait, whenever they came: who is new gets a place no sooner. Not quite the same, so that
        they come in no order that stays."""
        wait_s = min(max(self._count() / COME_AGAIN_PER_S, PLACE_S), PLACE_S_MAX)
        return wait_s * (0.75 + self._clock.entropy(1)[0] / 512)

    def _has_room(self, tenant: str) -> bool:
        return len(self._until.get(tenant, {})) < self._tenant_max and self._count() < self._most

    async def _queue_has_room(self) -> bool:
        now = self._clock.monotonic()
        if now - self._asked_at >= KNOWN_S or self._since >= KNOWN_MAX:
            # Before the answer: the others of this moment go by the last one.
            self._asked_at, self._since = now, 0
            self._unanswered = await self._ask()
        self._since += 1
        return self._unanswered + self._since <= self._queue_max

    def _count(self) -> int:
        return sum(map(len, self._until.values()))

    def _forget(self) -> None:
        """Those that another process has seen to since, and those that came to nothing."""
        now = self._clock.monotonic()
        if now - self._forgot_at < KNOWN_S:
            return
        self._forgot_at = now
        for tenant, held in list(self._until.items()):
            left = {message: until for message, until in held.items() if until > now}
            if left:
                self._until[tenant] = left
            else:
                del self._until[tenant]
