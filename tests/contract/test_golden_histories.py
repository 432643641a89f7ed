"""Logs that any release ever wrote fold to the same state, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from libs.contracts.envelope import decode_event, encode_event, event_kinds, run_event_kinds
from libs.contracts.evolve import evolve
from tests.contract.golden import (
    all_histories,
    expected,
    folded,
    histories,
    project_histories,
    read,
    schedule_histories,
    state_file,
)


@pytest.mark.parametrize("history", all_histories(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_history_folds_to_its_stored_state(history: Path) -> None:
    differences = list(_missing(expected(history), folded(history), "state"))
    if differences:
        pytest.fail("\n".join([f"{state_file(history)} tells otherwise:", *differences]), pytrace=False)


@pytest.mark.parametrize("history", all_histories(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_history_is_gapless_and_survives_a_round_trip(history: Path) -> None:
    events = [decode_event(wire) for wire in read(history)]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [decode_event(encode_event(event)) for event in events] == events


@pytest.mark.parametrize("history", histories(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_state_on_the_way_waits_and_owns_at_once(history: Path) -> None:
    state = None
    for wire in read(history):
        state = evolve(state, decode_event(wire))
        assert (state.owner is not None) == (state.status in ("RUNNING", "VERIFYING")), wire


def test_the_golden_histories_hold_every_kind_of_event_and_every_end() -> None:
    kinds = {wire.type for history in histories() for wire in read(history)}
    assert kinds == set(run_event_kinds()), "a new kind needs a new history; the old ones are never changed"
    ends = {expected(history)["status"] for history in histories()}
    assert ends >= {"COMPLETED", "FAILED", "CANCELLED"}


def test_the_golden_projects_and_schedules_hold_every_kind_of_event_and_every_end() -> None:
    kinds = {wire.type for history in project_histories() for wire in read(history)}
    of_schedules = {wire.type for history in schedule_histories() for wire in read(history)}
    others = set(event_kinds()) - set(run_event_kinds())
    assert kinds | of_schedules == others, "a new kind needs a new history; the old ones are never changed"
    ends = {expected(history)["status"] for history in project_histories()}
    assert ends >= {"COMPLETED", "CANCELLED"}


def _missing(wanted: object, found: object, path: str) -> Iterator[str]:
    """Where `found` lacks what `wanted` says; fields that came later are no difference."""
    match wanted, found:
        case dict(), dict():
            then, now = cast("dict[str, object]", wanted), cast("dict[str, object]", found)
            for key, value in then.items():
                yield from _missing(value, now.get(key), f"{path}.{key}")
        case list(), list() if len(cast("list[object]", wanted)) == len(cast("list[object]", found)):
            pairs = zip(cast("list[object]", wanted), cast("list[object]", found), strict=True)
            for index, (one, other) in enumerate(pairs):
                yield from _missing(one, other, f"{path}[{index}]")
        case _:
            if wanted != found:
                yield f"{path}: {wanted!r} was stored, the fold gives {found!r}"
