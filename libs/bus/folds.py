"""Folded logs: load by folding, commit behind the fence, carry out a command exactly once. For runs,
projects and schedules alike.

Invariant: every event of such a log is numbered, folded and appended here, on top of the state that was read; a state
that the log does not hold is never returned.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from libs.bus.checkpoints import FoldCheckpoints, FoldedLog, S, indexed
from libs.bus.ports import Draft, Log, LogKey
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.errors import AppendConflict, BusUnavailable, NotFound
from libs.contracts.events import LogEvent
from libs.contracts.project_events import ProjectEvent
from libs.contracts.run import COPYING
from libs.contracts.schedule_events import ScheduleEvent

# A command that loses the fence this often meets a log that is written faster than it can be read.
COMMAND_TRIES_MAX = 20


E = TypeVar("E", bound=LogEvent | ProjectEvent | ScheduleEvent)


class Folds(Generic[S, E]):
    """Loads and writes the logs of one kind for one process: states `S` of events `E`."""

    def __init__(self, log: Log, checkpoints: FoldCheckpoints[S], clock: Clock) -> None:
        self._log, self._checkpoints, self._clock = log, checkpoints, clock
        self._fold = checkpoints.fold

    async def load(self, tenant: str, log_id: str) -> FoldedLog[S]:
        """Fold the log up to the leader's tail. Raises `NotFound` for an unknown and for a deleted one."""
        folded = await self.find(tenant, log_id)
        if folded is None or folded.state.deleted:
            raise NotFound(f"there is no {self._fold.noun} {log_id}")
        return folded

    async def find(self, tenant: str, log_id: str) -> FoldedLog[S] | None:
        """Like `load`, but `None` for an unknown log, and a deleted one is returned with its tombstone folded.

        Once its log is purged nothing is left to fold: then it is unknown too, although it cannot be created again.
        """
        start, behind = await self._checkpoints.resume(LogKey(tenant, log_id))
        if behind and behind[-1].header.state == COPYING:
            return None  # A copy that is not complete is no run yet.
        if start is None:
            return None if _is_purged(behind) else self._fold_all(None, behind)
        folded = FoldedLog(start.state, start.last, start.message_id, start.index)
        return self._fold_all(folded, behind) or folded

    async def refresh(self, folded: FoldedLog[S]) -> FoldedLog[S]:
        """Fold in what others wrote behind `folded`. Raises `NotFound` when the log was deleted and purged meanwhile."""
        records = await self._log.read(LogKey(folded.state.tenant, folded.state.log_id), folded.last)
        return self._fold_all(folded, records) or folded

    def fold_record(self, folded: FoldedLog[S], record: Record) -> FoldedLog[S]:
        """Fold in one record of a feed; one that is already folded changes nothing. Raises `NotFound` like `refresh`."""
        return self._fold_all(folded, [record]) or folded

    async def create(self, tenant: str, log_id: str, bodies: Sequence[E]) -> FoldedLog[S]:
        """Append the first record. Raises `AppendConflict` when the log exists (or existed)."""
        events = self._events(log_id, 0, bodies)
        state: S | None = None
        for event in events:
            state = self._fold.evolve(state, event)
        assert state is not None
        record = await self._log.append(Draft(LogKey(tenant, log_id), 0, events, state.epoch, state.status))
        return FoldedLog(state, record.header.stream_sequence, record.header.message_id)

    async def commit(self, folded: FoldedLog[S], bodies: Sequence[E]) -> FoldedLog[S]:
        """Append `bodies` as one record on top of `folded`. Raises `AppendConflict` when somebody else was first."""
        state = folded.state
        events = self._events(state.log_id, state.sequence, bodies)
        for event in events:
            state = self._fold.evolve(state, event)
        key = LogKey(state.tenant, state.log_id)
        record = await self._log.append(Draft(key, folded.last, events, state.epoch, state.status))
        return folded.then(state, record.header)

    async def command(self, tenant: str, log_id: str, decide: Callable[[S], Sequence[E]]) -> FoldedLog[S]:
        """Fold, decide, append; again while others are faster. `decide` raises to refuse; nothing to append is a
        success. Raises `BusUnavailable` after 20 lost races."""
        folded = await self.load(tenant, log_id)
        for _ in range(COMMAND_TRIES_MAX):
            bodies = decide(folded.state)
            if not bodies:
                return folded
            try:
                return await self.commit(folded, bodies)
            except AppendConflict:
                folded = await self.refresh(folded)
        raise BusUnavailable(
            f"{self._fold.noun} {log_id} changes too fast for this command; try again", retry_after_s=1
        )

    async def checkpoint(self, folded: FoldedLog[S]) -> None:
        """Keep the fold, so that the next reader begins here."""
        await self._checkpoints.save(folded)

    def _events(self, log_id: str, sequence: int, bodies: Sequence[E]) -> list[Event]:
        at = rfc3339(self._clock.now())
        return [Event(sequence + 1 + index, log_id, at, body) for index, body in enumerate(bodies)]

    def _fold_all(self, folded: FoldedLog[S] | None, records: Sequence[Record]) -> FoldedLog[S] | None:
        state: S | None = folded.state if folded is not None else None
        last, message_id, index = folded[1:] if folded is not None else (0, "", ())
        if (
            state is not None
            and records
            and records[0].header.first > state.sequence + 1
            and _is_purged(records)
        ):
            raise NotFound(f"{self._fold.noun} {state.log_id} was deleted")
        for record in records:
            if record.header.stream_sequence <= last:
                continue
            for event in decode_events(record):
                state = self._fold.evolve(state, event)
            last, message_id = record.header.stream_sequence, record.header.message_id
            index = indexed(index, record.header)
        return FoldedLog(state, last, message_id, index) if state is not None else None


def _is_purged(records: Sequence[Record]) -> bool:
    """Whether the beginning of a log is gone and it ends with a tombstone."""
    if not records or records[0].header.first == 1:
        return False
    return decode_events(records[-1])[-1].body.tombstone
