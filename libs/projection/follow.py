"""Keeps a read model at the log's heels: life records in, rows out.

Invariant: positions only grow; a reader that asks for what this process itself acknowledged waits for it, at most a
second, so that one sees one's own writes without anybody waiting for a slow disk.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager

from libs.bus.ports import Log, LogKey
from libs.contracts.envelope import Record
from libs.contracts.errors import Unavailable, UnreadableRecord
from libs.contracts.ids import is_id, shard_of
from libs.contracts.run import EXPERIMENT, RunStatus
from libs.projection.rows import (
    Index,
    Position,
    ProjectQuery,
    ProjectRow,
    RunQuery,
    RunRow,
    ScheduleQuery,
    ScheduleRow,
)

# A batch is one transaction: large enough to rebuild quickly, small enough to let a reader in between.
BATCH_RECORDS_MAX = 500
# Records read ahead of the writer: two batches.
AHEAD_RECORDS_MAX = 1000
# How long a list waits for this process's own writes; a view may be late, but never hangs.
OWN_WRITES_S = 1.0
# Between two tries of a store that is away.
STORE_PAUSE_S = 1.0
# Logs whose unreadable records were reported: each is reported once while it is among the last thousand.
REPORTED_MAX = 1000

_STATUSES = frozenset(RunStatus)

_log = logging.getLogger("perdure.projection")


class Projection:
    """A read model with its follower. Made by `projection`."""

    def __init__(self, log: Log, index: Index) -> None:
        self._log, self._index = log, index
        self._folded: dict[int, int] = {}
        self._acknowledged: dict[int, int] = {}
        self._advanced = asyncio.Event()
        self._reported: OrderedDict[str, None] = OrderedDict()

    def acknowledged(self, log_id: str, stream_sequence: int) -> None:
        """Remember a life record that this process appended."""
        shard = shard_of(log_id)
        self._acknowledged[shard] = max(self._acknowledged.get(shard, 0), stream_sequence)

    async def runs(self, query: RunQuery) -> list[RunRow]:
        """A page of runs that holds at least what this process acknowledged before, if that takes no longer than 1 s."""
        await self._catch_up()
        return await self._index.runs(query)

    async def statuses(
        self, tenant: str, statuses: Collection[str], run_ids: Collection[str]
    ) -> dict[str, str]:
        """The runs of a tenant in one of these statuses, and those of these ids, as far as they are known; children
        aside."""
        return await self._index.statuses(tenant, statuses, run_ids)

    async def projects(self, query: ProjectQuery) -> list[ProjectRow]:
        """A page of projects, like `runs`."""
        await self._catch_up()
        return await self._index.projects(query)

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        """A page of schedules, like `runs`."""
        await self._catch_up()
        return await self._index.schedules(query)

    async def _catch_up(self) -> None:
        try:
            async with asyncio.timeout(OWN_WRITES_S):
                while not self._caught_up():
                    await self._advanced.wait()
        except TimeoutError:
            pass

    async def resume(self, shards: int) -> None:
        """Go on from the stored positions; from nothing when the log is not the one that the rows were made from."""
        positions = await self._index.positions()
        for position in positions.values():
            if not await self._still_holds(position):
                await self._index.clear()
                positions = {}
                break
        for shard in range(shards):
            position = positions.get(shard)
            self._folded[shard] = position.stream_sequence if position is not None else 0

    async def follow(self, shard: int) -> None:
        """Fold the life of a shard, for ever; from an earlier place whenever somebody made the rows anew."""
        while True:
            ahead: asyncio.Queue[Record] = asyncio.Queue(AHEAD_RECORDS_MAX)
            async with self._log.life(shard, self._folded[shard]) as records, asyncio.TaskGroup() as group:
                reading = group.create_task(self._read(records, ahead))
                await self._fold(shard, ahead)
                reading.cancel()
            _log.warning("projection.rewound", extra={"fields": {"shard": shard, "to": self._folded[shard]}})

    async def _read(self, records: AsyncIterator[Record], ahead: asyncio.Queue[Record]) -> None:
        while True:
            record = await self._next(records)
            if record is not None:
                await ahead.put(record)

    async def _next(self, records: AsyncIterator[Record]) -> Record | None:
        """The next record; `None` for one of a later version or a broken one, which an observer passes over.

        The rows of its run then stay what the last readable record made of them.
        """
        try:
            record = await anext(records)
        except UnreadableRecord as error:
            self._report(error.log_id, error.message)
            return None
        if is_id("run", record.log_id) and record.header.state not in _STATUSES:
            if record.header.state == EXPERIMENT:
                return None
            self._report(record.log_id, f"{record.header.state} is no state that this version knows")
            return None
        return record

    def _report(self, log_id: str, reason: str) -> None:
        """Once for each log: a run of a later version may go on for weeks."""
        if log_id not in self._reported:
            _log.warning("projection.passed_over", extra={"fields": {"log": log_id, "reason": reason}})
        self._reported[log_id] = None
        self._reported.move_to_end(log_id)
        if len(self._reported) > REPORTED_MAX:
            self._reported.popitem(last=False)

    async def _still_holds(self, position: Position) -> bool:
        records = await self._log.read(LogKey(position.tenant, position.log_id), position.stream_sequence - 1)
        return bool(records) and (
            records[0].header.stream_sequence == position.stream_sequence
            and records[0].header.message_id == position.message_id
        )

    async def _fold(self, shard: int, ahead: asyncio.Queue[Record]) -> None:
        """Apply what is read until the rows turn out to stand at an earlier place."""
        while True:
            batch = [await ahead.get()]
            while len(batch) < BATCH_RECORDS_MAX and not ahead.empty():
                batch.append(ahead.get_nowait())
            after = self._folded[shard]
            self._folded[shard] = stands = await self._applied(shard, after, batch)
            if stands < after:
                return
            self._advanced.set()
            self._advanced.clear()

    async def _applied(self, shard: int, after: int, batch: list[Record]) -> int:
        """However long the store is away; meanwhile the lists are late."""
        while True:
            try:
                return await self._index.apply(shard, after, batch)
            except Unavailable as error:
                _log.warning("projection.not_applied", extra={"fields": {"error": error.message}})
                await asyncio.sleep(STORE_PAUSE_S)

    def _caught_up(self) -> bool:
        return all(self._folded.get(shard, 0) >= last for shard, last in self._acknowledged.items())


@asynccontextmanager
async def projection(log: Log, index: Index, shards: int) -> AsyncGenerator[Projection]:
    """A read model that follows all shards while the context lasts."""
    made = Projection(log, index)
    await made.resume(shards)
    async with asyncio.TaskGroup() as group:
        followers = [group.create_task(made.follow(shard)) for shard in range(shards)]
        yield made
        for follower in followers:
            follower.cancel()
