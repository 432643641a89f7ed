"""Streams of chat-completion chunks in shorthand, as the cases from the field write them.

Invariant: each function gives the exact bytes of one event; nothing is normalised on the way.
"""

import msgspec

DONE = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    """One event with any JSON."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def chunk(**delta: object) -> bytes:
    """`C{...}`: one delta of choice 0."""
    return choice(delta=delta, index=0, finish_reason=None)


def choice(**fields: object) -> bytes:
    """One choice as it is given, nothing added."""
    return data(
        {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [fields]}
    )


def call(
    index: int | None = None, ident: str | None = None, name: str | None = None, args: object = None
) -> dict[str, object]:
    """One entry of `tool_calls`; what is `None` is absent."""
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    fields: dict[str, object] = {
        "index": index,
        "id": ident,
        "type": "function" if ident else None,
        "function": function,
    }
    return {key: value for key, value in fields.items() if value is not None}


def tc(
    index: int | None = None, ident: str | None = None, name: str | None = None, args: object = None
) -> bytes:
    """`TC(i,id,name,args)`: a chunk with one entry."""
    return chunk(tool_calls=[call(index, ident, name, args)])


def fin(reason: str) -> bytes:
    """`FIN(r)`."""
    return choice(delta={}, index=0, finish_reason=reason)


def usage(prompt: int, completion: int, **more: object) -> bytes:
    """`USAGE{..}`: no choice, only the counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return data({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": {**counts, **more}})
