"""Requests of a tenant in the last minute, over all gateways: taken by compare-and-set, never more than the limit.

Invariant: in no 60 seconds more than `limit` requests are let in, however many processes count. A request that was
counted and whose process died then goes with its minute; if the bucket is lost, the minute begins anew.
"""

from typing import NamedTuple

import msgspec

from libs.bus.combining import Combining
from libs.bus.ports import Bucket, Entry
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict, BusUnavailable
from libs.contracts.subjects import rate_key

WINDOW_S = 60
# The seconds of the window are whole ones, so that a request counts until all of its second is over.
COUNTED_S = WINDOW_S + 1
# An expired key means that nothing was asked for long.
KEPT_S = 2.0 * WINDOW_S
# Each lost round is another gateway's won one.
TRIES = 50

Window = dict[int, int]
_decoder = msgspec.json.Decoder(Window)


class Standing(NamedTuple):
    """After a request: how many are left in this minute, and in how many seconds there will be more."""

    granted: bool
    remaining: int
    more_in_s: int


def standings(window: Window, now_s: int, asked: int, limit: int) -> tuple[Window, list[Standing]]:
    """The window after `asked` more requests at second `now_s`, as many of which are let in as fit. Pure."""
    # What lies ahead was counted by a clock that is wrong, or is wrong no more: a little is borne, more is forgotten.
    counted = {second: n for second, n in window.items() if now_s - COUNTED_S < second <= now_s + WINDOW_S}
    used = sum(counted.values())
    granted = min(asked, max(0, limit - used))
    if granted:
        counted[now_s] = counted.get(now_s, 0) + granted
    more_in_s = max(1, min(counted, default=now_s) + COUNTED_S - now_s)
    return counted, [
        Standing(number < granted, max(0, limit - used - number - 1), more_in_s) for number in range(asked)
    ]


class Rates:
    """Counts the requests of this process's tenants together with all others."""

    def __init__(self, bucket: Bucket, clock: Clock, *, limit: int | None) -> None:
        self._bucket, self._clock, self.limit = bucket, clock, limit
        self._known: dict[str, Entry] = {}
        self._combining: Combining[None, Standing] = Combining(self._take)

    async def take(self, tenant: str) -> Standing | None:
        """Count one request; `None` without a limit. Raises `Unavailable`."""
        if self.limit is None:
            return None
        return await self._combining.ask(tenant, None)

    async def _take(self, tenant: str, asked: list[None]) -> list[Standing]:
        assert self.limit is not None
        key = rate_key(tenant)
        entry = self._known.get(tenant)
        for _ in range(TRIES):
            now_s = int(self._clock.now().timestamp())
            window = _decoder.decode(entry.value) if entry is not None else {}
            after, found = standings(window, now_s, len(asked), self.limit)
            if entry is not None and not any(one.granted for one in found):
                # Others only ever add to what is known: full is full, and a flood costs the bus nothing.
                return found
            value = msgspec.json.encode(after)
            try:
                if entry is None:
                    revision = await self._bucket.create(key, value, ttl_s=KEPT_S)
                else:
                    revision = await self._bucket.update(key, value, entry.revision, ttl_s=KEPT_S)
            except AppendConflict:
                entry = await self._bucket.get(key)
                continue
            self._known[tenant] = Entry(key, value, revision)
            return found
        raise BusUnavailable(f"the requests of tenant {tenant} cannot be counted now", retry_after_s=1)
