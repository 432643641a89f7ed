"""What follows for a schedule now. Pure: the clock and what is known of its runs are arguments.

Invariant: a time is decided about once, because the decision moves the next time past it in the same event; the id of its
run derives from the time that the log names, so even two decisions that nobody fenced would mean one run.
"""

from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import NamedTuple

from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.cron import next_after_missed, next_time
from libs.contracts.ids import scheduled_run_id
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedule_events import (
    ScheduleEvent,
    ScheduleFired,
    ScheduleHeld,
    ScheduleRetimed,
    ScheduleSkipped,
)
from libs.contracts.schedules import HELD_MAX

# Clocks of two machines may differ by so much; a log that is further ahead was written by a clock that has been put back
# since.
CLOCKS_S = 60.0
# A time that was decided about and lies further ahead than this was named by a clock that was altogether wrong: it must not
# silence the schedule until then.
AHEAD_MAX = timedelta(days=7)


class Env(NamedTuple):
    """`live`: which of the runs in `ScheduleState.going` have not ended."""

    now: datetime
    live: AbstractSet[str] = frozenset()


class _Due(NamedTuple):
    """A time that has come: how many later ones came as well, and when the next one is."""

    at: str
    missed: int
    next_at: str | None


def decide(state: ScheduleState, env: Env) -> ScheduleEvent | None:
    """The next event of the schedule; `None` when nothing follows for now. Deciding again after it is safe."""
    if state.deleted:
        return None
    if state.asked:
        return _fire(state, env, rfc3339(env.now), state.asked[0])
    going = _going(state, env)
    if state.held and (not going or state.spec.overlap == "allow"):
        due_at = state.held[0]
        return _fire(state, env, due_at, scheduled_run_id(state.schedule_id, due_at))
    due = _due(state, env.now)
    if due is None:
        return _put_right(state, env.now)
    return _on_time(state, due, going)


def wants_to_know(state: ScheduleState, now: datetime) -> list[str]:
    """The runs that a decision depends on now."""
    if state.spec.overlap == "allow" or state.deleted:
        return []
    return state.going if state.held or _is_due(state, now) else []


def _on_time(state: ScheduleState, due: _Due, going: list[str]) -> ScheduleEvent:
    busy = bool(going or state.held)
    match state.spec.overlap:
        case "queue" if busy and len(state.held) < HELD_MAX:
            return ScheduleHeld(due_at=due.at, missed=due.missed, going=going, next_at=due.next_at)
        case "queue" if busy:
            reason = f"{HELD_MAX} times wait already"
        case "skip" if busy:
            reason = f"{(going or ['an earlier time'])[-1]} goes on"
        case _:
            return ScheduleFired(
                due_at=due.at,
                run_id=scheduled_run_id(state.schedule_id, due.at),
                missed=due.missed,
                going=going,
                next_at=due.next_at,
            )
    return ScheduleSkipped(due_at=due.at, reason=reason, missed=due.missed, going=going, next_at=due.next_at)


def _fire(state: ScheduleState, env: Env, due_at: str, run_id: str) -> ScheduleFired:
    """A fire that is not of the next time: that one stays as it is."""
    going = _going(state, env)
    return ScheduleFired(due_at=due_at, run_id=run_id, going=going, next_at=state.next_at)


def _going(state: ScheduleState, env: Env) -> list[str]:
    if state.spec.overlap == "allow":
        return state.going
    return [run_id for run_id in state.going if run_id in env.live]


def _is_due(state: ScheduleState, now: datetime) -> bool:
    return state.next_at is not None and parse_rfc3339(state.next_at) <= now


def _due(state: ScheduleState, now: datetime) -> _Due | None:
    if state.next_at is None or not _is_due(state, now):
        return None
    following, missed = next_after_missed(
        state.spec.cron, state.spec.timezone, parse_rfc3339(state.next_at), now
    )
    return _Due(state.next_at, missed, rfc3339(following) if following is not None else None)


def _put_right(state: ScheduleState, now: datetime) -> ScheduleRetimed | None:
    """A clock that was far ahead has moved the next time there; now that it is right, the times between count again, but
    those that were decided about stay so."""
    if state.next_at is None or now + timedelta(seconds=CLOCKS_S) >= parse_rfc3339(state.last_event_at):
        return None
    decided = parse_rfc3339(state.decided_at) if state.decided_at is not None else now
    behind = max(now, decided) if decided <= now + AHEAD_MAX else now
    at = next_time(state.spec.cron, state.spec.timezone, behind)
    return ScheduleRetimed(next_at=rfc3339(at)) if at is not None and rfc3339(at) < state.next_at else None
