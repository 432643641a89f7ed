"""One turn, told in every way that providers have: the same turn comes out; and the same as the openai client's own
accumulator makes of it where the stream is well-formed. `EXAMPLES=20000` for long.
"""

import json
from itertools import pairwise
from typing import Literal, NamedTuple, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from services.executor.ingress.turn import ModelTurn, TurnBuilder
from tests.fakes.wire import DONE, choice, chunk, data, fin, usage

# No surrogates (JSON of the client refuses them) and nothing that begins like a tag of thinking.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<["), max_size=30)
ARGUMENTS = st.dictionaries(
    TEXT, st.none() | st.integers(-(2**53), 2**53) | TEXT | st.lists(TEXT, max_size=2), max_size=3
)
EMPTY: dict[str, object] = {}
Call = tuple[str, dict[str, object]]


class Told(NamedTuple):
    """What a model says, before it is on any wire. No two calls are alike, as the number in each sees to."""

    content: str
    reasoning: str
    calls: list[Call]


def told(content: str, reasoning: str, calls: list[Call]) -> Told:
    numbered = [(name, {**arguments, "n": number}) for number, (name, arguments) in enumerate(calls)]
    return Told(content, reasoning, numbered)


TOLD = st.builds(told, TEXT, TEXT, st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), max_size=4))


class Habits(NamedTuple):
    """How a provider streams. `width`: characters a fragment."""

    width: int
    numbers: Literal["number", "text", "absent", "zero"]
    ids: Literal["unique", "empty", "null", "same"]
    fragments: Literal["deltas", "whole", "object", "snapshots"]
    names: Literal["once", "always"]
    frame: Literal["LF", "CRLF", "CR", "tight"]
    noise: Literal["none", "comments", "nulls", "strays"]
    ending: Literal["usage last", "usage with the end", "no marker", "a reason in every chunk"]


HABITS = st.builds(
    Habits,
    width=st.integers(1, 9),
    numbers=st.sampled_from(["number", "text", "absent", "zero"]),
    ids=st.sampled_from(["unique", "empty", "null", "same"]),
    fragments=st.sampled_from(["deltas", "whole", "object", "snapshots"]),
    names=st.sampled_from(["once", "always"]),
    frame=st.sampled_from(["LF", "CRLF", "CR", "tight"]),
    noise=st.sampled_from(["none", "comments", "nulls", "strays"]),
    ending=st.sampled_from(["usage last", "usage with the end", "no marker", "a reason in every chunk"]),
)


def pieces(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)]


def entry(habits: Habits, number: int, name: str | None, arguments: object) -> dict[str, object]:
    """One entry of `tool_calls`, as this provider writes it."""
    fields: dict[str, object] = {"function": {"name": name, "arguments": arguments}}
    index = {"number": number, "text": str(number), "zero": 0}.get(habits.numbers)
    if index is not None:
        fields["index"] = index
    # An id comes with the name; one that all share tells nothing without an index.
    if name is not None:
        fields["id"] = {"unique": f"id{number}", "empty": "", "null": None, "same": "id"}[habits.ids]
    return fields


def call_chunks(said: Told, habits: Habits) -> list[bytes]:
    chunks: list[bytes] = []
    known: list[dict[str, object]] = []
    for number, (name, arguments) in enumerate(said.calls):
        encoded = msgspec.json.encode(arguments).decode()
        if habits.fragments == "object":
            chunks.append(chunk(tool_calls=[entry(habits, number, name, arguments)]))
        elif habits.fragments == "whole":
            chunks.append(chunk(tool_calls=[entry(habits, number, name, encoded)]))
        elif habits.fragments == "snapshots":
            known.append(entry(habits, number, name, encoded))
            chunks.append(chunk(tool_calls=list(known)))
        else:
            for at, piece in enumerate(pieces(encoded, habits.width)):
                named = name if at == 0 or habits.names == "always" else None
                chunks.append(chunk(tool_calls=[entry(habits, number, named, piece)]))
    return chunks


def noisy(chunks: list[bytes], habits: Habits) -> list[bytes]:
    noise = {
        "none": b"",
        "comments": b": PROCESSING\n\n:\n",
        "nulls": data({"choices": None, "usage": None})
        + b"data: null\n\n"
        + chunk(content=None, tool_calls=None),
        "strays": choice(
            index=1, delta={"content": "no", "tool_calls": [{"index": 0, "function": {"name": "no"}}]}
        ),
    }[habits.noise]
    return [part for one in chunks for part in (noise, one)]


