"""Whether a tenant may have one more run under way or queued, as the gateways count it, and what waits for a place.

Invariant: places are counted together with the gateways (`libs/bus/starts.py`); what this process knows of the runs comes
from its rows, and of those that are in none, because they have just begun or just ended, from their logs.
"""

from collections.abc import Collection, Mapping

from libs.bus.ports import Bucket, Log, LogKey
from libs.bus.starts import Starts
from libs.contracts.clock import Clock
from services.scheduler.rows import Rows

# Runs that were let in moments ago and are in no row; more are as good as under way.
READS_MAX = 64


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

    A queue hands out only so many messages that nobody has acked, to all tenants together; so what waits there is bounded,
    for each tenant and in all, and what is above it has to be answered.
    """

    def __init__(self, clock: Clock, *, tenant_max: int, most: int) -> None:
        self._clock, self._tenant_max, self._most = clock, tenant_max, most
        # By tenant and message: until when it is not seen again.
        self._until: dict[str, dict[int, float]] = {}

    def hold(self, tenant: str, message: int, for_s: float) -> bool:
        """Whether this message may wait, too."""
        now = self._clock.monotonic()
        if self._is_full(tenant, message):
            self._forget(now)
            if self._is_full(tenant, message):
                return False
        # Twice as long: it comes back when the queue gets to it.
        self._until.setdefault(tenant, {})[message] = now + 2 * for_s
        return True

    def release(self, tenant: str, message: int) -> None:
        """It waits no more."""
        self._until.get(tenant, {}).pop(message, None)

    def _is_full(self, tenant: str, message: int) -> bool:
        mine = self._until.get(tenant, {})
        if message in mine:
            return False
        return len(mine) >= self._tenant_max or sum(map(len, self._until.values())) >= self._most

    def _forget(self, now: float) -> None:
        for tenant, held in list(self._until.items()):
            left = {message: until for message, until in held.items() if until > now}
            if left:
                self._until[tenant] = left
            else:
                del self._until[tenant]
