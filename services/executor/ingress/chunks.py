"""Chat-completion chunks as providers send them: the fields we read, typed no more than all of them keep to.

Invariant: a field that a provider fills oddly (null, a number for a text, an object for a list) never hides the others;
only what is no JSON at all is an error.

Nearly all chunks have the usual shape and are decoded in one go; the others take the slow way, field by field.
"""

import json
from typing import cast

import msgspec

# Beyond this a text is no name, no id and no finish reason.
WORD_CHARS_MAX = 256


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """`parameters` and `input` are what some call `arguments`."""

    name: object = None
    arguments: object = None
    parameters: object = None
    input: object = None


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Some leave `function` out and put its fields here. `extra_content` is the provider's own and goes back as it is."""

    index: object = None
    id: object = None
    function: FunctionDelta | None = None
    name: object = None
    arguments: object = None
    extra_content: object = None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A `delta` of a stream or the `message` of a whole completion."""

    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_text: object = None
    reasoning_details: object = None
    thinking: object = None
    refusal: object = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: object = None
    delta: MessageDelta | None = None
    message: MessageDelta | None = None
    text: object = None
    finish_reason: object = None
    usage: object = None
    error: object = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`, `type`, `code`, `message` and `base_resp` are how errors come that are not called `error`."""

    choices: list[Choice] | None = None
    usage: object = None
    x_groq: object = None
    error: object = None
    kind: object = msgspec.field(name="object", default=None)
    type: object = None
    code: object = None
    message: object = None
    base_resp: object = None


class UnreadableChunk(ValueError):
    """What came is no JSON."""


Fields = dict[str, object]

_DECODER = msgspec.json.Decoder(Chunk)


def decode_chunks(payload: bytes) -> list[Chunk]:
    """The chunk in one event's payload; several when it is a list of them, none when it is a bare value.

    Raises `UnreadableChunk`. Lone surrogate escapes and bytes that are no UTF-8 are let through here: half an emoji
    may end one chunk and its other half begin the next.
    """
    try:
        return [_DECODER.decode(payload)]
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        value = cast(object, json.loads(payload.decode("utf-8", "replace"), strict=False))
    except (ValueError, RecursionError) as error:
        raise UnreadableChunk(f"a chunk that is no JSON: {payload[:80]!r}") from error
    entries = cast(list[object], value) if isinstance(value, list) else [value]
    return [
        msgspec.convert(_mended_chunk(cast(Fields, entry)), Chunk)
        for entry in entries
        if isinstance(entry, dict)
    ]


def error_in(chunk: Chunk) -> object:
    """What the chunk reports as an error, under whatever name; `None` when it reports none."""
    if _says_something(chunk.error):
        return chunk.error
    for choice in chunk.choices or ():
        if _says_something(choice.error):
            return choice.error
    named = chunk.kind == "error" or chunk.type == "error"
    if named or (chunk.choices is None and chunk.code and isinstance(chunk.message, str) and chunk.message):
        return {"message": chunk.message, "type": chunk.type, "code": chunk.code}
    if isinstance(chunk.base_resp, dict):
        status = cast(Fields, chunk.base_resp)
        if status.get("status_code"):
            return {"message": status.get("status_msg"), "code": status.get("status_code")}
    return None


def text_of(content: object) -> str:
    """The text of a `content`, which is a string, a list of parts, one part, or nothing."""
    match content:
        case str():
            return content
        case list():
            return "".join(_part_text(part) for part in cast(list[object], content))
        case dict():
            return _part_text(cast(object, content))
        case _:
            return ""


def reasoning_of(delta: MessageDelta) -> str:
    """What the model thought, under the first of its names that holds something."""
    for field in (delta.reasoning_content, delta.reasoning, delta.reasoning_text, delta.thinking):
        if text := text_of(field):
            return text
    parts: object = delta.content
    if not isinstance(parts, list):
        parts = delta.reasoning_details
    return "".join(map(_part_thought, cast(list[object], parts))) if isinstance(parts, list) else ""


def number_of(index: object) -> int | None:
    """An index, which some send as a text or as a float."""
    match index:
        case bool():
            return None
        case int():
            return index
        case str() if index.strip().isdecimal() and len(index) < 10:
            return int(index)
        case float() if index.is_integer():
            return int(index)
        case _:
            return None


def word_of(value: object) -> str:
    """A short text, or "" for anything else."""
    return value.strip()[:WORD_CHARS_MAX] if isinstance(value, str) else ""


def _says_something(error: object) -> bool:
    """Some send an empty error, or one of nothing but nulls, with every chunk."""
    return any(cast(Fields, error).values()) if isinstance(error, dict) else bool(error)


def _part_text(part: object) -> str:
    match part:
        case str():
            return part
        case {"text": str(text)} if cast(dict[str, object], part).get("type", "text") in (
            "text",
            "output_text",
            None,
        ):
            return text
        case _:
            return ""


def _part_thought(part: object) -> str:
    match part:
        case {"type": "thinking"}:
            return text_of(cast(Fields, part).get("thinking"))
        case {"type": "reasoning.text" | "reasoning", "text": str(text)}:
            return text
        case {"type": "reasoning.summary", "summary": str(text)}:
            return text
        case _:
            return ""


# --- The slow way: what has not the shape that a field needs is left out ----------------------------------------


def _mended_chunk(value: Fields) -> Fields:
    choices = value.get("choices")
    return {
        **value,
        "choices": None if choices is None else [_mended_choice(one) for one in _objects(choices)],
    }


def _mended_choice(value: Fields) -> Fields:
    return {
        **value,
        "delta": _mended_message(value.get("delta")),
        "message": _mended_message(value.get("message")),
    }


def _mended_message(value: object) -> Fields | None:
    if not isinstance(value, dict):
        # A bare text or a bare list of parts is the content itself.
        return {"content": value} if value else None
    fields = cast(Fields, value)
    calls = fields.get("tool_calls")
    return {
        **fields,
        "tool_calls": [_mended_call(one) for one in _objects(calls)] if calls else None,
        "function_call": _object(fields.get("function_call")),
    }


def _mended_call(value: Fields) -> Fields:
    function = value.get("function")
    name = function if isinstance(function, str) else value.get("name")
    return {**value, "function": _object(function), "name": name}


def _object(value: object) -> Fields | None:
    return cast(Fields, value) if isinstance(value, dict) else None


def _objects(value: object) -> list[Fields]:
    """The objects in a list; one that stands alone, or several under their numbers, count as a list."""
    entries: list[object] = []
    if isinstance(value, list):
        entries = cast(list[object], value)
    elif isinstance(value, dict):
        fields = cast(Fields, value)
        entries = list(fields.values()) if all(key.isdecimal() for key in fields) else [fields]
    return [cast(Fields, entry) for entry in entries if isinstance(entry, dict)]
