"""The schemas that strangers read are those of the structs, and what is really sent keeps to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from deploy.schemas import PUBLISHED, documents
from libs.contracts.envelope import event_kinds
from libs.contracts.leases import LeaseValue
from libs.contracts.live import ModelDelta
from libs.contracts.messages import MESSAGES
from libs.contracts.tools import CancelCalls, JournalEntry, JournalState, ToolNotice, ToolResult

HISTORIES = sorted((Path(__file__).parent / "golden" / "v1").rglob("*.jsonl"))
SAMPLES: dict[str, msgspec.Struct] = {
    "control": CancelCalls(run_id="run_0_x", epoch=1),
    "journal-entry": JournalEntry(
        state=JournalState.FINISHED,
        boot="b1",
        replica="r",
        host="h",
        at="2026-01-01T00:00:00.000Z",
        result=ToolResult(call_id="call_1_0", attempt=1, ok=True, output="done"),
    ),
    "live": ToolNotice(run_id="run_0_x", call_id="call_1_0", attempt=1, state=JournalState.STARTED),
    "lease": LeaseValue(
        boot="b1",
        service="s",
        replica="r",
        host="h",
        pid=1,
        process_start=0,
        slots=0,
        free=0,
        model_configured=False,
    ),
}


def _valid(name: str, instance: object) -> bool:
    """Whether it keeps to the published schema of that name."""
    schemas: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in PUBLISHED.glob("*.json")}
    registry = Registry[Any]().with_resources(
        [(path, Resource[Any].from_contents(schema)) for path, schema in schemas.items()]
    )
    Draft202012Validator.check_schema(schemas[f"{name}.json"])
    validator = Draft202012Validator(schemas[f"{name}.json"], registry=registry)
    return validator.is_valid(instance)  # pyright: ignore[reportUnknownMemberType, reportArgumentType] the stubs know JSON only by parts


def test_what_is_published_is_what_the_structs_say() -> None:
    stale = [
        name
        for name, text in documents().items()
        if not (path := PUBLISHED / name).is_file() or path.read_text(encoding="utf-8") != text
    ]
    left = sorted({path.name for path in PUBLISHED.glob("*.json")} - documents().keys())
    assert not stale, f"python -m deploy.schemas writes {stale} anew"
    assert not left, f"nothing makes {left} any more; remove them"


def test_every_message_has_a_page_that_names_its_schema() -> None:
    page = (PUBLISHED / "README.md").read_text(encoding="utf-8")
    missing = [name for name in documents() if f"({name})" not in page]
    assert not missing, f"docs/bus/README.md says nothing of {missing}"
    assert len({message.name for message in MESSAGES}) == len(MESSAGES)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_released_histories_keep_to_the_schema_of_records(path: Path) -> None:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert _valid("record", {"events": events})


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_encoded_keeps_to_its_schema(name: str) -> None:
    assert _valid(name, json.loads(msgspec.json.encode(SAMPLES[name])))


def test_a_schema_refuses_what_would_not_decode() -> None:
    delta = ModelDelta(run_id="run_0_x", iteration=1, attempt=1, content="a")
    sent = json.loads(msgspec.json.encode(delta))
    assert _valid("live", sent)
    assert not _valid("live", {**sent, "iteration": "one"})
    assert not _valid("live", {**sent, "type": "model.unknown"})


def test_events_of_all_kinds_are_described() -> None:
    described = {
        kind["properties"]["type"]["const"]
        for kind in json.loads((PUBLISHED / "event.json").read_text())["anyOf"]
    }
    assert described == set(event_kinds())
