"""Records and events on the wire: everything written is read back, and nothing too large or unknown gets through."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import envelope
from libs.contracts.envelope import Event, Record, RecordHeader, event_kinds
from libs.contracts.errors import PerdureError, UnreadableRecord
from libs.contracts.events import LogEvent, MessageReceived, RunStartRequested
from libs.contracts.live import ModelDelta
from tests.contract.strategies import events as any_event

RUN = "run_0_" + "0" * 26
AT = "2026-11-29T12:00:00.000Z"
KINDS = sorted(event_kinds().values(), key=lambda kind: kind.type)


def record(batch: list[Event], body: bytes | None = None) -> Record:
    encoded = envelope.encode_record(batch) if body is None else body
    header = RecordHeader(9, 4, "m1", "work", 1, "b1", batch[0].sequence, len(batch), "RUNNING")
    return Record(header, "local", RUN, encoded)


def message(sequence: int, text: str) -> Event:
    return Event(sequence, RUN, AT, MessageReceived(text=text, by="api"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.type)
@settings(max_examples=25)
@given(data=st.data())
def test_an_event_of_each_kind_is_read_back_as_written(kind: type[LogEvent], data: st.DataObject) -> None:
    event = data.draw(any_event(kind))
    assert envelope.decode_events(record([event])) == [event]


@given(st.lists(st.sampled_from(KINDS).flatmap(any_event), min_size=1, max_size=4))
def test_the_stored_bytes_of_an_event_are_its_public_form(batch: list[Event]) -> None:
    numbered = [event._replace(sequence=7 + index) for index, event in enumerate(batch)]
    raw = envelope.raw_events(record(numbered))
    assert [sequence for sequence, _ in raw] == [event.sequence for event in numbered]
    for (sequence, text), event in zip(raw, numbered, strict=True):
        public = msgspec.json.decode(text)
        assert set(public) == {"sequence", "type", "run_id", "at", "payload"}
        assert (public["sequence"], public["type"]) == (sequence, event.body.type)


def test_every_kind_has_a_permanent_dotted_name_of_its_own() -> None:
    assert len(event_kinds()) == len(KINDS)
    for name in event_kinds():
        area, _, fact = name.partition(".")
        assert area.isidentifier(), name
        assert fact.isidentifier(), name


def test_a_record_is_life_when_one_of_its_events_is() -> None:
    quiet, loud = MessageReceived(text="x", by="api"), RunStartRequested(by="api")
    assert envelope.record_class([quiet]) == "work"
    assert envelope.record_class([quiet, loud]) == "life"


def test_a_record_holds_between_one_and_256_events() -> None:
    for count in (0, envelope.RECORD_EVENTS_MAX + 1):
        with pytest.raises(PerdureError, match="split it"):
            envelope.encode_record([message(index, "x") for index in range(count)])
    whole = [message(index + 1, "x") for index in range(envelope.RECORD_EVENTS_MAX)]
    assert len(envelope.decode_events(record(whole))) == envelope.RECORD_EVENTS_MAX


def test_a_record_over_its_bytes_is_refused_and_one_below_is_not() -> None:
    empty = len(envelope.encode_record([message(1, "")]))
    fits = "x" * (envelope.RECORD_BYTES_MAX - empty)
    assert len(envelope.encode_record([message(1, fits)])) == envelope.RECORD_BYTES_MAX
    with pytest.raises(PerdureError, match="blobs"):
        envelope.encode_record([message(1, fits + "x")])


def test_a_kind_of_a_later_version_parks_the_fold_and_passes_observers() -> None:
    body = b'{"events":[{"sequence":1,"type":"run.dreamt","run_id":"r","at":"t","payload":{"of":"sheep"}}]}'
    strange = record([message(1, "x")], body)
    assert [sequence for sequence, _ in envelope.raw_events(strange)] == [1]
    with pytest.raises(UnreadableRecord, match=r"run\.dreamt"):
        envelope.decode_events(strange)


def test_a_field_of_a_later_version_is_passed_over() -> None:
    body = (
        b'{"events":[{"sequence":1,"type":"run.start_requested","run_id":"r","at":"t",'
        b'"payload":{"by":"api","mood":"good"}}]}'
    )
    assert envelope.decode_events(record([message(1, "x")], body))[0].body == RunStartRequested(by="api")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"events":1}', b"\xff", b'{"events":[{"sequence":1,"type":"run.claimed"}]}']
)
def test_bytes_that_are_no_record_are_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        envelope.decode_events(record([message(1, "x")], body))


def test_a_payload_of_the_wrong_form_is_unreadable() -> None:
    body = b'{"events":[{"sequence":1,"type":"run.claimed","run_id":"r","at":"t","payload":{"owner":1}}]}'
    with pytest.raises(UnreadableRecord):
        envelope.decode_events(record([message(1, "x")], body))


@given(
    st.integers(1, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.integers(1, 256),
    st.integers(1, 9999),
)
def test_a_header_is_read_back_as_written(
    last: int, expected: int, epoch: int, count: int, first: int
) -> None:
    headers = envelope.record_headers(
        message_id="m1", epoch=epoch, boot="b1", version="1.2/3", first=first, count=count, state="QUEUED"
    )
    assert all(value.isascii() for value in headers.values())
    headers |= {envelope.EXPECTED_LAST: str(expected)}
    header = envelope.parse_header(headers, stream_sequence=last, record_class="life")
    assert header == RecordHeader(last, expected, "m1", "life", epoch, "b1", first, count, "QUEUED")
    assert header.last == first + count - 1


def test_a_header_of_a_later_schema_or_without_its_parts_is_unreadable() -> None:
    good = envelope.record_headers(
        message_id="m1", epoch=1, boot="b1", version="1", first=1, count=1, state="QUEUED"
    ) | {envelope.EXPECTED_LAST: "0"}
    later = good | {envelope.SCHEMA_HEADER: str(envelope.SCHEMA + 1)}
    with pytest.raises(UnreadableRecord, match="upgrade"):
        envelope.parse_header(later, stream_sequence=1, record_class="life")
    for name in good:
        less = {key: value for key, value in good.items() if key != name}
        with pytest.raises(UnreadableRecord, match="header"):
            envelope.parse_header(less, stream_sequence=1, record_class="life")


def test_transient_text_is_no_event_of_the_log() -> None:
    assert "model.delta" not in event_kinds()
    encoded = msgspec.json.encode(ModelDelta(run_id=RUN, iteration=1, attempt=1, content="x"))
    assert msgspec.json.decode(encoded)["type"] == "model.delta"
