"""Tool arguments as models write them → a dict, or what is wrong with them in words for the model.

Invariant: tolerant, never inventive: every value handed on stood in the text. A string that was cut off is not closed,
a missing brace is not added, so half a file is never written.
"""

import json
import re
from collections.abc import Mapping
from typing import Never, cast

import msgspec

from services.executor.ingress.text import clean

# Deeper nesting than this is no tool's argument; it would meet the recursion limits of what stores and forwards it.
DEPTH_MAX = 64
# A schema is followed this far down; what lies deeper is left to the host's validation.
_COERCION_DEPTH_MAX = 6

# Literal `\n` between tokens: a whole string is skipped, so only escapes outside of strings are found.
_STRING_OR_ESCAPE = re.compile(r'"(?:[^"\\]|\\.)*"|\\[nrt]', re.DOTALL)
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,3})?")

CUT_OFF = "The arguments end in the middle, so the call was not run. Send it again, whole; split large content into several calls."


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is null exactly when there is a `problem`; `cut_off` says that the text ends in the middle."""

    value: dict[str, object] | None = None
    problem: str | None = None
    cut_off: bool = False


def read_arguments(raw: str, schema: Mapping[str, object] | None) -> Arguments:
    """What the model meant by `raw`, with its types adapted to the tool's schema where the text leaves no doubt.

    In this order: nothing means `{}`; strict JSON; JSON with raw control characters in strings; the same with literal
    `\\n` between tokens. A JSON string that holds JSON is opened once.
    """
    text = raw.strip()
    if text in ("", "null"):
        return Arguments(value={})
    if _too_deep(text):
        return Arguments(problem=f"The arguments are nested more than {DEPTH_MAX} levels deep.")
    try:
        value = _parse(text)
        if isinstance(value, str):
            value = _parse(value.strip() or "{}")
    except json.JSONDecodeError as error:
        if is_unfinished(text, error):
            return Arguments(problem=CUT_OFF, cut_off=True)
        return Arguments(
            problem=f"The arguments are no valid JSON: {error}. Send the call again with a JSON object."
        )
    except (ValueError, RecursionError) as error:
        return Arguments(
            problem=f"The arguments are no valid JSON: {error}. Send the call again with a JSON object."
        )
    if not isinstance(value, dict):
        return Arguments(problem=f"The arguments must be a JSON object, not {_kind(value)}.")
    return Arguments(value=_coerce_object(cast(dict[str, object], value), schema or {}, 0))


def is_unfinished(text: str, error: json.JSONDecodeError) -> bool:
    """Whether the parser failed because the text stops: then more of it was meant to come."""
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())


def _parse(text: str) -> object:
    """JSON, first strictly. Raises `json.JSONDecodeError`, `ValueError`, `RecursionError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass
    try:
        return clean(_loads(text))
    except json.JSONDecodeError as error:
        if "\\" not in text or is_unfinished(text, error):
            raise
        spaced = _STRING_OR_ESCAPE.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
        if spaced == text:
            raise
        return clean(_loads(spaced))


def _loads(text: str) -> object:
    return cast(object, json.loads(text, strict=False, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number")


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    depth = deepest = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', text, re.DOTALL):
        mark = match[0]
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest > DEPTH_MAX


# --- Types, guided by the schema --------------------------------------------------------------------------------


def _coerce_object(value: dict[str, object], schema: Mapping[str, object], depth: int) -> dict[str, object]:
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    needed: list[object] = cast(list[object], required) if isinstance(required, list) else []
    coerced: dict[str, object] = {}
    for key, entry in value.items():
        wanted = _mapping(properties.get(key))
        if entry is None and wanted and key not in needed and "null" not in _types(wanted):
            continue  # Null for an optional argument means that it was not given.
        coerced[key] = _coerce(entry, wanted, depth + 1)
    return coerced


def _coerce(value: object, schema: Mapping[str, object], depth: int) -> object:
    """`value`, or the same value in the type that the schema asks for; whatever does not fit stays as it came."""
    types = _types(schema)
    if not types or depth > _COERCION_DEPTH_MAX:
        return value
    match value:
        case str() if "string" not in types:
            value = _from_text(value, types, schema)
        case bool():
            return ("true" if value else "false") if types == {"string"} else value
        case int() | float() if not types & {"number", "integer"}:
            return str(value) if "string" in types else value
        case float() if "number" not in types and value.is_integer():
            return int(value)
        case _:
            pass
    if isinstance(value, dict):
        return _coerce_object(cast(dict[str, object], value), _branch(schema, "properties"), depth)
    if isinstance(value, list):
        items = _mapping(_branch(schema, "items").get("items"))
        return [_coerce(entry, items, depth + 1) for entry in cast(list[object], value)]
    return value


def _from_text(text: str, types: set[str], schema: Mapping[str, object]) -> object:
    stripped = text.strip()
    if "integer" in types and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if "number" in types and _NUMBER.fullmatch(stripped):
        return float(stripped) if any(mark in stripped for mark in ".eE") else int(stripped)
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    for kind, opening, python in (("array", "[", list), ("object", "{", dict)):
        if kind in types and stripped.startswith(opening):
            try:
                value = _parse(stripped)
            except (ValueError, RecursionError):
                return text
            return cast(object, value) if isinstance(value, python) else text
    if "array" in types and "string" in _types(_mapping(_branch(schema, "items").get("items"))):
        return [text]
    return text


def _types(schema: Mapping[str, object]) -> set[str]:
    """The JSON types that a schema names, its alternatives included; empty when it names none."""
    found = schema.get("type")
    types = {found} if isinstance(found, str) else set[str]()
    if isinstance(found, list):
        types = {name for name in cast(list[object], found) if isinstance(name, str)}
    for branch in _alternatives(schema):
        types |= _types(branch)
    return types


def _branch(schema: Mapping[str, object], key: str) -> Mapping[str, object]:
    """The schema itself or the first of its alternatives that has `key`."""
    if key in schema:
        return schema
    return next((branch for branch in _alternatives(schema) if key in branch), schema)


def _alternatives(schema: Mapping[str, object]) -> list[Mapping[str, object]]:
    found = schema.get("anyOf") or schema.get("oneOf")
    return [_mapping(branch) for branch in cast(list[object], found)] if isinstance(found, list) else []


def _mapping(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else {}


def _kind(value: object) -> str:
    match value:
        case list():
            return "an array"
        case str():
            return "a string"
        case bool():
            return "a boolean"
        case _:
            return "a number"
