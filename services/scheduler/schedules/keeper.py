"""Does what the core of schedules decides: folds a schedule, looks at its runs, appends, makes runs.

Invariant: a fire is in the schedule's log before its run is made, and its run is there before anything else is decided;
all of it may be done again (key: schedule and time). Whoever loses the fence reads again and decides anew.
"""

import asyncio
from collections import OrderedDict
from datetime import timedelta

from libs.bus.creation import Creation, scheduled
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import FoldedSchedule, schedules_of
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, parse_rfc3339
from libs.contracts.errors import (
    AppendConflict,
    BusUnavailable,
    IdempotencyConflict,
    NotFound,
    RequestError,
    RunDeleted,
)
from libs.contracts.run import TERMINAL
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedule_events import ScheduleEvent, ScheduleFired, ScheduleFireFailed
from libs.contracts.schedules import ScheduleStatus
from libs.contracts.streams import TOMBSTONE_S
from libs.contracts.subjects import checkpoint_key
from services.scheduler.schedules.decide import Env, decide, wants_to_know
from services.scheduler.schedules.rows import ScheduleRows

# Decisions in a row about one schedule: what people asked for, what waits, and its time, with a few lost races.
STEPS_MAX = 64
# Folds that are kept between two times: about 5 KiB each. One that was let go of is read again, from its checkpoint.
KEPT_MAX = 5_000
# Events between two checkpoints of a schedule.
CHECKPOINT_EVENTS = 64
# A run that is not there is made only while the tombstone of a deleted one would show.
MAKE_WITHIN_S = TOMBSTONE_S / 2

_log = get_logger("schedules")


class Keeper:
    """Keeps schedules going for one process."""

    def __init__(self, bus: Bus, rows: ScheduleRows, creation: Creation, clock: Clock) -> None:
        self._schedules, self._rows, self._creation = schedules_of(bus, clock), rows, creation
        self._log, self._checkpoints, self._clock = bus.log, bus.bucket("checkpoints"), clock
        self._kept: OrderedDict[LogKey, FoldedSchedule] = OrderedDict()
        self._made: dict[LogKey, str] = {}
        self._turns: dict[LogKey, asyncio.Lock] = {}

    async def advance(self, key: LogKey, *, ended: bool = False) -> None:
        """Bring a schedule as far as it goes now; `ended`: one of its runs has, which matters only to what waits for it.

        Quiet for a schedule that is not there. Raises `Unavailable`.
        """
        row = self._rows.get(key)
        if ended and (row is None or row.status != ScheduleStatus.HOLDING):
            return
        turn = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with turn:
                await self._advance(key)
        except NotFound:
            self._forget(key)
        finally:
            if not turn.locked():
                self._turns.pop(key, None)

    def is_made(self, key: LogKey, run_id: str) -> bool:
        """Whether this process knows that the run of the schedule's last fire is there."""
        return self._made.get(key) == run_id

    def made(self, key: LogKey, run_id: str) -> None:
        """The run of the schedule's last fire is there."""
        self._made[key] = run_id

    async def _advance(self, key: LogKey) -> None:
        folded = await self._folded(key)
        if folded is None:
            self._forget(key)
            return
        if folded.state.deleted:
            await self._checkpoints.delete(checkpoint_key(key.log_id))
            await self._log.purge(key, folded.last)
            self._forget(key)
            return
        folded = await self._with_its_run(key, folded, looked=False)
        for _ in range(STEPS_MAX):
            env = Env(self._clock.now(), await self._live(folded.state))
            event = decide(folded.state, env)
            if event is None:
                self._keep(key, folded)
                return
            committed = await self._commit(folded, event)
            if committed is None:
                folded = await self._schedules.refresh(folded)
                folded = await self._with_its_run(key, folded, looked=False)
            elif isinstance(event, ScheduleFired):
                folded = await self._with_its_run(key, committed, looked=True)
            else:
                folded = committed
        raise BusUnavailable(
            f"schedule {key.log_id} changes too fast; it is looked at again", retry_after_s=1
        )

    async def _folded(self, key: LogKey) -> FoldedSchedule | None:
        kept, row = self._kept.get(key), self._rows.get(key)
        if kept is None:
            return await self._schedules.find(*key)
        if row is not None and row.sequence <= kept.last:
            # Should there be anything newer, the fence says so.
            return kept
        return await self._schedules.refresh(kept)

    async def _live(self, state: ScheduleState) -> frozenset[str]:
        """Which of the runs that matter now have not ended, by the leader's word."""
        wanted = wants_to_know(state, self._clock.now())
        tails = [await self._log.tail(LogKey(state.tenant, run_id)) for run_id in wanted]
        return frozenset(
            run_id
            for run_id, tail in zip(wanted, tails, strict=True)
            if tail is not None and tail.header.state not in TERMINAL
        )

    async def _commit(self, folded: FoldedSchedule, event: ScheduleEvent) -> FoldedSchedule | None:
        """The schedule with this event; `None` when somebody else was faster."""
        try:
            committed = await self._schedules.commit(folded, [event])
        except AppendConflict:
            return None
        if committed.state.sequence % CHECKPOINT_EVENTS == 0:
            await self._schedules.checkpoint(committed)
        _log.info(event.type, schedule_id=folded.state.schedule_id, next_at=committed.state.next_at)
        return committed

    async def _with_its_run(self, key: LogKey, folded: FoldedSchedule, *, looked: bool) -> FoldedSchedule:
        """The schedule, once the run of its last fire is there. `looked`: it cannot be there yet."""
        state = folded.state
        last = state.last_fire
        if last is None or state.deleted or self.is_made(key, last.run_id):
            return folded
        age = self._clock.now() - parse_rfc3339(last.at)
        is_there = age > timedelta(seconds=MAKE_WITHIN_S) or (
            not looked and await self._log.tail(LogKey(key.tenant, last.run_id)) is not None
        )
        if not is_there:
            reason = await self._make(state, last.run_id)
            if reason is not None:
                failed = await self._commit(
                    folded, ScheduleFireFailed(run_id=last.run_id, reason=reason, next_at=state.next_at)
                )
                folded = failed or await self._schedules.refresh(folded)
        self.made(key, last.run_id)
        return folded

    async def _make(self, state: ScheduleState, run_id: str) -> str | None:
        """Make the run of a fire; why that will never be possible, if so."""
        try:
            await self._creation.create(scheduled(state, run_id))
        except (IdempotencyConflict, RunDeleted):
            # It was made: of the task as it was before a change, or somebody deleted it since.
            return None
        except RequestError as error:
            _log.warning("schedule.fire_failed", schedule_id=state.schedule_id, message=error.message)
            return error.message
        return None

    def _keep(self, key: LogKey, folded: FoldedSchedule) -> None:
        self._kept[key] = folded
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def _forget(self, key: LogKey) -> None:
        self._kept.pop(key, None)
        self._made.pop(key, None)
        self._rows.buried.pop(key, None)
