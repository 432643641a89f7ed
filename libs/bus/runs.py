"""Runs over the log: load by folding, commit behind the fence, carry out a command exactly once.

Invariant: every event of a run is numbered, folded and appended here, on top of the state that was read; a state
that the log does not hold is never returned.
"""

from collections.abc import Callable, Sequence

from libs.bus.checkpoints import Checkpoints, Folded
from libs.bus.ports import Draft, Log, LogKey
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.errors import AppendConflict, BusUnavailable, NotFound
from libs.contracts.events import LogEvent, RunDeleted
from libs.contracts.evolve import evolve, fold
from libs.contracts.run import RunState

# A command that loses the fence this often meets a log that is written faster than it can be read.
COMMAND_TRIES_MAX = 20


Decide = Callable[[RunState], Sequence[LogEvent]]


class Runs:
    """Loads and writes runs for one process."""

    def __init__(self, log: Log, checkpoints: Checkpoints, clock: Clock) -> None:
        self._log, self._checkpoints, self._clock = log, checkpoints, clock

    async def load(self, tenant: str, run_id: str) -> Folded:
        """Fold the run up to the leader's tail. Raises `NotFound` for unknown and for deleted runs."""
        folded = await self.find(tenant, run_id)
        if folded is None or folded.state.deleted:
            raise NotFound(f"there is no run {run_id}")
        return folded

    async def find(self, tenant: str, run_id: str) -> Folded | None:
        """Like `load`, but `None` for an unknown run, and a deleted one is returned with its tombstone folded.

        Once its log is purged nothing is left to fold: then it is unknown too, although it cannot be created again.
        """
        start, behind = await self._checkpoints.resume(LogKey(tenant, run_id))
        if start is None:
            return None if _is_purged(behind) else self._fold_all(None, behind)
        folded = Folded(start.state, start.last, start.message_id)
        return self._fold_all(folded, behind) or folded

    async def refresh(self, folded: Folded) -> Folded:
        """Fold in what others wrote behind `folded`. Raises `NotFound` when the run was deleted and purged meanwhile."""
        records = await self._log.read(LogKey(folded.state.tenant, folded.state.run_id), folded.last)
        return self._fold_all(folded, records) or folded

    def fold_record(self, folded: Folded, record: Record) -> Folded:
        """Fold in one record of a feed; one that is already folded changes nothing. Raises `NotFound` like `refresh`."""
        return self._fold_all(folded, [record]) or folded

    async def create(self, tenant: str, run_id: str, bodies: Sequence[LogEvent]) -> Folded:
        """Append the first record. Raises `AppendConflict` when the run exists (or existed)."""
        events = self._events(run_id, 0, bodies)
        state = fold(None, events)
        assert state is not None
        record = await self._log.append(Draft(LogKey(tenant, run_id), 0, events, state.epoch, state.status))
        return Folded(state, record.header.stream_sequence, record.header.message_id)

    async def commit(self, folded: Folded, bodies: Sequence[LogEvent]) -> Folded:
        """Append `bodies` as one record on top of `folded`. Raises `AppendConflict` when somebody else was first."""
        state = folded.state
        events = self._events(state.run_id, state.sequence, bodies)
        for event in events:
            state = evolve(state, event)
        key = LogKey(state.tenant, state.run_id)
        record = await self._log.append(Draft(key, folded.last, events, state.epoch, state.status))
        return Folded(state, record.header.stream_sequence, record.header.message_id)

    async def command(self, tenant: str, run_id: str, decide: Decide) -> Folded:
        """Fold, decide, append; again while others are faster. `decide` raises to refuse; nothing to append is a
        success. Raises `BusUnavailable` after 20 lost races."""
        folded = await self.load(tenant, run_id)
        for _ in range(COMMAND_TRIES_MAX):
            bodies = decide(folded.state)
            if not bodies:
                return folded
            try:
                return await self.commit(folded, bodies)
            except AppendConflict:
                folded = await self.refresh(folded)
        raise BusUnavailable(f"run {run_id} changes too fast for this command; try again", retry_after_s=1)

    async def checkpoint(self, folded: Folded, index: Sequence[tuple[int, int]] = ()) -> None:
        """Keep the fold, so that the next reader begins here."""
        await self._checkpoints.save(folded, index)

    def _events(self, run_id: str, sequence: int, bodies: Sequence[LogEvent]) -> list[Event]:
        at = rfc3339(self._clock.now())
        return [Event(sequence + 1 + index, run_id, at, body) for index, body in enumerate(bodies)]

    def _fold_all(self, folded: Folded | None, records: Sequence[Record]) -> Folded | None:
        state, last, message_id = folded if folded is not None else (None, 0, "")
        if (
            state is not None
            and records
            and records[0].header.first > state.sequence + 1
            and _is_purged(records)
        ):
            raise NotFound(f"run {state.run_id} was deleted")
        for record in records:
            if record.header.stream_sequence <= last:
                continue
            for event in decode_events(record):
                state = evolve(state, event)
            last, message_id = record.header.stream_sequence, record.header.message_id
        return Folded(state, last, message_id) if state is not None else None


def _is_purged(records: Sequence[Record]) -> bool:
    """Whether the beginning of a log is gone and it ends with a tombstone."""
    if not records or records[0].header.first == 1:
        return False
    return isinstance(decode_events(records[-1])[-1].body, RunDeleted)
