"""The tally: each record once, copies not at all, and never more labels than anybody can bear."""

from __future__ import annotations

from libs.bus.ports import Draft, LogKey
from libs.contracts import events as e
from libs.contracts.envelope import Event, Record, RecordHeader, encode_record
from libs.contracts.tools import Semantics
from libs.contracts.values import Usage
from libs.projection import tally
from libs.projection.tally import LABELS_MAX, OTHER, Tally

RUN = "run_0_" + "0" * 26
AT = "2026-01-31T12:00:00.000Z"


def record(*bodies: e.LogEvent, state: str = "RUNNING", run_id: str = RUN, at: str = AT) -> Record:
    events = [Event(number, run_id, at, body) for number, body in enumerate(bodies, 1)]
    made = Draft(LogKey("acme", run_id), 0, events, 1, state)
    header = RecordHeader(1, 0, "m", made.record_class, 1, "b", 1, len(events), state)
    return Record(header, "acme", run_id, encode_record(events))


def call(call_id: str, name: str) -> e.ToolRequested:
    return e.ToolRequested(
        call_id=call_id, name=name, arguments={}, semantics=Semantics.READ_ONLY, idempotency_key="k"
    )


def result(call_id: str, *, ok: bool = True) -> e.ToolCompleted:
    return e.ToolCompleted(call_id=call_id, ok=ok, output="", duration_ms=1)


def test_a_result_counts_for_the_tool_that_was_called_also_in_a_later_record() -> None:
    counting = Tally()
    counting.take(record(call("c1", "echo"), call("c2", "run_tests")))
    counting.take(record(result("c2", ok=False), result("c1")))
    assert counting.counts == {
        (tally.TOOL_CALLS, "acme", "echo", "true"): 1,
        (tally.TOOL_CALLS, "acme", "run_tests", "false"): 1,
    }


def test_copied_history_is_not_counted_again() -> None:
    counting = Tally()
    counting.take(record(call("c1", "echo"), result("c1"), state="COPYING"))
    assert (counting.counts, counting.open) == ({}, {})


def test_durations_go_from_the_first_claim_to_the_end() -> None:
    claimed = e.RunClaimed(owner="x", boot="b", epoch=1, attempt=1)
    counting = Tally()
    counting.take(record(claimed))
    counting.take(record(claimed, at="2026-01-31T12:00:10.000Z"))
    ended = e.RunCancelled(by="me", usage=Usage())
    counting.take(record(ended, state="CANCELLED", at="2026-01-31T12:00:30.000Z"))
    assert counting.counts == {
        (tally.RUNS, "acme", "CANCELLED"): 1,
        (tally.RUN_SECONDS, "CANCELLED", "60"): 1,
        (tally.RUN_SECONDS_SUM, "CANCELLED"): 30,
    }
    assert counting.open == {}


def test_names_that_a_model_makes_up_are_bounded_also_after_a_restart() -> None:
    counting = Tally()
    for number in range(LABELS_MAX + 50):
        counting.take(record(call("c", f"tool-{number}"), result("c")))
    again = Tally(dict(counting.counts))
    again.take(record(call("c", "one more"), result("c")))
    again.take(record(call("c", "tool-7"), result("c")))
    tools = {key[2] for key in again.counts if key[0] == tally.TOOL_CALLS}
    assert len(tools) == LABELS_MAX + 1
    assert again.counts[tally.TOOL_CALLS, "acme", OTHER, "true"] == 51
    assert again.counts[tally.TOOL_CALLS, "acme", "tool-7", "true"] == 2


def test_what_this_version_cannot_read_stops_nothing() -> None:
    counting = Tally()
    whole = record(call("c1", "echo"))
    counting.take(whole._replace(body=b"{"))
    counting.take(whole._replace(body=whole.body.replace(b'"echo"', b"17")))
    counting.take(record(result("c1")))
    assert counting.counts == {(tally.TOOL_CALLS, "acme", OTHER, "true"): 1}
