"""Chat-completion chunks as providers send them: the fields we read, typed no more than all of them keep to.

Invariant: a field that a provider fills oddly (null, a number for a text, parts for a string) never hides the others;
only what is no chunk at all is an error.
"""

import json
from typing import cast

import msgspec


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    name: object = None
    arguments: object = None


class CallDelta(msgspec.Struct, frozen=True, kw_only=True):
    index: object = None
    id: object = None
    function: FunctionDelta | None = None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A `delta` of a stream or the `message` of a whole completion."""

    content: object = None
    reasoning_content: object = None
    reasoning: object = None
    refusal: object = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: object = None
    delta: MessageDelta | None = None
    message: MessageDelta | None = None
    finish_reason: object = None
    usage: object = None


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    choices: list[Choice] | None = None
    usage: object = None
    error: object = None


class UnreadableChunk(ValueError):
    """What came is no chat-completion chunk."""


_DECODER = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    """The chunk in one event's payload. Raises `UnreadableChunk`.

    Lone surrogate escapes and bytes that are no UTF-8 are let through here: half an emoji may end one chunk and its
    other half begin the next.
    """
    try:
        return _DECODER.decode(payload)
    except msgspec.ValidationError as error:
        raise UnreadableChunk(f"a chunk of an unknown shape: {error}") from error
    except msgspec.DecodeError:
        pass
    try:
        value = cast(object, json.loads(payload.decode("utf-8", "replace"), strict=False))
        return msgspec.convert(value, Chunk)
    except (ValueError, RecursionError) as error:
        raise UnreadableChunk(f"a chunk that is no JSON: {payload[:80]!r}") from error


def text_of(content: object) -> str:
    """The text of a `content`, which is a string, a list of parts, or nothing."""
    match content:
        case str():
            return content
        case list():
            return "".join(_part_text(part) for part in cast(list[object], content))
        case _:
            return ""


def _part_text(part: object) -> str:
    match part:
        case str():
            return part
        case {"text": str(text)} if cast(dict[str, object], part).get("type", "text") in (
            "text",
            "output_text",
        ):
            return text
        case _:
            return ""
