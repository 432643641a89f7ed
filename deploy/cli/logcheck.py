"""`perdure log verify`: does a run's log hold together?

Invariant: it only reads, the way every reader does; what it finds is what some reader would stumble over.
"""

from typing import NamedTuple

from libs.bus.ports import Bus, LogKey
from libs.contracts.envelope import Record, decode_events
from libs.contracts.errors import IllegalTransition, UnreadableRecord
from libs.contracts.evolve import evolve
from libs.contracts.run import COPYING, EXPERIMENT, RunState


class Checked(NamedTuple):
    """What was seen of one log. `problem` is empty when it folds and is gapless."""

    key: LogKey
    events: int
    status: str
    problem: str = ""


async def check(bus: Bus, key: LogKey) -> Checked:
    """Fold one log from its beginning, looking at all that ties its records together."""
    state: RunState | None = None
    last: Record | None = None
    events = after = 0
    while records := await bus.log.page(key, after):
        after = records[-1].header.stream_sequence
        for record in records:
            try:
                problem = _gap(last, record)
                if not problem:
                    state = _folded(state, record)
                    problem = _wrong_header(state, record)
            except (UnreadableRecord, IllegalTransition) as error:
                problem = error.message
            if problem:
                return Checked(key, events, record.header.state, f"record {after}: {problem}")
            events, last = record.header.last, record
    if last is None or last.header.state in (COPYING, EXPERIMENT) or (state is not None and state.deleted):
        return Checked(key, 0, "")
    return Checked(key, events, last.header.state)


def _gap(last: Record | None, record: Record) -> str:
    """Where a record does not lie on the one before it. A tombstone lies on what was purged."""
    header = record.header
    expected = (last.header.last + 1, last.header.stream_sequence) if last is not None else (1, 0)
    if (header.first, header.previous) == expected:
        return ""
    if last is None and decode_events(record)[-1].body.type == "run.deleted":
        return ""
    return f"it begins with event {header.first} behind {header.previous}, expected was {expected[0]} behind {expected[1]}"


def _folded(state: RunState | None, record: Record) -> RunState | None:
    if state is None and record.header.first != 1:
        return None
    for event in decode_events(record):
        if event.run_id != record.log_id:
            raise UnreadableRecord(f"event {event.sequence} is one of {event.run_id}", log_id=record.log_id)
        state = evolve(state, event)
    return state


def _wrong_header(state: RunState | None, record: Record) -> str:
    header = record.header
    if state is None or header.state in (COPYING, state.status):
        return ""
    return f"its header says {header.state}, its events lead to {state.status}"
