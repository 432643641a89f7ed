"""JSON Schemas of everything that travels on the bus, for whoever writes a service in another language.

Invariant: `docs/bus/*.json` is what this module gives (`python -m deploy.schemas` writes it), from the structs that
decode; a change of a message shows in a diff.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic.json_schema import models_json_schema

from libs.contracts.envelope import WireEvent, event_kinds
from libs.contracts.http import TaskCreate
from libs.contracts.messages import MESSAGES

PUBLISHED = Path(__file__).resolve().parents[1] / "docs" / "bus"

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = "#/$defs/{name}"

Schema = dict[str, object]


def documents() -> dict[str, str]:
    """The text of every file below `docs/bus` that is made here, by its name."""
    found = {message.name: _of(message.kinds, message.place, message.who) for message in MESSAGES}
    found |= {"task": _task(), "event": _event(), "record": _record()}
    return {
        f"{name}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in found.items()
    }


def _of(kinds: Sequence[type[msgspec.Struct]], place: str, who: str) -> Schema:
    references, definitions = _components(kinds)
    body = references[0] if len(references) == 1 else {"oneOf": references}
    return {"$schema": _DRAFT, "title": place, "$comment": who, **body, "$defs": definitions}


def _task() -> Schema:
    _, schema = models_json_schema([(TaskCreate, "validation")], ref_template="#/$defs/{model}")
    return {
        "$schema": _DRAFT,
        "title": "<p>.tasks.<tenant>",
        "$comment": "anyone to the scheduler; the body of POST /api/tasks, always started",
        "$ref": "#/$defs/TaskCreate",
        "$defs": schema["$defs"],
    }


def _event() -> Schema:
    kinds = event_kinds()
    _, definitions = _components([WireEvent, *kinds.values()])
    wire = definitions.pop("WireEvent")
    assert isinstance(wire, dict)
    payloads = [
        {
            "properties": {
                "type": {"const": name},
                "payload": {"$ref": _REFERENCE.format(name=kind.__name__)},
            }
        }
        for name, kind in sorted(kinds.items())
    ]
    return {
        "$schema": _DRAFT,
        "$comment": "written by Perdure alone; kinds are added, so readers pass over those that they do not know",
        **wire,
        "title": "one event of a record",
        "anyOf": payloads,
        "$defs": definitions,
    }


def _record() -> Schema:
    return {
        "$schema": _DRAFT,
        "title": "<p>.feed.<tenant>.<run>; <p>.log.<shard>.<tenant>.<run>.<life|work> for operators",
        "$comment": "written by Perdure alone, with the headers that README.md names",
        "type": "object",
        "properties": {"events": {"type": "array", "minItems": 1, "items": {"$ref": "event.json"}}},
        "required": ["events"],
    }


def _components(kinds: Sequence[type[msgspec.Struct]]) -> tuple[list[Schema], dict[str, object]]:
    references, definitions = msgspec.json.schema_components(
        kinds, schema_hook=_anything, ref_template=_REFERENCE
    )
    return list(references), dict(sorted(definitions.items()))


def _anything(kind: type) -> Schema:
    """The schema of a value that may be anything (not empty: that would count as none). Raises `NotImplementedError` for every other unknown type."""
    if kind is not object:
        raise NotImplementedError(f"{kind} has no JSON Schema")
    return {"description": "any JSON"}


def main() -> None:
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    for name, text in documents().items():
        (PUBLISHED / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
