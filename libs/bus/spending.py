"""What each tenant has used of its tokens today, over all executors.

Invariant: one key a day, tenant and boot, written by that boot alone and only ever with more, so the sum needs no
agreement, nothing is counted twice, and a process that dies leaves what it had bought in place. It is a hint with a
bound: turns that are under way when the day's tokens run out are not in it yet.

Days are those of UTC. Keys expire a day after theirs; if the bucket is lost, what dead boots had used is forgotten.
"""

import asyncio
import logging
from collections import defaultdict
from datetime import UTC, datetime, time, timedelta

from libs.bus.ports import Bucket
from libs.contracts.clock import Clock
from libs.contracts.errors import Unavailable
from libs.contracts.subjects import spending_key, spending_of

KEPT_S = 2 * 24 * 3600.0

_log = logging.getLogger("perdure.bus")


class Spending:
    """Counts what this process buys, knows what all have bought. Without a `limit` it does nothing."""

    def __init__(self, bucket: Bucket, clock: Clock, *, limit: int | None, boot: str = "") -> None:
        self._bucket, self._clock, self._limit, self._boot = bucket, clock, limit, boot
        self._day = ""
        self._tenants: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._turn = asyncio.Lock()

    async def watch(self) -> None:
        """Learn what others bought, until cancelled."""
        if self._limit is None:
            return
        async with self._bucket.watch() as changes:
            async for key, value in changes:
                if value is not None and (found := spending_of(key)) is not None:
                    day, tenant, boot = found
                    # Of this process its own memory knows best: the bucket lags behind it.
                    if day == self._today() and boot != self._boot:
                        self._tenants[tenant][boot] = _number(value)

    async def bought(self, tenant: str, tokens: int) -> None:
        """This process has used so many tokens for a tenant."""
        if self._limit is None or tokens <= 0:
            return
        day, mine = self._today(), self._tenants[tenant]
        mine[self._boot] = mine.get(self._boot, 0) + tokens
        async with self._turn:
            if day != self._today():
                return
            try:
                key = spending_key(day, tenant, self._boot)
                await self._bucket.put(key, b"%d" % mine[self._boot], ttl_s=KEPT_S)
            except Unavailable as error:
                # The next turn writes the sum again, this one included.
                _log.warning("spending.unwritten", extra={"fields": {"reason": error.message}})

    def over_until(self, tenant: str) -> datetime | None:
        """When the tenant may go on, if its tokens for today are used up."""
        if self._limit is None:
            return None
        self._today()
        if sum(self._tenants.get(tenant, {}).values()) < self._limit:
            return None
        tomorrow = self._clock.now().astimezone(UTC).date() + timedelta(days=1)
        return datetime.combine(tomorrow, time(), UTC)

    def _today(self) -> str:
        """Today; with it all begins anew."""
        day = f"{self._clock.now().astimezone(UTC):%Y-%m-%d}"
        if day != self._day:
            self._day = day
            self._tenants.clear()
        return day


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) < 20 else 0
