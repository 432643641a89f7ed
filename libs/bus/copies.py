"""A run made of another run's history: first the history, which nobody sees, then the one record that makes it a run.

Invariant: a copy is written behind the fence like everything else, so of two that write the same one each record is
stored once; what a crash left half done is gone on with by whoever is asked for the same copy again. A copy that nobody can
ask for again is announced by a timer first, and buried when that fires.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from libs.bus.checkpoints import Folded
from libs.bus.ports import Bus, Draft, LogKey
from libs.bus.runs import Runs
from libs.contracts import copying
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, decode_events
from libs.contracts.errors import (
    AppendConflict,
    BusUnavailable,
    IdempotencyConflict,
    NotFound,
    Unavailable,
)
from libs.contracts.events import LogEvent, RunDeleted, RunImported, WorkspaceAttached
from libs.contracts.evolve import evolve
from libs.contracts.ids import SHARDS, workspace_id
from libs.contracts.run import COPYING, RunState, RunStatus
from libs.contracts.workspaces import NOWHERE, Saved, objects_of

# Another writer of the same copy is as far as this one after a few records; whoever loses looks again.
_TRIES_MAX = 20

# A copy takes seconds. One that is not whole after this has lost its writer.
UNFINISHED_S = 600.0
# What its timer is set for: no event has this sequence.
COPY_TIMER = 0

# What makes a run of the history that leads to this state, at this time: the marker, and what follows it.
Marker = Callable[[RunState, str], Sequence[LogEvent]]


class Copies:
    """Writes copies for one process."""

    def __init__(self, bus: Bus, runs: Runs, clock: Clock) -> None:
        self._bus, self._runs, self._clock = bus, runs, clock

    async def events(self, key: LogKey) -> list[Event]:
        """All events of a run, from the leader's log. Raises `NotFound`."""
        records = await self._bus.log.read(key)
        events = [event for record in records for event in decode_events(record)]
        if not events or events[0].sequence != 1:
            raise NotFound(f"there is no run {key.log_id}")
        return events

    async def announce(self, key: LogKey) -> None:
        """Have a copy looked at later, of which nobody but this process will ever know the id. Raises `Unavailable`."""
        await self._bus.timers.arm(key, COPY_TIMER, self._clock.now() + timedelta(seconds=UNFINISHED_S))

    async def denounce(self, key: LogKey) -> None:
        """It is a run now; should the timer stay, it finds one."""
        with suppress(Unavailable):
            await self._bus.timers.cancel(key.log_id, COPY_TIMER)

    async def bury(self, key: LogKey) -> bool:
        """Put a tombstone on a copy that its writer left half done, or only announced: whoever removes the deleted removes
        it. Whether that is settled; a writer that lives after all may go on. Quiet for a run. Raises `Unavailable`."""
        tail = await self._bus.log.tail(key)
        if tail is not None and tail.header.state != COPYING:
            return True
        done, expected, epoch = 0, 0, 0
        if tail is not None:
            done, expected, epoch = tail.header.last, tail.header.stream_sequence, tail.header.epoch
        tombstone = RunDeleted(body_hash="", by="copies")
        event = Event(done + 1, key.log_id, rfc3339(self._clock.now()), tombstone)
        try:
            await self._bus.log.append(Draft(key, expected, [event], epoch, RunStatus.CANCELLED))
        except AppendConflict:
            return False
        return True

    async def write(self, key: LogKey, history: Sequence[Event], marker: Marker) -> Folded | None:
        """Make the run `key` of `history`; `None` when there is one already, or was.

        Raises `BusUnavailable`, or `IdempotencyConflict` when a longer copy was begun under the same id."""
        events = copying.renamed(history, key.log_id)
        state = copying.folded(events)
        for _ in range(_TRIES_MAX):
            tail = await self._bus.log.tail(key)
            if tail is not None and tail.header.state != COPYING:
                return None
            done = tail.header.last if tail is not None else 0
            if done > len(events):
                raise IdempotencyConflict(
                    f"{key.log_id} is being made from a longer history; use a new Idempotency-Key"
                )
            expected = tail.header.stream_sequence if tail is not None else 0
            try:
                for batch in copying.batches(events[done:]):
                    draft = Draft(key, expected, batch, state.epoch, COPYING)
                    expected = (await self._bus.log.append(draft)).header.stream_sequence
                return await self._mark(key, expected, state, marker)
            except AppendConflict:
                continue
        raise BusUnavailable(f"{key.log_id} is being copied by others at the same time; try again")

    async def _mark(self, key: LogKey, expected: int, state: RunState, marker: Marker) -> Folded:
        at = rfc3339(self._clock.now())
        events: list[Event] = []
        for body in marker(state, at):
            events.append(Event(state.sequence + 1, key.log_id, at, body))
            state = evolve(state, events[-1])
        record = await self._bus.log.append(Draft(key, expected, events, state.epoch, state.status))
        return Folded(state, record.header.stream_sequence, record.header.message_id)

    async def workspace(self, origin: RunState, saved: Saved | None, key: LogKey) -> Saved | None:
        """Make the own workspace of the run `key`: from `saved` of the origin's, or empty. What was kept is given, `None`
        when it is not there any more. Idempotent: what is there stays."""
        source = LogKey(key.tenant, workspace_id(SHARDS, origin.tenant, origin.workspace))
        target = LogKey(key.tenant, workspace_id(SHARDS, key.tenant, key.log_id))
        if await self._bus.log.tail(target) is not None:
            return saved
        if saved is not None:
            saved = await self._kept_again(source, target, saved, key.log_id)
        body = WorkspaceAttached(workspace_id=target.log_id, host="", replica="", held=NOWHERE, saved=saved)
        event = Event(1, target.log_id, rfc3339(self._clock.now()), body)
        # Should the same copy be made twice at once, both name the same snapshot.
        with suppress(AppendConflict):
            await self._bus.log.append(Draft(target, 0, [event], 0, "ATTACHED"))
        return saved

    async def _kept_again(self, source: LogKey, target: LogKey, saved: Saved, run_id: str) -> Saved | None:
        """The snapshot under the names of another workspace: the origin's objects may go with the origin."""
        tail = await self._bus.log.tail(source)
        newest = decode_events(tail)[-1].body if tail is not None else None
        if not isinstance(newest, WorkspaceAttached) or newest.saved is None:
            return None
        chain, store = newest.saved.chain, self._bus.store("workspaces")
        names = zip(objects_of(source.log_id, chain), objects_of(target.log_id, chain), strict=True)
        for theirs, ours in names:
            data = await store.get(theirs)
            if data is None:
                return None
            await store.put(ours, data)
        return Saved(
            snapshot=saved.snapshot,
            commit=saved.commit,
            chain=list(chain),
            run_id=run_id,
            at_sequence=saved.at_sequence,
        )


def imported(state: RunState, at: str) -> Sequence[LogEvent]:
    """The marker of a run that came from another deployment: a live one waits there until somebody resumes it."""
    del at
    marker = RunImported(
        origin=state.run_id, sequence=state.sequence, listed=copying.listed(state, state.created_at)
    )
    return [marker] if state.terminal else [marker, *copying.interrupted(state)]
