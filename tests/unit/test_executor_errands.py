"""Runs that ask no model: their steps, one after the other, and again where a machine took with it what they had done."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from libs.contracts import events as e
from libs.contracts.checks import CheckResult, CheckStatus, CommandCheck, Verdict
from libs.contracts.run import RunState, RunStatus
from libs.contracts.sessions import Errand
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import VERIFY
from libs.contracts.workspaces import WorkspaceAttached
from services.executor.decision.activity import Attach, CallTool, Save, Verify
from services.executor.decision.decide import Do, Env, foresee, settle
from services.executor.egress.context import Fits, Window
from tests.fakes.histories import created

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
TASK = TaskSpec(
    goal="close the session",
    workspace="shop",
    acceptance=[CommandCheck(argv=["true"])],
    errands=[Errand(name="workspace_commit", label="commit"), Errand(name=VERIFY, must_pass=False)],
)
GREEN = CheckResult(kind="command", subject="true", status=CheckStatus.PASSED)


def env(*, attached: bool = True) -> Env:
    return Env(now=NOW, model="m", specs={}, attached=attached, busy=False, draining=False, window=_fits)


def _fits(state: RunState, _: bool) -> tuple[int, Window]:
    return len(state.transcript), Fits(tokens=1)


def begun() -> RunState:
    """The errand in its workspace, with the intent of its first step."""
    claimed = [e.RunStartRequested(by="test"), e.RunClaimed(owner="x", boot="b1", epoch=1, attempt=1)]
    state = foresee(created(Limits(), TASK), claimed, NOW)
    return settle(foresee(state, [attached("h1")], NOW), env()).state


def attached(host: str, *lost: str) -> WorkspaceAttached:
    return WorkspaceAttached(workspace_id="w", host=host, replica=host, lost=list(lost))


def completed(call_id: str, commit: str) -> e.ToolCompleted:
    return e.ToolCompleted(call_id=call_id, ok=True, output="", duration_ms=1, metadata={"commit": commit})


def judged(number: int) -> e.VerificationCompleted:
    return e.VerificationCompleted(round=number, status=Verdict.PASSED, checks=[GREEN])


def test_steps_come_one_after_the_other_and_the_run_ends_once_they_are_kept() -> None:
    state = begun()
    assert [call.call_id for call in state.calls] == ["step-0"]
    settled = settle(foresee(state, [completed("step-0", "c1")], NOW), env())
    assert isinstance(settled.then, Do)
    assert [type(effect) for effect in settled.then.activities] == [Verify]
    kept = settle(foresee(settled.state, [judged(1)], NOW), env())
    assert kept.then == Do((Save(kept.state.sequence),))


def test_what_another_machine_did_and_took_with_it_is_done_again() -> None:
    state = foresee(begun(), [completed("step-0", "c1")], NOW)
    state = foresee(settle(state, env()).state, [judged(1)], NOW)
    # All steps are done, and nobody knows yet whether anything of it is left.
    assert settle(state, env(attached=False)).then == Do((Attach(),))
    failed = foresee(state, [e.WorkspaceSnapshotted(commit="", changed=0, problem="its host is gone")], NOW)
    assert settle(failed, env(attached=False)).then == Do((Attach(),))
    assert isinstance(settle(failed, env()).events[-1], e.RunCompleted), (
        "a workspace that is too large is no reason"
    )
    moved = settle(foresee(state, [attached("h2", "workspace_commit {}")], NOW), env())
    assert [call.call_id for call in moved.state.calls] == ["step-0-1"]
    assert isinstance(moved.then, Do)
    assert [type(effect) for effect in moved.then.activities] == [CallTool]
    again = settle(foresee(moved.state, [completed("step-0-1", "c2")], NOW), env())
    assert again.state.verification_pending is not None
    assert again.state.verification_pending.round == 2
    ended = foresee(again.state, [judged(2)], NOW)
    assert [step.metadata.get("commit") for step in ended.steps] == ["c2", None]


def test_a_commit_behind_a_proof_is_of_what_was_proved() -> None:
    steps = [Errand(name=VERIFY), Errand(name="workspace_commit", arguments={"message": "a"})]
    task = msgspec.structs.replace(TASK, errands=steps)
    claimed = [e.RunStartRequested(by="test"), e.RunClaimed(owner="x", boot="b1", epoch=1, attempt=1)]
    state = foresee(created(Limits(), task), [*claimed, attached("h1")], NOW)
    verdict = msgspec.structs.replace(judged(1), commit="c" * 40)
    merged = settle(foresee(settle(state, env()).state, [verdict], NOW), env()).state
    assert [call.arguments for call in merged.calls] == [{"message": "a", "verified": "c" * 40}]
    assert "verified" not in begun().calls[0].arguments


def test_a_step_that_was_under_way_there_is_asked_for_anew() -> None:
    moved = foresee(begun(), [attached("h2", "workspace_commit {}")], NOW)
    assert (moved.calls, moved.status) == ((), RunStatus.RUNNING)
    assert [call.call_id for call in settle(moved, env()).state.calls] == ["step-0-1"]


def test_a_workspace_that_moved_with_all_that_was_done_keeps_its_steps() -> None:
    state = foresee(begun(), [completed("step-0", "c1"), attached("h2")], NOW)
    assert [step.metadata for step in state.steps] == [{"commit": "c1"}]
