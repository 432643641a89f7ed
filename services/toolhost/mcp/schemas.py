"""The schema that a server gives for a tool's arguments, as one that every model endpoint takes. PURE.

Invariant: whatever the server's schema allows, the simplified one allows, because the server is its own last judge; it is
a plain tree of bounded size, without references, patterns and what else costs or cannot be said everywhere.

What is beyond the bounds or not understood is left out, which only allows more: references are expanded, once around a
circle; `oneOf` is told as `anyOf`; the alternatives at the top, which endpoints refuse, as properties of one object.
JSON Schema 2020-12, https://json-schema.org/draft/2020-12; older drafts are read where they differ (lists of items).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

import msgspec

from services.toolhost.mcp.texts import cleaned

# What one tool's schema may take of a prompt and of the catalog.
BYTES_MAX = 16 * 1024
# Further down and beyond that many nodes nobody fills in a form.
DEPTHS = (12, 6, 3, 1)
NODES_MAX = 1000
DESCRIPTION_CHARS_MAX = 1000
_NAME_CHARS_MAX = 128
_WORD_CHARS_MAX = 100
_VALUE_BYTES_MAX = 2048
_VALUES_MAX = 200
_HINT_CHARS_MAX = 300
_POINTER_STEPS_MAX = 50
_REFERENCES_MAX = 20

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
# Beside a reference these only describe it.
_ANNOTATIONS = frozenset({"description", "title", "default", "examples", "$comment", "deprecated"})

Node = dict[str, object]


def simplified(schema: Mapping[str, object]) -> Node:
    """The schema of an object. Raises nothing, whatever the schema is."""
    for depth in DEPTHS:
        found = _Expansion(schema, depth).top()
        if len(msgspec.json.encode(found)) <= BYTES_MAX:
            return found
    return {"type": "object", "properties": {}}


class _Expansion:
    """One walk through a schema document."""

    def __init__(self, document: Mapping[str, object], depth_max: int) -> None:
        self._document, self._depth_max = document, depth_max
        self._nodes = 0

    def top(self) -> Node:
        node = self._node(self._document, 0, ("#",))
        branches = sorted(_branches(node, holds=True), key=lambda branch: not branch.holds)
        for keyword in ("anyOf", "allOf", "not", "enum", "const", "default"):
            node.pop(keyword, None)
        if branches:
            # What one of them forbids another one may allow.
            node.pop("additionalProperties", None)
        properties = cast(Node, node.pop("properties", {}))
        required = cast("list[str]", node.pop("required", []))
        for branch in branches:
            for name, value in cast(Node, branch.node.get("properties", {})).items():
                if name not in properties:
                    properties[name] = value if branch.holds else _hint(value)
            if branch.holds:
                required += cast("list[str]", branch.node.get("required", []))
        top: Node = {**node, "type": "object", "properties": properties}
        return {**top, "required": list(dict.fromkeys(required))} if required else top

    def _node(self, given: object, depth: int, following: tuple[str, ...]) -> Node:
        """`following`: the references that are being expanded on the way to this node."""
        if given is False:
            return {"not": {}}
        if not isinstance(given, Mapping):
            return {}
        schema = cast("Mapping[str, object]", given)
        self._nodes += 1
        if depth > self._depth_max or self._nodes > NODES_MAX:
            return {}
        if "$ref" in schema:
            return self._referred(schema, depth, following)
        node: Node = {}
        for keyword, read in _VALUES.items():
            if keyword in schema and (value := read(schema[keyword])) is not None:
                node[keyword] = value
        if pattern := _word(schema.get("pattern")):
            node["description"] = f"{node.get('description', '')} (pattern: {pattern})".lstrip()
        self._add_properties(node, schema, depth, following)
        self._add_items(node, schema, depth, following)
        self._add_alternatives(node, schema, depth, following)
        return node

    def _referred(self, schema: Mapping[str, object], depth: int, following: tuple[str, ...]) -> Node:
        reference = schema["$ref"]
        told = _text(schema.get("description"))
        if not isinstance(reference, str) or reference in following or len(following) > _REFERENCES_MAX:
            # Once more around the circle would be one for ever. What is said beside it may be left out.
            return {"description": told} if told else {}
        target = self._node(_found(self._document, reference), depth, (*following, reference))
        if told:
            target = {**target, "description": told}
        beside = {key: value for key, value in schema.items() if key not in _ANNOTATIONS and key != "$ref"}
        # Both hold; one on top of the other could forbid what neither does.
        own = self._node(beside, depth, following) if beside else {}
        return {"allOf": [target, own]} if own else target

    def _add_properties(
        self, node: Node, schema: Mapping[str, object], depth: int, following: tuple[str, ...]
    ) -> None:
        given = schema.get("properties")
        all_kept = True
        if isinstance(given, Mapping):
            properties = cast("Mapping[object, object]", given)
            kept = {str(name): value for name, value in properties.items() if _is_name(name)}
            all_kept = len(kept) == len(properties)
            node["properties"] = {
                name: self._node(value, depth + 1, following) for name, value in kept.items()
            }
        others = schema.get("additionalProperties")
        if all_kept and others is not None and "patternProperties" not in schema:
            node["additionalProperties"] = (
                others if isinstance(others, bool) else self._node(others, depth + 1, following)
            )

    def _add_items(
        self, node: Node, schema: Mapping[str, object], depth: int, following: tuple[str, ...]
    ) -> None:
        items, first = schema.get("items"), schema.get("prefixItems")
        if isinstance(items, list):
            # Older drafts: a list is what `prefixItems` is now, and `additionalItems` what `items` is.
            items, first = schema.get("additionalItems"), cast("list[object]", items)
        if isinstance(first, list):
            node["prefixItems"] = [
                self._node(item, depth + 1, following) for item in cast("list[object]", first)
            ]
        if items is not None:
            node["items"] = self._node(items, depth + 1, following)

    def _add_alternatives(
        self, node: Node, schema: Mapping[str, object], depth: int, following: tuple[str, ...]
    ) -> None:
        """`oneOf` demands that the others do not fit, which simplified ones might."""
        found = {
            keyword: [self._node(item, depth + 1, following) for item in cast("list[object]", listed)]
            for keyword in ("anyOf", "oneOf", "allOf")
            if isinstance(listed := schema.get(keyword), list) and listed
        }
        one_of, any_of = found.pop("oneOf", None), found.get("anyOf")
        if one_of is not None and any_of is not None:
            found["allOf"] = [*found.get("allOf", []), {"anyOf": one_of}]
        elif one_of is not None:
            found["anyOf"] = one_of
        node.update(found)


class _Branch(NamedTuple):
    """A node in the alternatives of another one. `holds`: in any case."""

    node: Node
    holds: bool


def _branches(node: Node, *, holds: bool) -> Iterator[_Branch]:
    for keyword in ("allOf", "anyOf"):
        listed = cast("list[Node]", node.get(keyword, []))
        each = holds and (keyword == "allOf" or len(listed) == 1)
        for branch in listed:
            yield _Branch(branch, each)
            yield from _branches(branch, holds=each)


def _hint(value: object) -> Node:
    """A property of one alternative: named and described, and not demanded of the others."""
    node = cast(Node, value)
    told = str(node.get("description", ""))
    shape = msgspec.json.encode({key: what for key, what in node.items() if key != "description"}).decode()
    return {"description": cleaned(f"{told} (in one form: {shape})", _HINT_CHARS_MAX).strip()}


def _found(document: Mapping[str, object], reference: str) -> object:
    """What a reference within the document points to (RFC 6901); anything, when it leads elsewhere."""
    if reference == "#":
        return document
    if not reference.startswith("#/"):
        # Another document, which nobody fetches, or an anchor.
        return {}
    found: object = document
    for step in reference.split("/")[1 : _POINTER_STEPS_MAX + 1]:
        found = _below(found, step.replace("~1", "/").replace("~0", "~"))
    return found


def _below(node: object, key: str) -> object:
    if isinstance(node, Mapping):
        return cast("Mapping[str, object]", node).get(key, {})
    if isinstance(node, list) and key.isdecimal():
        listed = cast("list[object]", node)
        return listed[int(key)] if int(key) < len(listed) else {}
    return {}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= _NAME_CHARS_MAX and cleaned(name, _NAME_CHARS_MAX) == name


def _text(value: object) -> str | None:
    return cleaned(value, DESCRIPTION_CHARS_MAX) or None if isinstance(value, str) else None


def _word(value: object) -> str | None:
    if not isinstance(value, str) or len(value) > _WORD_CHARS_MAX:
        return None
    return value if value.isascii() and value.isprintable() else None


def _type(value: object) -> object:
    if isinstance(value, str):
        return value if value in _TYPES else None
    if isinstance(value, list):
        listed = cast("list[object]", value)
        return listed if listed and all(isinstance(one, str) and one in _TYPES for one in listed) else None
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and abs(value) < 2**63 else None


def _step(value: object) -> float | None:
    found = _number(value)
    return found if found is not None and found > 0 else None


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _names(value: object) -> list[str] | None:
    if not isinstance(value, list):
        return None
    # A name that was left out can still be demanded; the server says so.
    return [str(name) for name in cast("list[object]", value) if _is_name(name)] or None


def _value(value: object) -> object:
    """Any value that JSON can hold and that is not too large."""
    try:
        return value if len(msgspec.json.encode(value)) <= _VALUE_BYTES_MAX else None
    except (OverflowError, TypeError, ValueError, RecursionError):
        return None


def _options(value: object) -> object:
    if not isinstance(value, list) or not 0 < len(cast("list[object]", value)) <= _VALUES_MAX:
        return None
    return _value(cast("list[object]", value))


# What a node says by itself. `pattern` could hold up whoever checks it, `format` is only told, and a value of null is
# left out as if it were none, which is allowed to mean anything.
_VALUES: Mapping[str, Callable[[object], object]] = {
    "type": _type,
    "description": _text,
    "enum": _options,
    "const": _value,
    "default": _value,
    "format": _word,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _step,
    "minLength": _size,
    "maxLength": _size,
    "minItems": _size,
    "maxItems": _size,
    "minProperties": _size,
    "maxProperties": _size,
    "required": _names,
}