def stream_of(said: Told, habits: Habits) -> bytes:
    texts = [chunk(reasoning_content=piece) for piece in pieces(said.reasoning, habits.width)]
    texts += [chunk(content=piece) for piece in pieces(said.content, habits.width)]
    chunks = noisy([*texts, *call_chunks(said, habits)], habits)
    if habits.ending == "a reason in every chunk":
        chunks = [one.replace(b'"finish_reason":null', b'"finish_reason":"stop"') for one in chunks]
    end = {
        "usage last": fin("stop") + usage(10, 5) + DONE,
        "usage with the end": data(
            {"choices": [{"index": 0, "delta": EMPTY, "finish_reason": "stop"}],
             "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
        ) + DONE,
        "no marker": usage(10, 5) + fin("stop"),
        "a reason in every chunk": usage(10, 5) + fin("stop") + DONE,
    }[habits.ending]  # fmt: skip
    stream = b"".join(chunks) + end
    match habits.frame:
        case "CRLF":
            return stream.replace(b"\n", b"\r\n")
        case "CR":
            return stream.replace(b"\n", b"\r")
        case "tight":
            return stream.replace(b"data: ", b"data:")
        case _:
            return stream


def turn_of(stream: bytes, cuts: list[int]) -> ModelTurn:
    builder = TurnBuilder()
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        builder.feed(stream[start:end])
    turn = builder.finish(iteration=1, schemas={}, input_tokens=7)
    assert isinstance(turn, ModelTurn), turn
    return turn


def ambiguous(habits: Habits) -> bool:
    """Streams that nobody could read: snapshots under one index or id are told apart by nothing."""
    return habits.fragments == "snapshots" and (
        habits.numbers == "zero" or (habits.numbers == "absent" and habits.ids == "same")
    )


@given(TOLD, HABITS, st.lists(st.integers(0, 10_000), max_size=8))
def test_the_same_turn_comes_out_however_a_provider_streams_it(
    said: Told, habits: Habits, cuts: list[int]
) -> None:
    if ambiguous(habits):
        habits = habits._replace(fragments="whole")
    turn = turn_of(stream_of(said, habits), cuts)
    assert (turn.content, turn.reasoning) == (said.content, said.reasoning)
    assert [(call.name, call.arguments) for call in turn.calls] == said.calls
    assert turn.finish_reason == "stop"
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (10, 5)


# --- Nonsense ---------------------------------------------------------------------------------------------------

MISSING = object()
ODD: tuple[object, ...] = (
    *(None, "", "x", "\ud83d", 0, -1, 1.5, True, "9" * 30, MISSING),
    *cast(list[object], [[], {}, [None], {"a": None}, [[]]]),
)


def spoiled(value: object, picks: list[int], weird: object) -> object:
    """`value` with something else, or nothing, in one place of it."""
    if picks and isinstance(value, dict) and value:
        fields = cast(dict[str, object], value)
        key = sorted(fields)[picks[0] % len(fields)]
        inner = spoiled(fields[key], picks[1:], weird)
        return {
            name: inner if name == key else old
            for name, old in fields.items()
            if name != key or inner is not MISSING
        }
    if picks and isinstance(value, list) and value:
        items = cast(list[object], value)
        place = picks[0] % len(items)
        inner = spoiled(items[place], picks[1:], weird)
        return [
            inner if at == place else old
            for at, old in enumerate(items)
            if at != place or inner is not MISSING
        ]
    return weird


@given(TOLD, HABITS, st.data())
def test_no_field_that_is_odd_or_missing_is_a_crash_or_cannot_be_stored(
    said: Told, habits: Habits, draw: st.DataObject
) -> None:
    parts: list[bytes] = []
    for line in stream_of(said, habits._replace(frame="LF")).split(b"\n\n"):
        if line.startswith(b"data: {") and draw.draw(st.integers(0, 3)) == 0:
            picks = draw.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
            weird = draw.draw(st.sampled_from(ODD))
            value = spoiled(cast(object, msgspec.json.decode(line[6:])), picks, weird)
            line = b"data: " + json.dumps(None if value is MISSING else value).encode()
        parts.append(line)
    builder = TurnBuilder()
    builder.feed(b"\n\n".join(parts))
    made = builder.finish(iteration=1, schemas={"f": {}}, input_tokens=7)
    msgspec.json.encode(made)


# --- The openai client ------------------------------------------------------------------------------------------


class Plain(NamedTuple):
    content: str | None
    calls: list[tuple[str, object]]
    finish_reason: str
    used: tuple[int, int]


def accumulated(chunks: list[dict[str, object]]) -> Plain:
    """What the client's own accumulator makes of a stream."""
    state = ChatCompletionStreamState()
    for one in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(one))
    found = state.current_completion_snapshot
    message = found.choices[0].message
    calls = [
        (call.function.name, msgspec.json.decode(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    ]
    assert found.usage is not None
    used = found.usage.prompt_tokens, found.usage.completion_tokens
    return Plain(message.content, calls, str(found.choices[0].finish_reason), used)


@given(
    TOLD,
    st.integers(1, 12),
    st.lists(st.integers(0, 99), max_size=60),
    st.sampled_from(["stop", "tool_calls", "content_filter"]),
    st.booleans(),
)
def test_a_well_formed_stream_gives_what_the_openai_client_makes_of_it(
    said: Told, width: int, picks: list[int], reason: str, usage_twice: bool
) -> None:
    lanes: list[list[dict[str, object]]] = [[{"content": piece} for piece in pieces(said.content, width)]]
    openings: list[dict[str, object]] = [{"role": "assistant", "content": ""}]
    for number, (name, arguments) in enumerate(said.calls):
        head = {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        openings.append({"tool_calls": [head]})
        encoded = msgspec.json.encode(arguments).decode()
        lanes.append(
            [
                {"tool_calls": [{"index": number, "function": {"arguments": part}}]}
                for part in pieces(encoded, width)
            ]
        )
    deltas = openings
    for pick in picks:
        if lane := lanes[pick % len(lanes)]:
            deltas.append(lane.pop(0))
    deltas += [delta for lane in lanes for delta in lane]
    shared = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    chunks: list[dict[str, object]] = [
        {**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    chunks.append(
        {
            **shared,
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
            "usage": counts if usage_twice else None,
        }
    )
    chunks.append({**shared, "choices": [], "usage": counts})
    theirs = accumulated(chunks)
    ours = turn_of(b"".join(map(data, chunks)) + DONE, [])
    assert ours.content == (theirs.content or "")
    assert [(call.name, cast(object, call.arguments)) for call in ours.calls] == theirs.calls
    assert ours.finish_reason == theirs.finish_reason
    assert (ours.usage.input_tokens, ours.usage.output_tokens) == theirs.used
