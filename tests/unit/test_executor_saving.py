"""When a run's workspace is kept: beside the model's turns and not too often, and before the run may be away for long."""

from datetime import timedelta

import msgspec

from libs.contracts import events as e
from libs.contracts.run import RunState
from libs.contracts.tools import Semantics, ToolSpec
from services.executor.decision.activity import CallModel, CallTool, Save
from services.executor.decision.decide import Do, foresee, settle
from tests.unit.test_executor_decide import NOW, READ, asked, call, env, kinds, owned, result, turn

WRITE = ToolSpec(name="write_file", description="", parameters={}, semantics=Semantics.IDEMPOTENT)


def worked(*more: e.LogEvent) -> RunState:
    """A run that has written a file and asks its model again."""
    state = foresee(asked(owned()), [turn(1, calls=[call("write_file", path="a", content="b")])], NOW)
    attached = e.WorkspaceAttached(workspace_id="w", host="h", replica="r")
    intent = e.ToolRequested(
        call_id="call_1_0",
        name="write_file",
        arguments={},
        semantics=Semantics.IDEMPOTENT,
        idempotency_key="k",
    )
    asks = e.ModelRequested(iteration=2, model="m", message_count=4, estimated_tokens=100)
    return foresee(state, [attached, intent, result("call_1_0"), asks, *more], NOW)


def test_what_was_done_is_kept_beside_the_next_turn_and_not_again_before_anything_else_is_done() -> None:
    state = worked()
    assert settle(state, env(attached=True)).then == Do((CallModel(2), Save(state.sequence)))
    assert settle(state, env()).then == Do((CallModel(2),))  # Nobody holds the workspace for this owner yet.
    for problem in (None, "no room"):
        tried = worked(e.WorkspaceSnapshotted(commit="c", changed=1, problem=problem))
        assert settle(tried, env(attached=True)).then == Do((CallModel(2),))


def test_snapshots_between_steps_come_seldom() -> None:
    kept = worked(e.WorkspaceSnapshotted(commit="c", changed=1))
    again = msgspec.structs.replace(kept, unsaved=1)
    soon, later = NOW + timedelta(seconds=29), NOW + timedelta(seconds=30)
    assert settle(again, env(attached=True, now=soon)).then == Do((CallModel(2),))
    assert settle(again, env(attached=True, now=later)).then == Do((CallModel(2), Save(again.sequence)))


def test_while_the_workspace_is_kept_only_reads_go_on() -> None:
    asks = [call("read_file", 1, path="a"), call("write_file", 2, path="b", content="c")]
    state = foresee(worked(), [turn(2, calls=asks)], NOW)
    still = env(attached=True)._replace(specs={READ.name: READ, WRITE.name: WRITE})
    settled = settle(state, still._replace(saving=True))
    assert kinds(settled.events) == ["tool.requested"] * 2
    reads, writes = settled.state.calls
    assert settled.then == Do((Save(settled.state.sequence), CallTool(reads)))
    assert settle(settled.state, still).then == Do((CallTool(reads), CallTool(writes)))


def test_what_was_done_is_kept_before_a_run_is_verified_asks_or_pauses() -> None:
    final = foresee(worked(), [turn(2, content="Done.")], NOW)
    asks = foresee(worked(), [turn(2, calls=[call("ask_user", 1, question="?")])], NOW)
    paused = foresee(worked(turn(2, content="Done.")), [e.RunPauseRequested(by="x")], NOW)
    for state, then in (
        (final, "verification.requested"),
        (asks, "run.released"),
        (paused, "run.released"),
    ):
        settled = settle(state, env(attached=True))
        assert isinstance(settled.then, Do)
        assert settled.then.activities == (Save(settled.state.sequence),)
        kept = foresee(settled.state, [e.WorkspaceSnapshotted(commit="", changed=0, problem="no")], NOW)
        assert then in kinds(settle(kept, env(attached=True)).events)


def test_after_failures_tries_become_rare_also_before_a_run_ends() -> None:
    failed = [e.WorkspaceSnapshotted(commit="", changed=0, problem="too large")] * 2
    final = foresee(worked(*failed), [turn(2, content="Done.")], NOW)
    final = msgspec.structs.replace(final, unsaved=1)
    assert kinds(settle(final, env(attached=True)).events) == ["verification.requested"]
    later = settle(final, env(attached=True, now=NOW + timedelta(seconds=4 * 30)))
    assert isinstance(later.then, Do)
    assert later.then.activities == (Save(later.state.sequence),)
    kept = foresee(final, [e.WorkspaceSnapshotted(commit="c", changed=1)], NOW)
    assert kept.save_failures == 0
