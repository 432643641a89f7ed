"""Released events stay readable: the lock holds the schema, and every kind of break is found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.contract.lock import HOW_TO, Schema, additions, breaks, current, locked


def test_no_released_event_or_field_changed_or_disappeared() -> None:
    if problems := breaks(locked(), current()):
        pytest.fail("\n".join([*problems, HOW_TO]), pytrace=False)


def test_everything_new_is_in_the_lock() -> None:
    if new := additions(locked(), current()):
        pytest.fail("\n".join(["Not in the schema lock yet:", *new, HOW_TO]), pytrace=False)


def _drop_event(schema: Schema) -> None:
    del schema["events"]["run.claimed"]


def _drop_field(schema: Schema) -> None:
    del schema["events"]["run.claimed"]["fields"]["epoch"]


def _narrow_literal(schema: Schema) -> None:
    schema["events"]["run.released"]["fields"]["reason"]["type"].remove('"failure"')


def _narrow_list(schema: Schema) -> None:
    schema["values"]["TaskSpec"]["fields"]["acceptance"]["type"] = ["list of CommandCheck | TestsCheck"]


def _forbid_null(schema: Schema) -> None:
    schema["values"]["TaskSpec"]["fields"]["workspace"]["type"].remove("null")


def _require_field(schema: Schema) -> None:
    del schema["events"]["run.released"]["fields"]["retry_at"]["default"]


def _change_default(schema: Schema) -> None:
    schema["values"]["TaskSpec"]["fields"]["priority"]["default"] = "high"


def _change_class(schema: Schema) -> None:
    schema["events"]["message.received"]["life"] = True


def _change_tag(schema: Schema) -> None:
    schema["values"]["CommandCheck"]["tag"] = "argv"


def _add_required(schema: Schema) -> None:
    schema["events"]["run.claimed"]["fields"]["zone"] = {"type": ["text"]}


def _change_nested_default(schema: Schema) -> None:
    schema["events"]["model.failed"]["fields"]["usage"]["default"]["cost_usd"] = 1.0


def _drop_nested_default(schema: Schema) -> None:
    del schema["events"]["model.failed"]["fields"]["usage"]["default"]["cost_usd"]


def _grow_nested_default_otherwise(schema: Schema) -> None:
    schema["values"]["Usage"]["fields"]["images"] = {"type": ["integer"], "default": 0}
    schema["events"]["model.failed"]["fields"]["usage"]["default"]["images"] = 1


@pytest.mark.parametrize(
    "change",
    [
        _drop_event,
        _drop_field,
        _narrow_literal,
        _narrow_list,
        _forbid_null,
        _require_field,
        _change_default,
        _change_class,
        _change_tag,
        _add_required,
        _change_nested_default,
        _drop_nested_default,
        _grow_nested_default_otherwise,
    ],
)
def test_a_break_of_each_kind_is_found(change: Callable[[Schema], None]) -> None:
    changed = copy.deepcopy(current())
    change(changed)
    assert len(breaks(current(), changed)) == 1


def test_growth_is_no_break_but_must_be_locked() -> None:
    grown = copy.deepcopy(current())
    grown["events"]["run.claimed"]["fields"]["zone"] = {"type": ["text"], "default": ""}
    grown["events"]["run.released"]["fields"]["reason"]["type"].append('"moved"')
    grown["values"]["TaskSpec"]["fields"]["acceptance"]["type"][0] += " | ReviewCheck"
    grown["events"]["run.moved"] = {"life": True, "fields": {}}
    assert breaks(current(), grown) == []
    new = ["run.claimed.zone", "run.released.reason", "run.moved", "TaskSpec.acceptance"]
    assert additions(current(), grown) == new


def test_a_struct_may_grow_where_it_is_the_default_of_a_field() -> None:
    grown = copy.deepcopy(current())
    grown["values"]["Usage"]["fields"]["images"] = {"type": ["integer"], "default": 0}
    for event in ("child.finished", "context.compacted", "model.failed"):
        grown["events"][event]["fields"]["usage"]["default"]["images"] = 0
    assert breaks(current(), grown) == []
    assert "model.failed.usage" in additions(current(), grown)
