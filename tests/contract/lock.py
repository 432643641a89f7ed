"""The schema lock: the form of every event, of what events hold, and of the messages other services may send.

Invariant: what stands in `libs/contracts/schema.lock.json` may be read by every later version, so a released field
never disappears, never changes its meaning and never becomes required; `python -m tests.contract.lock` adds what is
new and refuses everything else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import inspect

from libs.contracts import messages, webhooks
from libs.contracts.envelope import SCHEMA, RecordBody, WireEvent, event_kinds

LOCK = Path(__file__).resolve().parents[2] / "libs" / "contracts" / "schema.lock.json"

MESSAGES: tuple[type[msgspec.Struct], ...] = (
    WireEvent,
    RecordBody,
    *(kind for message in messages.MESSAGES for kind in message.kinds),
    webhooks.Webhook,
    webhooks.WebhookState,
    webhooks.WebhookDelivery,
)

HOW_TO = """
A released schema only grows. To extend it:
  - add a field with a default that means "what older writers meant", or a new kind of event; a struct that stands in
    another field's default may grow like that, too; then run
        python -m tests.contract.lock
    and commit libs/contracts/schema.lock.json with the change. Readers are upgraded one release before writers.
  - to change a field's meaning or type, add a new field beside it and let the fold read both.
  - to retire a field, keep it, give it a default and stop writing it.
