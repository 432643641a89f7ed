"""Events as clients see them, as JSON and as server-sent events.

Invariant: an event is encoded once, whoever watches; bytes that need no clipping are passed on as the log holds them,
and what is clipped names its fields.
"""

from typing import NamedTuple

import msgspec

from libs.contracts.clipping import clipped
from libs.contracts.envelope import Record, raw_events
from libs.contracts.events import ModelCompleted, RunDeleted
from libs.contracts.live import ModelDelta

# Milliseconds until a browser reconnects by itself: soon, but not all at once after a restart of a gateway.
RETRY = b"retry: 1000\n\n"
PING = b": ping\n\n"


class Shown(NamedTuple):
    """An event in its public form: one line of JSON."""

    sequence: int
    type: str
    data: bytes

    def frame(self) -> bytes:
        """The event as a server-sent event."""
        return b"event: %s\nid: %d\ndata: %s\n\n" % (self.type.encode(), self.sequence, self.data)


def shown_events(record: Record, chars_max: int) -> list[Shown]:
    """The events of a record, long strings clipped. A tombstone is never shown."""
    events: list[Shown] = []
    for sequence, raw in _whole_events(record):
        kind = _head.decode(raw).type
        if kind != RunDeleted.type:
            events.append(Shown(sequence, kind, clipped(raw, chars_max)))
    return events


def whole_event(record: Record, sequence: int) -> bytes | None:
    """One event of a record with every string at full length."""
    return next((raw for number, raw in _whole_events(record) if number == sequence), None)


def is_tombstone(record: Record) -> bool:
    return any(_head.decode(raw).type == RunDeleted.type for _, raw in raw_events(record))


def completed_iteration(events: list[Shown]) -> int | None:
    """The model's turn that these events end, if they do: its deltas are over."""
    turns = [
        _turn.decode(event.data).payload.iteration for event in events if event.type == ModelCompleted.type
    ]
    return turns[-1] if turns else None


def delta_frame(delta: ModelDelta, at: str) -> bytes:
    """A transient event: never numbered and without an id, so it moves no client's place."""
    payload = {
        "iteration": delta.iteration,
        "attempt": delta.attempt,
        "content": delta.content,
        "reasoning": delta.reasoning,
    }
    event = {
        "sequence": 0,
        "type": "model.delta",
        "run_id": delta.run_id,
        "at": at,
        "transient": True,
        "payload": payload,
    }
    return b"event: model.delta\ndata: %s\n\n" % msgspec.json.encode(event)


def _whole_events(record: Record) -> list[tuple[int, bytes]]:
    return raw_events(record._replace(body=record.whole) if record.whole else record)


class _Head(msgspec.Struct):
    type: str


class _Iteration(msgspec.Struct):
    iteration: int


class _Turn(msgspec.Struct):
    payload: _Iteration


_head = msgspec.json.Decoder(_Head)
_turn = msgspec.json.Decoder(_Turn)
