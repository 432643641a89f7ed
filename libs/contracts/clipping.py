"""Long strings of an event, cut for those who only look.

Invariant: a string is cut between two code points, and every one that was cut is named in `truncated_fields`; bytes that
need no cutting are passed on as they are.
"""

from typing import cast

import msgspec

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def clipped(raw: bytes, chars_max: int) -> bytes:
    """An event with its strings cut to `chars_max` characters."""
    # A string cannot have more characters than its JSON has bytes.
    if len(raw) <= chars_max:
        return raw
    event = cast("dict[str, Json]", msgspec.json.decode(raw))
    truncated: list[Json] = []
    payload = _clip(event["payload"], chars_max, "", truncated)
    if not truncated or not isinstance(payload, dict):
        return raw
    return msgspec.json.encode({**event, "payload": {**payload, "truncated_fields": truncated}})


def _clip(value: Json, chars_max: int, path: str, truncated: list[Json]) -> Json:
    """`value` with its long strings cut between two code points; their dotted paths are added to `truncated`."""
    match value:
        case str() if len(value) > chars_max:
            truncated.append(path)
            return value[:chars_max]
        case list():
            return [
                _clip(item, chars_max, _below(path, str(index)), truncated)
                for index, item in enumerate(value)
            ]
        case dict():
            return {key: _clip(item, chars_max, _below(path, key), truncated) for key, item in value.items()}
        case _:
            return value


def _below(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
