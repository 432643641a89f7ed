"""Logs of runs as JSON lines, for `perdure log export` and `import`, and for what the retention takes away.

Invariant: what a file holds of a run is its whole history or is told to be cut off: each run ends with its count, and the
file with the number of its runs. Strings and recordings are in it, so it needs nothing from where it came.

    {"kind": "log", "version": 1, "at": "2026-…Z"}
    {"kind": "events", "tenant": "local", "run_id": "run_…", "events": [{"sequence": 1, …}, …]}
    {"kind": "blob", "tenant": "local", "digest": "…", "data": "<base64>"}
    {"kind": "run", "tenant": "local", "run_id": "run_…", "events": 42}
    {"kind": "end", "runs": 1}
"""

import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from libs.bus.history import blob_name
from libs.bus.ports import Bus, LogKey
from libs.contracts.envelope import Event, RecordBody, WireEvent, decode_event
from libs.contracts.errors import PerdureError
from libs.contracts.events import ModelCompleted, ModelFailed, RunDeleted
from libs.contracts.run import COPYING, EXPERIMENT

VERSION = 1


class FileStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="log"):
    version: int
    at: str


class EventLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="events"):
    """The events of one record, every string at full length."""

    tenant: str
    run_id: str
    events: list[WireEvent]


class BlobLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="blob"):
    """What an event names and does not hold: the recording of a model call."""

    tenant: str
    digest: str
    data: bytes


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    tenant: str
    run_id: str
    events: int


class FileEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    runs: int


Line = FileStart | EventLine | BlobLine | RunEnd | FileEnd


class BadFile(PerdureError):
    """The file is none of ours, or not whole."""

    code = "BAD_FILE"


class Whole(NamedTuple):
    """A run as the file holds it."""

    key: LogKey
    events: list[Event]
    blobs: list[BlobLine]


async def lines_of(bus: Bus, key: LogKey) -> AsyncGenerator[Line]:
    """The lines of one run; none for one that was deleted or is not complete."""
    count = after = 0
    tail = await bus.log.tail(key)
    if tail is None or tail.header.state in (COPYING, EXPERIMENT):
        return
    if any(event.type == RunDeleted.type for event in _records.decode(tail.body).events):
        return
    while records := await bus.log.page(key, after):
        after = records[-1].header.stream_sequence
        for record in records:
            events = _records.decode(record.whole or record.body).events
            yield EventLine(tenant=key.tenant, run_id=key.log_id, events=events)
            count += len(events)
            for digest in _recordings(events):
                data = await bus.store("blobs").get(blob_name(key.tenant, digest))
                if data is not None:
                    yield BlobLine(tenant=key.tenant, digest=digest, data=data)
    if count:
        yield RunEnd(tenant=key.tenant, run_id=key.log_id, events=count)


def event_bytes(event: WireEvent) -> bytes:
    """One event in its public form."""
    return _encode(event)


def encoded(line: Line) -> str:
    return _encode(line).decode()


def runs_in(lines: Iterable[str]) -> Iterator[Whole]:
    """The runs of a file, one after the other. Raises `BadFile` where it is not whole; what came before is."""
    events: list[Event] = []
    blobs: list[BlobLine] = []
    runs, ended = 0, False
    for number, text in enumerate(lines, 1):
        line = _read(text, number)
        if (number == 1) != isinstance(line, FileStart) or ended:
            raise BadFile(f"line {number}: this is no export of `perdure log export`, or two in one file")
        match line:
            case FileStart():
                if line.version > VERSION:
                    raise BadFile("this export was made by a newer version of Perdure; upgrade this one")
            case EventLine():
                events += [decode_event(event) for event in line.events]
            case BlobLine():
                if hashlib.sha256(line.data).hexdigest() != line.digest:
                    raise BadFile(f"line {number}: the recording is not what its digest says")
                blobs.append(line)
            case RunEnd():
                if [event.sequence for event in events] != list(range(1, line.events + 1)):
                    raise BadFile(f"line {number}: the events of {line.run_id} are not complete")
                yield Whole(LogKey(line.tenant, line.run_id), events, blobs)
                events, blobs, runs = [], [], runs + 1
            case FileEnd():
                ended = not events and line.runs == runs
    if not ended:
        raise BadFile(f"the file is cut off behind {runs} whole runs; export it again")


def _read(text: str, number: int) -> Line:
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError as error:
        raise BadFile(f"line {number}: {error}") from error


def _recordings(events: Sequence[WireEvent]) -> list[str]:
    found: list[str] = []
    for event in events:
        if event.type in (ModelCompleted.type, ModelFailed.type):
            wire = _recorded.decode(event.payload).wire
            found += [wire.blob] if wire is not None else []
    return found


class _Blob(msgspec.Struct):
    blob: str


class _Recorded(msgspec.Struct):
    wire: _Blob | None = None


_records = msgspec.json.Decoder(RecordBody)
_recorded = msgspec.json.Decoder(_Recorded)
_decoder = msgspec.json.Decoder(Line)
_encode = msgspec.json.Encoder().encode
