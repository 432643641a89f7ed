"""What runs leave behind: the logs of the deleted, and the journals of those that ended a day ago.

Invariant: what is removed belongs to a run that the log shows to be deleted or long over; of a deleted run its log goes
last, so a log that still holds more than its tombstone says that something is left to do. What a host or an owner that
was frozen writes behind the deletion goes with the next listing. Removing again is quiet.
"""

from collections import deque
from datetime import timedelta

from libs.bus.ports import Bucket, Log, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, parse_rfc3339
from libs.contracts.envelope import decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.events import RunDeleted
from libs.contracts.ids import is_id
from libs.contracts.run import TERMINAL
from libs.contracts.subjects import ANY_TENANT, checkpoint_key, journal_prefix
from services.scheduler.rows import Rows
from services.scheduler.settings import Timing
from services.scheduler.snapshots import OldSnapshots

# Tombstones that are remembered: all of a quarter in a busy deployment. What is forgotten comes again with the replay at
# the next start.
TOMBSTONES_MAX = 50_000
# What one sweep does of each kind: one or two round trips each, a second at most in all.
TOMBSTONES_PER_SWEEP = 200
RUNS_PER_SWEEP = 500

_log = get_logger("remains")


class Remains:
    """Removes them: at once when it is told, in sweeps what was left."""

    def __init__(
        self,
        log: Log,
        checkpoints: Bucket,
        journal: Bucket,
        snapshots: OldSnapshots,
        rows: Rows,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._snapshots = snapshots
        self._log, self._checkpoints, self._journal = log, checkpoints, journal
        self._rows, self._clock, self._timing = rows, clock, timing
        # Of deleted runs: those whose logs may hold more than their tombstones, and all that are known.
        self._tombstones: dict[LogKey, int] = {}
        self._graves: dict[str, None] = {}
        self._listed: deque[str] = deque()
        self._listed_at = float("-inf")

    def note(self, run: LogKey, tombstone: int) -> None:
        """A tombstone was seen at this stream sequence; nobody knows yet whether more is left."""
        self._tombstones[run] = tombstone
        self._graves[run.log_id] = None
        if len(self._tombstones) > TOMBSTONES_MAX:
            del self._tombstones[next(iter(self._tombstones))]
        if len(self._graves) > TOMBSTONES_MAX:
            del self._graves[next(iter(self._graves))]

    async def purge(self, run: LogKey, tombstone: int) -> None:
        """Remove all that there is of a deleted run but its tombstone. Blobs are shared and go later (`blobs.py`)."""
        await self._forget(run.log_id)
        if not self._rows.may_work_in(run.tenant, run.log_id):
            await self._snapshots.forget(run)
        await self._log.purge(run, tombstone)
        self._tombstones.pop(run, None)
        _log.info("run.purged", run_id=run.log_id)

    async def finish_deletions(self) -> None:
        """Purge again where more than the tombstone remains. Raises `Unavailable`."""
        for run, tombstone in list(self._tombstones.items())[:TOMBSTONES_PER_SWEEP]:
            records = await self._log.page(run, 0)
            if records and records[0].header.stream_sequence < tombstone:
                await self.purge(run, tombstone)
            self._tombstones.pop(run, None)

    async def clear(self) -> None:
        """Remove what came behind the deletion of its run, and the journals of runs that ended longer ago than they are
        kept. Raises `Unavailable`."""
        now = self._clock.monotonic()
        if not self._listed and now - self._listed_at >= self._timing.journals_s:
            self._listed_at = now
            journaled = {key.partition(".")[0] for key in await self._journal.keys()}
            shells = {key for key in await self._checkpoints.keys() if key in self._graves}
            self._listed.extend(sorted(run for run in journaled | shells if is_id("run", run)))
        for _ in range(min(RUNS_PER_SWEEP, len(self._listed))):
            run_id = self._listed.popleft()
            if run_id not in self._rows:
                await self._clear(run_id)

    async def _clear(self, run_id: str) -> None:
        # A key does not say whose run it is; a read finds it, and the fence is not asked. A grave is no proof: the
        # key of a run that was deleted long ago may have made another one of the same id.
        tail = await self._log.tail(LogKey(ANY_TENANT, run_id))
        if tail is None:
            await self._forget(run_id)
        elif tail.header.state in TERMINAL:
            try:
                newest = decode_events(tail)[-1]
                ended_at = parse_rfc3339(newest.at)
            except (UnreadableRecord, ValueError) as error:
                _log.warning("journal.kept", run_id=run_id, message=str(error))
                return
            if isinstance(newest.body, RunDeleted):
                await self._forget(run_id)
            elif self._clock.now() - ended_at >= timedelta(seconds=self._timing.journal_kept_s):
                await self._journal.remove(journal_prefix(run_id))

    async def _forget(self, run_id: str) -> None:
        await self._journal.remove(journal_prefix(run_id))
        await self._checkpoints.delete(checkpoint_key(run_id))