""".rstrip()

_LIST = "list of "
# One field: its alternatives (sorted, so that a widened type is a superset) and its default, as JSON.
Schema = dict[str, Any]


def current() -> Schema:
    """The schema of this checkout, as it would stand in the lock."""
    structs: Schema = {}
    events: Schema = {}
    for name, kind in sorted(event_kinds().items()):
        events[name] = {"life": kind.life, "fields": _fields(kind, structs)}
    messages = {kind.__name__: _struct(kind, structs) for kind in MESSAGES}
    return {"schema": SCHEMA, "events": events, "messages": messages, "values": dict(sorted(structs.items()))}


def locked() -> Schema:
    """The released schema."""
    return json.loads(LOCK.read_text(encoding="utf-8"))


def breaks(released: Schema, now: Schema) -> list[str]:
    """What a reader of old logs, or an old reader, would stumble over; one sentence each."""
    found: list[str] = []
    if released["schema"] > now["schema"]:
        found.append(f"the schema went back from {released['schema']} to {now['schema']}")
    for group in ("events", "messages", "values"):
        for name, before in released[group].items():
            after = now[group].get(name)
            if after is None:
                found.append(f"{name} disappeared")
                continue
            found += _breaks_of_struct(name, before, after, now["values"])
    return found


def additions(released: Schema, now: Schema) -> list[str]:
    """What is new and not in the lock yet."""
    old = dict(_flat(released))
    return [path for path, value in _flat(now) if path not in old or old[path] != value]


def _breaks_of_struct(name: str, before: Schema, after: Schema, values: Schema) -> Iterator[str]:
    for key in ("life", "tag", "tag_field"):
        if before.get(key) != after.get(key):
            yield f"{name}: {key} changed from {before.get(key)!r} to {after.get(key)!r}"
    for field, was in before["fields"].items():
        is_now = after["fields"].get(field)
        if is_now is None:
            yield f"{name}.{field} disappeared"
            continue
        if lost := sorted(kind for kind in was["type"] if not _is_taken(kind, is_now["type"])):
            yield f"{name}.{field} no longer takes {' | '.join(lost)}"
        if "default" in was and "default" not in is_now:
            yield f"{name}.{field} became required"
        elif "default" in was and not _means_the_same(was["default"], is_now, values):
            yield f"{name}.{field}: the default changed, so old logs without the field would mean something else"
    for field, is_now in after["fields"].items():
        if field not in before["fields"] and "default" not in is_now:
            yield f"{name}.{field} is new and required, so old logs would not decode"


def _is_taken(kind: str, now: list[str]) -> bool:
    """Whether a value of the type still has its place: a list may hold more kinds of items than it did."""
    if kind in now or not kind.startswith(_LIST):
        return kind in now
    items = set(kind.removeprefix(_LIST).split(" | "))
    lists = (other.removeprefix(_LIST) for other in now if other.startswith(_LIST))
    return any(items <= set(other.split(" | ")) for other in lists)


def _means_the_same(was: object, field: Schema, values: Schema) -> bool:
    """Whether the default of `field` still is what it `was`. A struct in it may have grown: each new field has its own
    default there, which is what a log without it means anyway."""
    return _grown(was, field["default"], field["type"], values)


def _grown(was: object, now: object, kinds: list[str], values: Schema) -> bool:
    if not isinstance(was, dict) or not isinstance(now, dict):
        return was == now
    before, after = cast("dict[str, object]", was), cast("dict[str, object]", now)
    for kind in kinds:
        fields: Schema = values.get(kind, {}).get("fields", {})
        if before.keys() <= after.keys() <= fields.keys():
            return all(
                _grown(before[name], value, fields[name]["type"], values)
                if name in before
                else "default" in fields[name] and value == fields[name]["default"]
                for name, value in after.items()
            )
    return was == now


def _flat(schema: Schema) -> Iterator[tuple[str, object]]:
    yield "schema", schema["schema"]
    for group in ("events", "messages", "values"):
        for name, struct in schema[group].items():
            yield name, None
            yield from ((f"{name}.{field}", form) for field, form in struct["fields"].items())


def _fields(kind: type[msgspec.Struct], structs: Schema) -> Schema:
    return _fields_of(inspect.type_info(kind), structs)


def _struct(kind: type[msgspec.Struct], structs: Schema) -> Schema:
    return _struct_of(inspect.type_info(kind), structs)


def _struct_of(info: inspect.Type, structs: Schema) -> Schema:
    assert isinstance(info, inspect.StructType)
    tag = {"tag": info.tag, "tag_field": info.tag_field} if info.tag_field is not None else {}
    return {**tag, "fields": _fields_of(info, structs)}


def _fields_of(info: inspect.Type, structs: Schema) -> Schema:
    assert isinstance(info, inspect.StructType)
    fields: Schema = {}
    for field in info.fields:
        form: Schema = {"type": sorted(_alternatives(field.type, structs))}
        if not field.required:
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            form["default"] = msgspec.to_builtins(default, order="deterministic")
        fields[field.encode_name] = form
    return fields


def _alternatives(info: inspect.Type, structs: Schema) -> list[str]:
    """The types a value may have; several for a union, a literal or an enumeration."""
    match info:
        case inspect.UnionType(types=types):
            return [name for part in types for name in _alternatives(part, structs)]
        case inspect.LiteralType(values=values):
            return [json.dumps(value) for value in values]
        case inspect.EnumType(cls=cls):
            return [json.dumps(member.value) for member in cls]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [f"{_LIST}{' | '.join(sorted(_alternatives(item, structs)))}"]
        case inspect.TupleType(item_types=items):
            return [f"tuple of {', '.join(' | '.join(_alternatives(item, structs)) for item in items)}"]
        case inspect.DictType(key_type=key, value_type=value):
            keys, values = sorted(_alternatives(key, structs)), sorted(_alternatives(value, structs))
            return [f"map of {' | '.join(keys)} to {' | '.join(values)}"]
        case inspect.StructType(cls=cls):
            if cls.__name__ not in structs:
                structs[cls.__name__] = {}  # Stands in while the struct is walked, should it hold itself.
                structs[cls.__name__] = _struct_of(info, structs)
            return [cls.__name__]
        case inspect.CustomType(cls=cls) if cls is object:
            return ["anything"]
        case _:
            return [_PLAIN[type(info)]]


_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BytesType: "base64",
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.NoneType: "null",
    inspect.AnyType: "anything",
    inspect.RawType: "anything",
}


def main() -> int:
    """Add what is new to the lock. `--unreleased` also takes breaking changes: only before the first release."""
    now = current()
    problems = breaks(locked(), now) if LOCK.is_file() and "--unreleased" not in sys.argv else []
    if problems:
        sys.stderr.write("\n".join([*problems, HOW_TO, ""]))
        return 1
    LOCK.write_text(_text(now) + "\n", encoding="utf-8")
    return 0


def _text(value: object, depth: int = 0) -> str:
    """JSON with one line a field, so that a diff shows what was added."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    parts = cast("dict[str, object]", value)
    if isinstance(parts.get("type"), list):
        return json.dumps(parts, ensure_ascii=False)
    lines = [f"{' ' * (depth + 1)}{json.dumps(key)}: {_text(part, depth + 1)}" for key, part in parts.items()]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


if __name__ == "__main__":
    sys.exit(main())
