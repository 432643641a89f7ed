"""Which effects of a run are made again behind a snapshot: by its log alone, in order, and never backwards."""

from __future__ import annotations

from libs.contracts import events as e
from libs.contracts.envelope import Event
from libs.contracts.tools import Semantics
from libs.contracts.workspaces import Saved
from services.toolhost.replay import Done, done_behind, further_on

RUN = "run_1"


def _log(*bodies: e.LogEvent) -> list[Event]:
    return [Event(index + 1, RUN, "2026-11-29T12:00:00.000Z", body) for index, body in enumerate(bodies)]


def _asked(call_id: str, name: str, semantics: Semantics = Semantics.IDEMPOTENT) -> e.ToolRequested:
    return e.ToolRequested(
        call_id=call_id, name=name, arguments={"path": "a"}, semantics=semantics, idempotency_key=call_id
    )


def _done(call_id: str, ok: bool = True, **metadata: object) -> e.ToolCompleted:
    return e.ToolCompleted(call_id=call_id, ok=ok, output="", duration_ms=1, metadata=metadata)


def _saved(run_id: str, at_sequence: int) -> Saved:
    return Saved(snapshot="s", commit="c", chain=["s"], run_id=run_id, at_sequence=at_sequence)


def test_only_effects_behind_the_snapshot_count_and_open_calls_are_told_apart() -> None:
    log = _log(
        _asked("1", "write_file"),
        _done("1", path="a", sha256="B", sha256_before="A"),
        _asked("2", "read_file", Semantics.READ_ONLY),
        _done("2"),
        _asked("3", "run_tests"),
        _done("3", ok=False),
        _asked("4", "apply_patch"),
        _done("4", files={"a": "C", "b": None}, files_before={"a": "B", "b": "X"}),
        _asked("5", "edit_file"),
    )
    done, still_open = done_behind(log, _saved(RUN, 2), RUN)
    assert [(each.call_id, each.ok) for each in done] == [("3", False), ("4", True)]
    assert done[1].before == {"a": "B", "b": "X"}
    assert done[1].after == {"a": "C", "b": ""}
    assert [each.call_id for each in still_open] == ["5"]
    assert [each.call_id for each in done_behind(log, None, RUN)[0]] == ["1", "3", "4"]


def test_a_snapshot_that_another_run_made_later_holds_what_an_own_one_held() -> None:
    log = _log(
        _asked("1", "write_file"),
        _done("1"),
        e.WorkspaceSnapshotted(commit="c", changed=1, saved=_saved(RUN, 2)),
        _asked("2", "write_file"),
        _done("2"),
    )
    done, _ = done_behind(log, _saved("run_2", 77), RUN)
    assert [each.call_id for each in done] == ["2"]
    # Without any that came back nothing is certain.
    assert len(done_behind(log, None, RUN)[0]) == 2


def test_a_file_that_is_further_on_is_left_alone() -> None:
    def step(before: str, after: str) -> Done:
        return Done("1", 1, "write_file", {}, True, {"a": before}, {"a": after})

    steps = [step("", "A"), step("A", "B"), step("B", "C")]
    assert [further_on("C", "a", index, steps) for index in range(3)] == [True, True, True]
    assert [further_on("B", "a", index, steps) for index in range(3)] == [True, True, False]
    assert [further_on("A", "a", index, steps) for index in range(3)] == [True, False, False]
    assert [further_on("", "a", index, steps) for index in range(3)] == [False, False, False]
    assert [further_on("?", "a", index, steps) for index in range(3)] == [False, False, False]
