"""Which calls of a turn are carried out, and that whatever a model makes fits into the record of its turn."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import events as e
from libs.contracts.envelope import RECORD_EVENTS_MAX, Event
from libs.contracts.offload import fixed_bytes, move_out
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import ModelToolCall, Usage
from libs.policy.decision import Policy
from libs.policy.schemas import Schemas
from services.executor.decision.calls import intents
from services.executor.ingress.acceptance import (
    ARGUMENTS_BYTES_MAX,
    CALLS_MAX,
    CALLS_SHOWN_MAX,
    TURN_BYTES_MAX,
    accepted,
)
from tests.fakes.histories import created

ECHO = ToolSpec(name="echo", description="", parameters={"type": "object"}, semantics=Semantics.READ_ONLY)
SPECS = {
    "echo": ECHO,
    **{f"tool_{n}_of_a_large_server": msgspec.structs.replace(ECHO, name=f"tool_{n}") for n in range(200)},
}


def call(index: int, arguments: dict[str, object] | None = None, name: str = "echo") -> ModelToolCall:
    return ModelToolCall(call_id=f"call_1_{index}", name=name, arguments=arguments or {})


def taken(calls: list[ModelToolCall], dropped: int = 0) -> list[ModelToolCall]:
    return accepted(calls, dropped, Schemas(SPECS))


def record(calls: list[ModelToolCall]) -> list[e.LogEvent]:
    """All that may stand in one record with a turn of these calls."""
    turn = e.ModelCompleted(
        iteration=1,
        content="",
        tool_calls=calls,
        finish_reason="tool_calls",
        usage=Usage(requests=1),
        latency_ms=1,
    )
    return [turn, *intents(created(Limits(), TaskSpec(goal="x")), calls, SPECS, Policy())]


def test_calls_beyond_the_bound_are_refused_and_nothing_else_changes() -> None:
    made = [call(index, {"text": f"t{index}"}) for index in range(CALLS_MAX + 6)]
    found = taken(made)
    assert found[:CALLS_MAX] == made[:CALLS_MAX]
    assert [one.arguments for one in found] == [one.arguments for one in made]
    assert all(one.problem and "at most 64 calls" in one.problem for one in found[CALLS_MAX:])
    events = record(found)
    assert [type(event) for event in events[1:]] == [e.ToolRequested] * CALLS_MAX + [e.ToolCompleted] * 6


def test_the_model_is_told_how_many_more_calls_were_dropped() -> None:
    found = taken([call(index) for index in range(CALLS_SHOWN_MAX)], dropped=37)
    assert found[-1].problem is not None
    assert "37 more" in found[-1].problem


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"text": "x" * (ARGUMENTS_BYTES_MAX + 1)}, "split the work"),
        ({"rows": list(range(40_000))}, "split the work"),
        ({"rows": [{"name": f"row {n}"} for n in range(9_000)]}, "split the work"),
    ],
)
def test_arguments_that_no_record_holds_are_an_error_of_the_tool(
    arguments: dict[str, object], told: str
) -> None:
    (found,) = taken([call(0, arguments)])
    assert found.problem is not None
    assert told in found.problem
    assert found.arguments is None


def test_arguments_that_are_large_together_are_asked_for_in_a_turn_of_their_own() -> None:
    rows: dict[str, object] = {"rows": list(range(11_000))}
    found = taken([call(index, rows) for index in range(6)])
    assert [one.problem is None for one in found] == [True, True, False, False, False, False]
    assert "in a turn of its own" in str(found[-1].problem)


def test_large_texts_are_no_reason_to_refuse_a_call() -> None:
    found = taken([call(index, {"content": "x" * 100_000}) for index in range(CALLS_MAX)])
    assert all(one.problem is None for one in found)
    assert len(move_out(numbered(record(found))).body) < TURN_BYTES_MAX * 2


@pytest.mark.parametrize("value", [{}, {"a": "é" * 20_000, "b": ["x" * 7_000, "\n" * 5_000]}, ["y" * 9_000]])
def test_what_stays_in_a_record_is_measured_as_it_is_stored(value: object) -> None:
    completed = e.ToolCompleted(call_id="c", ok=True, output="", duration_ms=0, metadata={"v": value})
    filler = e.ToolCompleted(call_id="d", ok=True, output="z" * 600_000, duration_ms=0)
    plain = len(msgspec.json.encode(value))
    moved = move_out(numbered([completed, filler]))
    assert fixed_bytes(value) <= plain
    assert len(moved.body) <= fixed_bytes(value) + plain + 4_000


def _numbers(count: int) -> dict[str, object]:
    return {"rows": list(range(count))}


def _text(count: int) -> dict[str, object]:
    return {"text": "é" * count}


def _escapes(count: int) -> dict[str, object]:
    return {"text": "\x01" * count}


def _entries(count: int) -> dict[str, object]:
    return {f"k{index}": "v" * 50 for index in range(count)}


_ARGUMENTS = st.one_of(
    st.builds(_numbers, st.integers(0, 30_000)),
    st.builds(_text, st.integers(0, 10_000)),
    st.builds(_escapes, st.integers(0, 8_000)),
    st.builds(_entries, st.integers(0, 1_000)),
)
_EXTRAS: list[dict[str, object] | None] = [
    None,
    {"signature": "s" * 60_000},
    {"parts": ["p" * 100] * 500},
]
_CALLS = st.lists(
    st.tuples(
        _ARGUMENTS,
        st.sampled_from(["echo", "\x01" * 256, "unknown"]),
        st.sampled_from([None, "\x01" * 2_000]),
        st.sampled_from(_EXTRAS),
    ),
    min_size=1,
    max_size=6,
)


@given(kinds=_CALLS, count=st.integers(1, CALLS_SHOWN_MAX))
def test_whatever_a_model_calls_fits_into_the_record_of_its_turn(
    kinds: list[tuple[dict[str, object], str, str | None, dict[str, object] | None]], count: int
) -> None:
    made: list[ModelToolCall] = []
    for index in range(count):
        arguments, name, raw, extra = kinds[index % len(kinds)]
        unread = raw is not None
        made.append(
            ModelToolCall(
                call_id=f"call_1_{index}",
                name=name,
                arguments=None if unread else arguments,
                raw_arguments=raw,
                problem="it cannot be read" if unread else None,
                extra_content=extra,
            )
        )
    events = record(taken(made, dropped=5))
    assert len(events) == count + 1 <= RECORD_EVENTS_MAX
    move_out(numbered(events))


def numbered(bodies: list[e.LogEvent]) -> list[Event]:
    return [Event(index, "run_x", "2026-11-29T12:00:00.000Z", body) for index, body in enumerate(bodies, 1)]


BROKEN = [
    {"type": 5},
    {"type": "object", "properties": 7},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"$ref": "#"},
    {"allOf": [{"$ref": "#/allOf/0"}]},
    {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
]


@pytest.mark.parametrize("schema", BROKEN, ids=str)
def test_a_broken_schema_refuses_nothing_and_asks_no_other_server(schema: dict[str, object]) -> None:
    """A host of somebody else may offer such a tool; the host is its last judge."""
    spec = ToolSpec(name="odd", description="", parameters=schema, semantics=Semantics.READ_ONLY)
    assert Schemas({"odd": spec}).problem("odd", {"a": "x"}) is None
