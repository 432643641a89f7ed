"""The parser of server-sent events gives the same events however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.client.sse import EVENT_BYTES_MAX, LINE_BYTES_MAX, EventParser, ServerEvent

STREAM = (
    "\ufeffretry: 250\r\n"
    ": a comment\r\n\r\n"
    'event: tool.completed\rid: 7\rdata: {"a":"日本🎉"}\r\r'
    "data:no space\ndata:  two spaces\nid\n\n"
    "event: dropped\nid: 9\n\n"
    "id: bad\0id\ndata\n\n"
    "unknown: field\ndata: last\n\n"
    "data: never ended"
).encode()

EVENTS = [
    ServerEvent("tool.completed", '{"a":"日本🎉"}', "7"),
    ServerEvent("message", "no space\n two spaces", ""),
    ServerEvent("message", "", "9"),
    ServerEvent("message", "last", "9"),
]


def parsed(pieces: list[bytes]) -> tuple[list[ServerEvent], EventParser]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)], parser


def test_a_stream_in_one_piece_gives_its_events() -> None:
    events, parser = parsed([STREAM])
    assert events == EVENTS
    assert (parser.retry_ms, parser.last_event_id) == (250, "9")


def test_a_stream_byte_by_byte_gives_the_same_events() -> None:
    assert parsed([bytes([byte]) for byte in STREAM])[0] == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_a_stream_gives_the_same_events(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert parsed(pieces)[0] == EVENTS


@pytest.mark.parametrize(
    "line", ["retry: 1.5", "retry: -1", "retry:", "retry: ٣", "Retry: 9", f"retry: {'9' * 5000}"]
)
def test_a_malformed_retry_is_ignored(line: str) -> None:
    _, parser = parsed([f"{line}\n\n".encode()])
    assert parser.retry_ms is None


def test_a_byte_order_mark_counts_only_at_the_start() -> None:
    events, _ = parsed([b"\xef\xbb", b"\xbfdata: a\n\n", b"\xef\xbb\xbfdata: b\n\ndata: c\n\n"])
    assert [event.data for event in events] == ["a", "c"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert parsed([b"data: \xff\n\n"])[0][0].data == "\ufffd"


def test_an_event_without_an_end_is_bounded() -> None:
    line = b"data: " + b"x" * 65_530 + b"\n"
    with pytest.raises(ValueError, match="bytes of data"):
        parsed([line] * (EVENT_BYTES_MAX // 65_536 + 2))
    # One after the other they are no longer than each.
    parser = EventParser()
    for _ in range(EVENT_BYTES_MAX // 65_536 + 2):
        assert len(parser.feed(line + b"\n")) == 1


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("cut", range(1, 9))
def test_empty_data_and_comments_at_every_cut_and_line_end(end: str, cut: int) -> None:
    text = end.join([": ping", "data", "id: 3", "", ":", "", "data:", "data: ", "", ""]).encode()
    events, parser = parsed([text[start : start + cut] for start in range(0, len(text), cut)])
    assert events == [ServerEvent("message", "", "3"), ServerEvent("message", "\n", "3")]
    assert parser.last_event_id == "3"


def test_a_line_without_an_end_is_bounded() -> None:
    parser = EventParser()
    parser.feed(b"x" * LINE_BYTES_MAX)
    with pytest.raises(ValueError, match="longer than"):
        parser.feed(b"x")
