"""Blobs that nobody names any more: the large strings of deleted runs, what was stored for records that lost the fence, and
checkpoints of logs that are gone; in all object stores what a writer stored that was killed before it gave the bytes a name.

Invariant: an object goes only when no record of any log, as the leader has them, named it in a whole pass, and when it was not stored again for
`kept_s`: whoever writes a record that names one stores it first, which renews an old one. A pass that is cut short removes
nothing. Removing again is quiet.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from libs.bus.ports import Blobs, Log, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.envelope import decode_events
from libs.contracts.errors import Unavailable, UnreadableRecord
from libs.contracts.events import RunDeleted
from libs.contracts.subjects import ANY_TENANT
from services.scheduler.leadership import Leadership

# Digests, wherever a record names them: also in kinds and fields of later versions.
_NAMED = re.compile(rb'"([0-9a-f]{32,128})"')
_DIGEST = re.compile(r"[0-9a-f]{32,128}")
_CHECKPOINT = "checkpoint-"

# Killed writers that one pass cleans up behind in each store: some round trips each.
WRITERS_PER_PASS = 1_000

_log = get_logger("blobs")


class Pace(NamedTuple):
    """When passes are made, how long an object is left that nobody names, and how much air a pass leaves between two pages of
    the logs, all of which it reads."""

    first_s: float = 1800.0
    every_s: float = 24 * 3600.0
    kept_s: float = 24 * 3600.0
    page_s: float = 0.05


class OldBlobs:
    """Removes them, while its process leads."""

    def __init__(
        self, log: Log, store: Blobs, clock: Clock, *, shards: int, pace: Pace, others: tuple[Blobs, ...] = ()
    ) -> None:
        """`others` are stores whose names are somebody else's to remove."""
        self._log, self._store, self._clock, self._others = log, store, clock, others
        self._shards, self._pace = shards, pace

    async def run(self, leadership: Leadership) -> None:
        """Make a pass now and then, until cancelled."""
        pause_s = self._pace.first_s
        while True:
            await self._clock.sleep(pause_s)
            pause_s = self._pace.first_s
            try:
                if leadership.leads and await self.clear(lambda: leadership.leads):
                    pause_s = self._pace.every_s
            except Unavailable as error:
                _log.warning("blobs.cut_short", message=error.message)

    async def clear(self, goes_on: Callable[[], bool]) -> bool:
        """One pass; whether it came to its end. Raises `Unavailable`."""
        before = self._clock.now() - timedelta(seconds=self._pace.kept_s)
        unnamed, checkpoints = _sorted_out(await self._store.names())
        behind = [0] * self._shards
        # What was appended during the first reading is read again behind it, in moments.
        for _ in range(2):
            for shard in range(self._shards):
                while unnamed and (page := await self._log.bodies(shard, behind[shard])):
                    for sequence, body in page:
                        behind[shard] = sequence
                        for digest in _NAMED.findall(body):
                            unnamed.pop(digest, None)
                    if not goes_on():
                        return False
                    await self._clock.sleep(self._pace.page_s)
        old = [name for names in unnamed.values() for name in names]
        old += [name for name, log_id in checkpoints.items() if await self._is_gone(log_id)]
        removed = [name for name in old if await self._store.remove_older(name, before)]
        if removed:
            _log.info("blobs.removed", objects=len(removed))
        for store in (self._store, *self._others):
            if writers := await store.remove_unnamed(before, WRITERS_PER_PASS):
                _log.info("blobs.chunks_removed", writers=writers)
        return True

    async def _is_gone(self, log_id: str) -> bool:
        try:
            tail = await self._log.tail(LogKey(ANY_TENANT, log_id))
            return tail is None or isinstance(decode_events(tail)[-1].body, RunDeleted)
        except UnreadableRecord:
            return False


def _sorted_out(names: list[str]) -> tuple[dict[bytes, list[str]], dict[str, str]]:
    """The objects that records name, by digest, and the checkpoints, with the log of each. Others are somebody's."""
    by_digest: dict[bytes, list[str]] = {}
    checkpoints: dict[str, str] = {}
    for name in names:
        what = name.partition("/")[2]
        if _DIGEST.fullmatch(what):
            by_digest.setdefault(what.encode(), []).append(name)
        elif what.startswith(_CHECKPOINT):
            checkpoints[name] = what.removeprefix(_CHECKPOINT)
    return by_digest, checkpoints
