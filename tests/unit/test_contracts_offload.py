"""Large strings leave a record and come back whole, whatever they are and wherever they stand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.envelope import (
    RECORD_BYTES_MAX,
    Event,
    Record,
    RecordHeader,
    decode_events,
    encode_record,
)
from libs.contracts.errors import PerdureError, UnreadableRecord
from libs.contracts.events import LogEvent, MessageReceived, ToolCompleted
from libs.contracts.offload import KEPT_CHARS, digests, move_out, put_back

HEADER = RecordHeader(1, 0, "m", "work", 1, "b", 1, 1, "RUNNING")


def events(*bodies: LogEvent) -> list[Event]:
    return [
        Event(number, "run_0_x", "2026-01-31T12:00:00.000Z", body) for number, body in enumerate(bodies, 1)
    ]


def completed(output: str, metadata: dict[str, object] | None = None) -> ToolCompleted:
    return ToolCompleted(call_id="call_1_0", ok=True, output=output, duration_ms=1, metadata=metadata or {})


def folded(body: bytes, whole: bytes) -> list[Event]:
    return decode_events(Record(HEADER, "acme", "run_0_x", body, whole))


def test_a_record_that_fits_is_left_alone() -> None:
    batch = events(completed("small"), completed("y" * 100_000))
    moved = move_out(batch)
    assert moved.blobs == {}
    assert moved.body == encode_record(batch)
    assert digests(moved.body) == set()


def test_the_largest_strings_leave_until_the_record_fits() -> None:
    batch = events(completed("a" * 600_000), completed("b" * 300_000), completed("c" * 100_000))
    moved = move_out(batch)
    assert len(moved.body) <= RECORD_BYTES_MAX
    assert [len(data) for data in moved.blobs.values()] == [600_000]
    shown = folded(moved.body, b"")
    assert [len(event.body.output) for event in shown if isinstance(event.body, ToolCompleted)] == [
        KEPT_CHARS,
        300_000,
        100_000,
    ]
    assert folded(moved.body, put_back(moved.body, moved.blobs)) == batch


def test_strings_deep_in_a_payload_move_too() -> None:
    metadata: dict[str, object] = {
        "a/b": {"c~d": ["x", {"e": "größe" * 200_000}]},
        "n": 1,
        "": "z" * 900_000,
    }
    batch = events(completed("same", metadata), completed("same"))
    moved = move_out(batch)
    assert digests(moved.body) == set(moved.blobs)
    assert folded(moved.body, put_back(moved.body, moved.blobs)) == batch


def test_equal_strings_share_a_blob() -> None:
    batch = events(completed("a" * 600_000), completed("a" * 600_000))
    moved = move_out(batch)
    assert len(moved.blobs) == 1
    assert folded(moved.body, put_back(moved.body, moved.blobs)) == batch


@settings(max_examples=20)
@given(st.lists(st.text(max_size=50), max_size=4), st.integers(1, 4))
def test_whatever_the_text_it_comes_back_whole(parts: list[str], times: int) -> None:
    text = "".join(part * 40_000 for part in parts) * times
    batch = events(MessageReceived(text=text, by="me"))
    moved = move_out(batch)
    assert len(moved.body) <= RECORD_BYTES_MAX
    assert folded(moved.body, put_back(moved.body, moved.blobs)) == batch


def test_a_missing_or_garbled_blob_is_not_guessed_at() -> None:
    moved = move_out(events(completed("a" * 600_000)))
    (digest,) = moved.blobs
    for wrong in ({}, {digest: b"something else"}):
        with pytest.raises(UnreadableRecord, match=digest):
            put_back(moved.body, wrong)


def test_a_string_that_looks_like_the_mark_of_moved_ones_is_only_a_string() -> None:
    batch = events(completed('"blobs":{"/output":"x"}'))
    body = encode_record(batch)
    assert digests(body) == set()
    assert folded(body, put_back(body, {})) == batch


def test_too_many_small_strings_are_refused() -> None:
    with pytest.raises(PerdureError, match="split it"):
        move_out(events(*(completed("y" * 7_000) for _ in range(100))))
    with pytest.raises(PerdureError, match="split it"):
        move_out([])


def test_a_record_that_does_not_decode_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord):
        digests(b'{"events":[{"blobs":{')
    with pytest.raises(UnreadableRecord):
        put_back(msgspec.json.encode({"events": 1}), {})
