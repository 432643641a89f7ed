"""Events on the wire and records in the log: how both are written and read.

Invariant: the wire form of an event is its public form, byte for byte, so a reader may pass it on without decoding;
1..n events of a record become true together because a record is one message.

    event   {"sequence": 7, "type": "tool.completed", "run_id": "run_…", "at": "2026-…Z", "payload": {…}}
    record  headers (below) + {"events": [event, …]}
"""

import typing
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from libs.contracts import events, project_events, schedule_events
from libs.contracts.errors import UNREADABLE, NewerRecord, PerdureError, UnreadableRecord
from libs.contracts.events import EventBody, LogEvent
from libs.contracts.project_events import ProjectEvent
from libs.contracts.schedule_events import ScheduleEvent
from libs.contracts.subjects import RecordClass

SCHEMA = 1
# What any log of Perdure may hold.
AnyEvent = LogEvent | ProjectEvent | ScheduleEvent
# Bounds of one record: the server refuses messages over 1 MiB and drops connections that send them, and a reader
# holds a batch of records in memory. The largest strings of an event go to blobs before a record gets that big.
RECORD_BYTES_MAX = 512 * 1024
RECORD_EVENTS_MAX = 256

# Headers of a record. Plain ASCII: the client library mangles anything else.
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_LAST_FILTER = "Nats-Expected-Last-Subject-Sequence-Subject"
SCHEMA_HEADER = "Perdure-Schema"
EPOCH = "Perdure-Epoch"
WRITER = "Perdure-Writer"
FIRST = "Perdure-First"
COUNT = "Perdure-Count"
STATE = "Perdure-State"
TRACEPARENT = "traceparent"


class WireEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as stored and as shown. `blobs` names the payload's strings that were moved out: field -> digest."""

    sequence: int
    type: str
    run_id: str
    at: str
    payload: msgspec.Raw
    blobs: dict[str, str] = {}


class Event(NamedTuple):
    """A decoded event: its place in its log, its time, and what became true. `run_id` names the log: a run's, a
    workspace's, a project's, a schedule's."""

    sequence: int
    run_id: str
    at: str
    body: AnyEvent


class RecordBody(msgspec.Struct, frozen=True, kw_only=True):
    events: list[WireEvent]


class RawRecordBody(msgspec.Struct, frozen=True, kw_only=True):
    """A record whose events stay bytes, for those who pass them on."""

    events: list[msgspec.Raw]


class RecordHeader(NamedTuple):
    """What a record says of itself without its body.

    `first` and `event_count` are public sequences; `state` is the run's status after it; `stream_sequence` its place in
    the stream, `previous` the stream sequence that its writer expected last (the back pointer, 0: none).
    """

    stream_sequence: int
    previous: int
    message_id: str
    record_class: RecordClass
    epoch: int
    boot: str
    first: int
    event_count: int
    state: str

    @property
    def last(self) -> int:
        """The public sequence of the record's last event."""
        return self.first + self.event_count - 1


class Record(NamedTuple):
    """One stored record, its body still bytes (`decode_events`, `raw_events`).

    `body` is as stored and as shown; `whole` is the same with its moved strings put back (`offload.py`), empty when
    none were moved. A fold reads `whole`, an observer `body`.
    """

    header: RecordHeader
    tenant: str
    log_id: str
    body: bytes
    whole: bytes = b""


def record_class(bodies: Sequence[EventBody]) -> RecordClass:
    """`life` when one of the events changes who must act next, else `work`."""
    return "life" if any(body.life for body in bodies) else "work"


def encode_event(event: Event) -> WireEvent:
    return WireEvent(
        sequence=event.sequence,
        type=event.body.type,
        run_id=event.run_id,
        at=event.at,
        payload=msgspec.Raw(_encoder.encode(event.body)),
    )


def encode_events(batch: Sequence[Event]) -> list[WireEvent]:
    """The events of one record. Raises `PerdureError` when there are none or too many."""
    if not 0 < len(batch) <= RECORD_EVENTS_MAX:
        raise PerdureError(f"a record holds 1..{RECORD_EVENTS_MAX} events, not {len(batch)}; split it")
    return [encode_event(event) for event in batch]


