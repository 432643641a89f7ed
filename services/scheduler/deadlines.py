"""Deadlines: what runs wait on ends in time, by durable timers that are set from the log and judged against it.

Invariant: a fired timer acts only if its run still waits on the very event that the timer was set for. Handled again,
it changes nothing (key: run and that event). Nothing here counts time by itself.
"""

import msgspec

from libs.bus.copies import COPY_TIMER, Copies
from libs.bus.ports import ACK, Bus, Delivery, LogKey, Outcome, dead, nak
from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.errors import UNREADABLE, NotFound
from libs.contracts.events import LogEvent, RunFailed
from libs.contracts.ids import is_id, is_token
from libs.contracts.run import RunState, RunStatus
from libs.contracts.streams import fired_consumer
from libs.contracts.tasks import Timer
from libs.contracts.values import RunError
from services.scheduler.chores import Advance, Arm, Chores, Disarm
from services.scheduler.leadership import Leadership
from services.scheduler.row import TIMED
from services.scheduler.rows import Rows
from services.scheduler.wakeups import Wakeups

# Timers that are handled at the same time: one fold each, as many as hide the round trips.
FIRED_MAX = 16
# A timer that reached a scheduler which no longer leads goes on to the one that does.
PASS_ON_S = 1.0
# Somebody writes at a copy that was taken for left.
COPYING_S = 60.0
# Stale timers fire once and change nothing; taking them back early only saves room, so a sweep takes few.
DISARMS_MAX = 200

_log = get_logger("deadlines")


class Deadlines:
    """Handles what fires, and compares what stands on the server with what should."""

    def __init__(
        self,
        bus: Bus,
        runs: Runs,
        rows: Rows,
        wakeups: Wakeups,
        chores: Chores,
        copies: Copies,
    ) -> None:
        self._timers, self._queue, self._subjects = bus.timers, bus.queue, bus.subjects
        self._runs, self._rows, self._wakeups, self._chores = runs, rows, wakeups, chores
        self._copies = copies
        self._decoder = msgspec.json.Decoder(Timer)
        self._stale: set[tuple[str, int]] = set()

    async def consume(self, leadership: Leadership) -> None:
        """Handle fired timers while this process leads, until cancelled."""

        async def handle(delivery: Delivery) -> Outcome:
            return await self.fired(delivery) if leadership.leads else nak(PASS_ON_S)

        spec = fired_consumer(self._subjects)
        await self._queue.consume(spec, handle, concurrency=FIRED_MAX, ready=leadership.acquired)

    async def fired(self, delivery: Delivery) -> Outcome:
        """One fired timer. Raises `Unavailable`: then it is delivered again."""
        try:
            timer = self._decoder.decode(delivery.body)
        except UNREADABLE as error:
            return dead(f"not a timer: {error}")
        if is_token(timer.tenant) and is_id("project", timer.run_id):
            # Should this get lost, the sweep comes back to the project.
            self._chores.add([Advance(LogKey(timer.tenant, timer.run_id), timer.sequence)])
            return ACK
        if not (is_token(timer.tenant) and is_id("run", timer.run_id)):
            return dead("not a timer of a run or a project")
        if timer.sequence == COPY_TIMER:
            settled = await self._copies.bury(LogKey(timer.tenant, timer.run_id))
            return ACK if settled else nak(COPYING_S)
        found = await self._runs.find(timer.tenant, timer.run_id)
        if found is None or found.state.waiting_since != timer.sequence:
            return ACK
        match found.state.status:
            case RunStatus.RETRYING:
                self._wakeups.learn(found)
                self._rows.fire(timer.run_id, timer.sequence)
                self._wakeups.changed()
            case RunStatus.WAITING_FOR_INPUT:
                await self._give_up(timer)
            case _:
                pass
        return ACK

    async def compare(self) -> None:
        """Have timers set that are missing, and taken back that stand for nothing. Raises `Unavailable`."""
        standing = await self._timers.standing()
        missing = [
            Arm(row.key, *row.deadline)
            for row in self._rows
            if row.deadline is not None
            and not row.due
            and (row.run_id, row.deadline.sequence) not in standing
        ]
        if missing:
            _log.info("timers.restored", count=len(missing))
        self._chores.add(missing)
        # The rows may lag behind: a timer is taken back the second time that it seems to stand for nothing.
        stale = {place for place in standing if self._is_stale(*place)}
        self._chores.add(Disarm(*place) for place in sorted(stale & self._stale)[:DISARMS_MAX])
        self._stale = stale

    def _is_stale(self, run_id: str, sequence: int) -> bool:
        if not is_id("run", run_id):
            return False  # One of a project fires once and is looked at then.
        if sequence == COPY_TIMER:
            return False  # So does one of a copy.
        row = self._rows.get(run_id)
        if row is None or row.status not in TIMED:
            return True
        return row.waiting_since is not None and row.waiting_since != sequence

    async def _give_up(self, timer: Timer) -> None:
        key = LogKey(timer.tenant, timer.run_id)
        try:
            folded = await self._runs.command(*key, lambda state: timed_out(state, timer.sequence))
        except NotFound:
            return
        if folded.state.terminal:
            _log.info("input.timed_out", run_id=timer.run_id, sequence=timer.sequence)


def timed_out(state: RunState, sequence: int) -> list[LogEvent]:
    """The end of a run that still waits on the question or approval asked at `sequence`."""
    asked = state.pending_question
    if asked is None or state.waiting_since != sequence:
        return []
    patience = f" within {state.limits.input_timeout_s:g} s" if state.limits.input_timeout_s else ""
    what = "approved or rejected" if asked.kind == "approval" else "answered"
    message = f"nobody {what} {asked.question_id}{patience}; raise input_timeout_s or start the task again"
    return [
        RunFailed(
            error=RunError(error_code="INPUT_TIMEOUT", message=message),
            usage=state.usage,
            verification=state.verification,
        )
    ]
