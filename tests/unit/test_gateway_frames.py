"""What clients see of an event: the stored bytes, or a clipped copy that says so."""

from __future__ import annotations

import json
from collections.abc import Sequence

from libs.contracts import events as e
from libs.contracts.envelope import Event, Record, RecordHeader, encode_record
from libs.contracts.live import ModelDelta
from libs.contracts.offload import move_out
from libs.contracts.tools import Semantics
from services.gateway.frames import delta_frame, shown_events, whole_event

RUN = "run_0_00000000000000000000000000"


def record_of(bodies: Sequence[e.LogEvent], *, first: int = 1) -> Record:
    batch = [Event(first + n, RUN, "2026-01-01T00:00:00.000Z", body) for n, body in enumerate(bodies)]
    header = RecordHeader(5, 4, "m", "work", 1, "b", first, len(batch), "RUNNING")
    return Record(header, "local", RUN, encode_record(batch))


def requested(arguments: dict[str, object]) -> e.ToolRequested:
    return e.ToolRequested(
        call_id="call_1_0",
        name="write_file",
        arguments=arguments,
        semantics=Semantics.IDEMPOTENT,
        idempotency_key="k",
    )


def test_a_short_event_is_passed_on_as_it_is_stored() -> None:
    record = record_of([requested({"path": "a"}), requested({"path": "b"})], first=3)
    first, second = shown_events(record, 16_000)
    assert (first.sequence, second.sequence, first.type) == (3, 4, "tool.requested")
    assert first.data in record.body
    assert first.frame() == b"event: tool.requested\nid: 3\ndata: " + first.data + b"\n\n"


def test_long_strings_are_clipped_between_characters_and_named() -> None:
    long = "🎉" * 50
    record = record_of([requested({"content": long, "parts": ["short", long], "n": 3})])
    (event,) = shown_events(record, 40)
    payload = json.loads(event.data)["payload"]
    assert payload["arguments"] == {"content": "🎉" * 40, "parts": ["short", "🎉" * 40], "n": 3}
    assert payload["truncated_fields"] == ["arguments.content", "arguments.parts.1"]
    whole = whole_event(record, 1)
    assert whole is not None
    assert json.loads(whole)["payload"]["arguments"]["content"] == long


def test_a_long_event_of_short_strings_is_not_touched() -> None:
    record = record_of([requested({f"k{n}": "v" for n in range(100)})])
    (event,) = shown_events(record, 40)
    assert event.data in record.body


def test_strings_that_were_moved_out_are_clipped_from_the_whole() -> None:
    output = "x" * 600_000
    batch = [Event(1, RUN, "t", e.ToolCompleted(call_id="c", ok=True, output=output, duration_ms=1))]
    moved = move_out(batch)
    assert moved.blobs
    record = record_of([requested({})])._replace(body=moved.body, whole=json_record(batch))
    (event,) = shown_events(record, 16_000)
    shown = json.loads(event.data)
    assert len(shown["payload"]["output"]) == 16_000
    assert "blobs" not in shown
    whole = whole_event(record, 1)
    assert whole is not None
    assert len(json.loads(whole)["payload"]["output"]) == 600_000


def json_record(batch: Sequence[Event]) -> bytes:
    events: list[dict[str, object]] = [
        {
            "sequence": one.sequence,
            "type": one.body.type,
            "run_id": one.run_id,
            "at": one.at,
            "payload": {
                "call_id": "c",
                "ok": True,
                "output": "x" * 600_000,
                "duration_ms": 1,
                "metadata": {},
            },
        }
        for one in batch
    ]
    return json.dumps({"events": events}).encode()


def test_a_tombstone_is_never_shown() -> None:
    assert shown_events(record_of([e.RunDeleted(body_hash="h", by="local")]), 16_000) == []


def test_a_delta_is_transient_and_has_no_id() -> None:
    frame = delta_frame(ModelDelta(run_id=RUN, iteration=2, attempt=1, content="a\nb"), "t").decode()
    lines = frame.split("\n")
    assert lines[0] == "event: model.delta"
    assert not any(line.startswith("id") for line in lines)
    event = json.loads(lines[1].removeprefix("data: "))
    assert (event["sequence"], event["transient"], event["payload"]["content"]) == (0, True, "a\nb")