def encode_record(batch: Sequence[Event]) -> bytes:
    """The body of a record. Raises `PerdureError` when it is empty, has too many events or too many bytes."""
    body = _encoder.encode(RecordBody(events=encode_events(batch)))
    if len(body) > RECORD_BYTES_MAX:
        raise PerdureError(
            f"a record of {len(body)} bytes is over {RECORD_BYTES_MAX}; move its strings to blobs"
        )
    return body


def decode_events(record: Record) -> list[Event]:
    """The events of a record, typed. Raises `UnreadableRecord` on bad bytes and on kinds this reader does not know."""
    try:
        return [decode_event(wire) for wire in _record_decoder.decode(record.whole or record.body).events]
    except UNREADABLE as error:
        raise UnreadableRecord(
            f"record {record.header.stream_sequence} of {record.log_id} does not decode: {error}"
        ) from error


def decode_event(wire: WireEvent) -> Event:
    decoder = _body_decoders.get(wire.type)
    if decoder is None:
        raise NewerRecord(
            f"event {wire.sequence} of {wire.run_id} is of kind {wire.type!r}, which this version does not know; "
            "upgrade the readers first",
            log_id=wire.run_id,
        )
    return Event(wire.sequence, wire.run_id, wire.at, decoder.decode(wire.payload))


def raw_events(record: Record) -> list[tuple[int, bytes]]:
    """The events of a record as (public sequence, bytes as stored), without decoding them."""
    try:
        parts = _raw_decoder.decode(record.body).events
    except UNREADABLE as error:
        raise UnreadableRecord(f"record {record.header.stream_sequence} does not decode: {error}") from error
    return [(record.header.first + index, bytes(part)) for index, part in enumerate(parts)]


def record_headers(
    *, message_id: str, epoch: int, boot: str, version: str, first: int, count: int, state: str
) -> dict[str, str]:
    """The headers that every record carries beside its fence."""
    return {
        MESSAGE_ID: message_id,
        SCHEMA_HEADER: str(SCHEMA),
        EPOCH: str(epoch),
        WRITER: f"{boot}/{version}",
        FIRST: str(first),
        COUNT: str(count),
        STATE: state,
    }


def parse_header(headers: dict[str, str], *, stream_sequence: int, record_class: RecordClass) -> RecordHeader:
    """The inverse of `record_headers`, with the fence's expected sequence. Raises `UnreadableRecord`."""
    try:
        if int(headers[SCHEMA_HEADER]) > SCHEMA:
            raise NewerRecord(
                f"record {stream_sequence} has schema {headers[SCHEMA_HEADER]}, this reader knows {SCHEMA}; upgrade it"
            )
        return RecordHeader(
            stream_sequence=stream_sequence,
            previous=int(headers[EXPECTED_LAST]),
            message_id=headers[MESSAGE_ID],
            record_class=record_class,
            epoch=int(headers[EPOCH]),
            boot=headers[WRITER].partition("/")[0],
            first=int(headers[FIRST]),
            event_count=int(headers[COUNT]),
            state=headers[STATE],
        )
    except (KeyError, ValueError) as error:
        raise UnreadableRecord(f"record {stream_sequence} lacks or garbles a header: {error!r}") from error


def event_kinds() -> dict[str, type[AnyEvent]]:
    """Every kind of event by its public name."""
    others: tuple[type[ProjectEvent | ScheduleEvent], ...] = (
        *typing.get_args(project_events.ProjectEvent),
        *typing.get_args(schedule_events.ScheduleEvent),
    )
    return {**run_event_kinds(), **{kind.type: kind for kind in others}}


def run_event_kinds() -> dict[str, type[LogEvent]]:
    """Every kind of event of a run or its workspace."""
    kinds: tuple[type[LogEvent], ...] = typing.get_args(events.LogEvent)
    return {kind.type: kind for kind in kinds}


_encoder = msgspec.json.Encoder()
_record_decoder = msgspec.json.Decoder(RecordBody)
_raw_decoder = msgspec.json.Decoder(RawRecordBody)
_body_decoders: dict[str, msgspec.json.Decoder[AnyEvent]] = {
    name: msgspec.json.Decoder(kind) for name, kind in event_kinds().items()
}
