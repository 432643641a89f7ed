"""The ingress normaliser: every stream of the field cases, however it is split."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.ids import call_id
from services.executor.ingress.turn import TURN_BYTES_MAX, Delta, ModelTurn, TurnBuilder, WireFault
from tests.fakes.wire import DONE, choice, chunk, data, fin, tc, usage
from tests.fakes.wire_cases import STREAMS, Wire
from tests.fakes.wire_oddities import ODDITIES

ALL = (*STREAMS, *ODDITIES)


def turn_of(pieces: list[bytes], iteration: int = 1) -> ModelTurn | WireFault:
    builder = TurnBuilder()
    for piece in pieces:
        builder.feed(piece)
    return builder.finish(iteration=iteration, schemas={}, input_tokens=7)


def whole_turn(stream: bytes) -> ModelTurn:
    turn = turn_of([stream])
    assert isinstance(turn, ModelTurn), turn
    return turn


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_each_stream_gives_its_one_turn(case: Wire) -> None:
    turn = whole_turn(case.stream)
    assert turn.content == case.content
    assert turn.reasoning == case.reasoning
    assert tuple((call.name, call.arguments) for call in turn.calls) == case.calls
    assert [call.call_id for call in turn.calls] == [call_id(1, index) for index in range(len(case.calls))]
    assert turn.finish_reason == case.finish_reason
    if case.counted is None:
        assert turn.usage.estimated
    else:
        assert (turn.usage.input_tokens, turn.usage.output_tokens) == case.counted
        assert not turn.usage.estimated


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_byte_by_byte_the_turn_is_the_same(case: Wire) -> None:
    single = [case.stream[at : at + 1] for at in range(len(case.stream))]
    assert turn_of(single) == turn_of([case.stream])


@given(case=st.sampled_from(ALL), cuts=st.lists(st.integers(0, 2_000), max_size=12))
def test_no_split_of_the_bytes_changes_the_turn(case: Wire, cuts: list[int]) -> None:
    places = sorted({0, len(case.stream), *(cut % len(case.stream) for cut in cuts)})
    pieces = [case.stream[start:end] for start, end in pairwise(places)]
    assert turn_of(pieces) == turn_of([case.stream])


_ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=8), st.none()), max_size=3
)


@given(
    text=st.text(max_size=40),
    calls=st.lists(st.tuples(st.sampled_from(["f", "g"]), _ARGUMENTS), max_size=4),
    picks=st.lists(st.integers(0, 99), max_size=60),
    width=st.integers(1, 9),
)
def test_no_interleaving_of_numbered_calls_changes_the_turn(
    text: str, calls: list[tuple[str, dict[str, object]]], picks: list[int], width: int
) -> None:
    waiting: list[list[bytes]] = [[chunk(content=text[at : at + width]) for at in range(0, len(text), width)]]
    for index, (name, arguments) in enumerate(calls):
        encoded = msgspec.json.encode(arguments).decode()
        parts = [encoded[at : at + width] for at in range(0, len(encoded), width)]
        # Calls begin in order; what follows may come in any.
        waiting[0].insert(min(index, len(waiting[0])), tc(index, f"id{index}", name, ""))
        waiting.append([tc(index, None, None, part) for part in parts])
    stream = [piece for piece in waiting[0] if b'"id' in piece]
    lanes = [[piece for piece in waiting[0] if b'"id' not in piece], *waiting[1:]]
    for pick in picks:
        lane = lanes[pick % len(lanes)]
        if lane:
            stream.append(lane.pop(0))
    for lane in lanes:
        stream.extend(lane)
    turn = whole_turn(b"".join(stream) + fin("stop") + DONE)
    assert turn.content == text
    assert [(call.name, call.arguments) for call in turn.calls] == calls


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_fault_or_a_turn_and_never_a_crash(garbage: bytes, framed: bool) -> None:
    stream = b"data: " + garbage + b"\n\n" + fin("stop") + DONE if framed else garbage
    assert isinstance(turn_of([stream]), ModelTurn | WireFault)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "id",
                    "function",
                    "name",
                    "arguments",
                    "delta",
                    "tool_calls",
                    "content",
                    "usage",
                    "choices",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(delta=_JSON, more=_JSON)
def test_any_json_in_place_of_a_delta_is_a_fault_or_a_turn(delta: object, more: object) -> None:
    stream = data({"choices": [{"index": 0, "delta": delta, "finish_reason": more}], "usage": more})
    assert isinstance(turn_of([stream + fin("stop") + DONE]), ModelTurn | WireFault)


@pytest.mark.parametrize(
    "stream, kind",
    [
        (b"", "cut"),
        (chunk(content="abc"), "cut"),
        (tc(0, "a", "f", '{"a":') + DONE, "cut"),
        (b"data: not json\n\n" + fin("stop") + DONE, "garbled"),
        (data({"error": {"message": "boom"}}), "error"),
        (data({"error": {"message": "boom"}})[6:], "error"),
        (b"<!DOCTYPE html><html>502</html>", "foreign"),
        (b'{"detail":"Not here"}', "foreign"),
        (b": " + b"x" * TURN_BYTES_MAX, "too_large"),
        (b'data: {"x":' + b"[" * 9_000 + b"]" * 9_000 + b"}\n\n" + fin("stop") + DONE, "garbled"),
        (data({"object": "error", "message": "boom", "code": 400}), "error"),
        (data({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}), "error"),
        (data({"code": "InvalidApiKey", "message": "no"}), "error"),
        (choice(index=0, delta={}, finish_reason="error", error={"code": 502, "message": "x"}), "error"),
        (b'data: {"error":{"message":"\\ud83d"}}\n\n', "error"),
        (b'data: {"error":{"n":1e999}}\n\n', "error"),
        (tc(0, "a", "f", "") + DONE, "cut"),
        (tc(0, "a", "f", "{}") + tc(1, "b", "f") + DONE, "cut"),
        (chunk(content="abc") + b'data: {"choices":[{"index":0', "garbled"),
    ],
    ids=[
        "nothing",
        "text only",
        "call in flight",
        "no JSON",
        "error event",
        "error body",
        "page",
        "other JSON",
        "flood",
        "depth",
        "another error event",
        "a status in the corner",
        "an error without its name",
        "error in a choice",
        "half an emoji in an error",
        "no number in an error",
        "call without arguments in flight",
        "second call in flight",
        "chunk in flight",
    ],
)
def test_what_is_no_turn_is_a_fault_of_its_kind(stream: bytes, kind: str) -> None:
    fault = turn_of([stream])
    assert isinstance(fault, WireFault)
    assert fault.kind == kind
    msgspec.json.encode(fault)  # It goes into the log.


def test_choices_that_nobody_asked_for_are_counted() -> None:
    builder = TurnBuilder()
    builder.feed(choice(index=1, delta={"content": "no"}) + chunk(content="hi") + fin("stop"))
    assert builder.strays == 1


def test_a_stream_that_claims_to_be_over_in_every_chunk_is_over_at_its_end() -> None:
    builder = TurnBuilder()
    builder.feed(choice(index=0, delta={"content": "h"}, finish_reason="stop"))
    assert builder.settled
    builder.feed(choice(index=0, delta={"content": "i"}, finish_reason="stop"))
    assert not builder.settled
    builder.feed(DONE)
    assert builder.over


def test_cached_and_reasoning_tokens_are_read_under_their_names() -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 900},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    turn = whole_turn(chunk(content="x") + fin("stop") + usage(1000, 5, **details) + DONE)
    assert (turn.usage.cached_tokens, turn.usage.reasoning_tokens, turn.usage.requests) == (900, 3, 1)
    other = whole_turn(chunk(content="x") + fin("stop") + usage(1000, 5, prompt_cache_hit_tokens=800) + DONE)
    assert other.usage.cached_tokens == 800


@pytest.mark.parametrize(
    "reported",
    [
        {"prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 60}},
        {"prompt_tokens_details": {"cached_tokens": 900, "cache_creation_tokens": 60}},
        {"cache_read_input_tokens": 900, "cache_creation_input_tokens": 60},
    ],
)
def test_tokens_written_into_a_cache_are_read_under_their_names(reported: dict[str, object]) -> None:
    turn = whole_turn(chunk(content="x") + usage(1000, 1, **reported) + fin("stop") + usage(1000, 5) + DONE)
    assert (turn.usage.cached_tokens, turn.usage.cache_write_tokens) == (900, 60)


def test_no_token_is_counted_as_read_from_a_cache_and_written_into_it() -> None:
    odd = {"prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 1_000}}
    turn = whole_turn(chunk(content="x") + fin("stop") + usage(1000, 5, **odd) + DONE)
    assert (turn.usage.cached_tokens, turn.usage.cache_write_tokens) == (900, 100)


def test_uncounted_usage_is_estimated_and_says_so() -> None:
    turn = whole_turn(chunk(content="x" * 40) + fin("stop") + DONE)
    assert turn.usage.estimated
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (7, 10)


def test_deltas_add_up_to_the_turn_and_hold_back_half_an_emoji() -> None:
    builder = TurnBuilder()
    halves = [
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83c"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\udf78"}}]}\n\n',
    ]
    assert builder.feed(halves[0]) == Delta(content="a")
    assert builder.feed(halves[1]) == Delta(content="🍸")
    assert builder.feed(chunk(reasoning_content="hm")) == Delta(reasoning="hm")
    assert builder.feed(b": ping\n\n") is None
    assert not builder.over
    assert builder.feed(DONE + chunk(content="late")) is None
    assert builder.over


def test_a_five_megabyte_argument_in_small_pieces_arrives_whole() -> None:
    text = "x" * 5_000_000
    encoded = msgspec.json.encode({"content": text}).decode()
    pieces = [
        tc(0, "a" if at == 0 else None, "f" if at == 0 else None, encoded[at : at + 100])
        for at in range(0, len(encoded), 100)
    ]
    turn = turn_of([*pieces, fin("tool_calls"), DONE])
    assert isinstance(turn, ModelTurn)
    assert turn.calls[0].arguments == {"content": text}


def test_raw_arguments_are_kept_only_where_nobody_could_read_them_and_only_in_part() -> None:
    turn = whole_turn(tc(0, "a", "f", "{}") + tc(1, "b", "g", '{"a": ' + "y" * 10_000) + fin("length") + DONE)
    read, unread = turn.calls
    assert (read.raw_arguments, read.problem) == (None, None)
    assert unread.arguments is None
    assert unread.problem
    assert unread.raw_arguments is not None
    assert len(unread.raw_arguments) < 3_000
