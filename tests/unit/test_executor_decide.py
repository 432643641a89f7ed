"""The pure core of the agent loop: what it records and what it wants done, state by state."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from libs.contracts import events as e
from libs.contracts.checks import TestsCheck, Verdict
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.transcript import ToolItem, UserItem
from libs.contracts.values import ModelToolCall, Usage
from services.executor.decision.activity import Attach, CallModel, CallTool, Verify
from services.executor.decision.decide import Do, Env, Leave, foresee, settle
from services.executor.decision.waits import again
from services.executor.egress.context import Fits, Window
from services.executor.tools.runtime import RUNTIME_TOOLS
from tests.fakes.histories import created

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
READ = ToolSpec(name="read_file", description="", parameters={}, semantics=Semantics.READ_ONLY)
ECHO = ToolSpec(
    name="echo",
    description="",
    parameters={},
    semantics=Semantics.READ_ONLY,
    timeout_s=7.0,
    needs_workspace=False,
)
SPECS = {READ.name: READ, ECHO.name: ECHO, **RUNTIME_TOOLS}


def _fits(state: RunState, _: bool) -> tuple[int, Window]:
    return len(state.transcript) + 2, Fits(tokens=100)


def env(*, now: datetime = NOW, attached: bool = False, busy: bool = False, draining: bool = False) -> Env:
    return Env(now=now, model="m", specs=SPECS, attached=attached, busy=busy, draining=draining, window=_fits)


def owned(limits: Limits | None = None, task: TaskSpec | None = None) -> RunState:
    return foresee(
        created(limits or Limits(), task or TaskSpec(goal="mend it")),
        [e.RunStartRequested(by="test"), e.RunClaimed(owner="x", boot="b1", epoch=1, attempt=1)],
        NOW,
    )


def turn(iteration: int, content: str = "", calls: list[ModelToolCall] | None = None) -> e.ModelCompleted:
    return e.ModelCompleted(
        iteration=iteration,
        content=content,
        tool_calls=calls or [],
        finish_reason="tool_calls" if calls else "stop",
        usage=Usage(requests=1, input_tokens=10, output_tokens=5),
        latency_ms=1,
    )


def call(name: str, index: int = 0, **arguments: object) -> ModelToolCall:
    return ModelToolCall(call_id=f"call_1_{index}", name=name, arguments=arguments)


def result(call_id: str, *, ok: bool = True) -> e.ToolCompleted:
    return e.ToolCompleted(call_id=call_id, ok=ok, output="out", duration_ms=1)


def asked(state: RunState) -> RunState:
    """The state after the first model request."""
    settled = settle(state, env())
    return foresee(state, settled.events, NOW)


def kinds(events: list[e.LogEvent]) -> list[str]:
    return [event.type for event in events]


def test_a_claimed_run_asks_its_model_first() -> None:
    settled = settle(owned(), env())
    assert kinds(settled.events) == ["model.requested"]
    assert settled.then == Do((CallModel(1),))


def test_a_model_request_without_an_answer_is_made_again_after_a_crash() -> None:
    state = asked(owned())
    assert settle(state, env()) == (settle(state, env())._replace(events=[], then=Do((CallModel(1),))))


def test_calls_get_their_intents_in_the_order_of_the_model() -> None:
    state = foresee(
        asked(owned()), [turn(1, calls=[call("echo", 0, text="a"), call("echo", 1, text="b")])], NOW
    )
    settled = settle(state, env())
    assert [event.call_id for event in settled.events if isinstance(event, e.ToolRequested)] == [
        "call_1_0",
        "call_1_1",
    ]
    assert isinstance(settled.then, Do)
    assert [a.call.call_id for a in settled.then.activities if isinstance(a, CallTool)] == [
        "call_1_0",
        "call_1_1",
    ]


def test_a_tool_that_needs_the_workspace_waits_for_its_attachment() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("read_file", path="a")])], NOW)
    assert settle(state, env()).then == Do((Attach(),))
    assert isinstance(settle(state, env(attached=True)).then, Do)


def test_where_a_call_goes_and_how_long_it_takes_stands_in_its_intent_whatever_the_catalog_has_lost() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("echo"), call("read_file", 1, path="a")])], NOW)
    state = settle(state, env()).state
    state = foresee(state, [again(asked_for) for asked_for in state.calls], NOW)
    assert [(one.needs_workspace, one.timeout_s) for one in state.calls] == [(False, 7.0), (True, 120.0)]
    lost = env()._replace(specs=RUNTIME_TOOLS)
    assert settle(state, lost).then == Do((Attach(),))
    state = foresee(state, [result("call_1_1")], NOW)
    assert settle(state, lost).then == Do((CallTool(state.calls[0]),))


def test_an_unknown_tool_and_bad_arguments_are_answered_at_once_and_the_loop_goes_on() -> None:
    broken = ModelToolCall(call_id="call_1_1", name="echo", arguments=None, problem="cut off")
    state = foresee(asked(owned()), [turn(1, calls=[call("nope"), broken])], NOW)
    settled = settle(state, env())
    assert kinds(settled.events) == ["tool.completed", "tool.completed", "model.requested"]
    assert settled.then == Do((CallModel(2),))


def test_results_are_recorded_together_with_the_next_request() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("echo", text="a")])], NOW)
    state = foresee(state, settle(state, env()).events, NOW)
    settled = settle(foresee(state, [result("call_1_0")], NOW), env())
    assert kinds(settled.events) == ["model.requested"]


def test_a_question_suspends_and_stands_last() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("ask_user", question="which?")])], NOW)
    settled = settle(state, env())
    assert kinds(settled.events) == ["tool.requested", "run.released", "input.requested"]
    assert settled.then == Leave()
    assert settled.state.status is RunStatus.WAITING_FOR_INPUT
    assert settled.state.owner is None


def test_an_answer_reaches_the_model_as_the_result_of_its_call_and_iterations_go_on_counting() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("ask_user", question="which?")])], NOW)
    state = foresee(state, settle(state, env()).events, NOW)
    answer = e.InputReceived(question_id="question_call_1_0", kind="question", answer="the left", by="you")
    state = foresee(state, [answer, e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)], NOW)
    settled = settle(state, env())
    assert kinds(settled.events) == ["tool.completed", "model.requested"]
    assert settled.state.iteration == 2
    last = settled.state.transcript[-1]
    assert isinstance(last, ToolItem)
    assert last.output == "the left"


def test_an_unattended_run_never_waits_for_a_person() -> None:
    task = TaskSpec(goal="g", unattended=True)
    state = foresee(asked(owned(task=task)), [turn(1, calls=[call("ask_user", question="which?")])], NOW)
    assert kinds(settle(state, env()).events) == ["tool.requested", "tool.completed", "model.requested"]


def test_a_cancelled_run_stops_what_is_going_on_before_it_ends() -> None:
    state = foresee(asked(owned()), [e.RunCancelRequested(by="you")], NOW)
    assert settle(state, env(busy=True)).then == Do(())
    settled = settle(state, env())
    assert kinds(settled.events) == ["run.cancelled"]
    assert settled.then == Leave()


def test_a_final_answer_is_a_claim_that_is_verified() -> None:
    task = TaskSpec(goal="mend it", acceptance=[TestsCheck()])
    state = foresee(asked(owned(task=task)), [turn(1, "done")], NOW)
    settled = settle(state, env())
    assert kinds(settled.events) == ["verification.requested"]
    assert settled.then == Do((Attach(),))
    pending = settled.state.verification_pending
    assert pending is not None
    assert settle(settled.state, env(attached=True)).then == Do((Verify(pending),))


def test_an_answer_without_checks_or_workspace_is_judged_without_attaching_one() -> None:
    state = foresee(asked(owned()), [turn(1, "done")], NOW)
    settled = settle(state, env())
    pending = settled.state.verification_pending
    assert pending is not None
    assert settled.then == Do((Verify(pending),))


def _verified(state: RunState, status: Verdict, feedback: str = "") -> RunState:
    state = foresee(state, settle(state, env()).events, NOW)
    number = state.verification_rounds
    done = e.VerificationCompleted(round=number, status=status, checks=[], feedback=feedback)
    return foresee(state, [done], NOW)


def test_a_verdict_that_is_no_failure_completes_the_run() -> None:
    state = _verified(foresee(asked(owned()), [turn(1, "done")], NOW), Verdict.UNVERIFIED)
    settled = settle(state, env())
    assert kinds(settled.events) == ["run.completed"]
    assert settled.state.answer == "done"


def test_failed_evidence_goes_back_to_the_model_until_the_rounds_are_used_up() -> None:
    state = owned(Limits(max_verification_rounds=2))
    for number in (1, 2):
        state = asked(state)
        state = _verified(foresee(state, [turn(number, "done")], NOW), Verdict.FAILED, "tests fail")
    settled = settle(state, env())
    assert kinds(settled.events) == ["run.failed"]
    assert settled.state.error is not None
    assert settled.state.error.error_code == "VERIFICATION_FAILED"


def test_a_finish_on_the_last_iteration_is_a_success_and_another_turn_is_not_allowed() -> None:
    last = Limits(max_iterations=1)
    state = foresee(asked(owned(last)), [turn(1, "done")], NOW)
    assert kinds(settle(state, env()).events) == ["verification.requested"]
    state = foresee(asked(owned(last)), [turn(1, calls=[call("nope")])], NOW)
    settled = settle(state, env())
    assert settled.state.error is not None
    assert settled.state.error.error_code == "MAX_ITERATIONS"


def test_owned_time_that_is_used_up_ends_the_run_after_stopping_its_work() -> None:
    state = asked(owned(Limits(timeout_s=5)))
    late = NOW + timedelta(seconds=6)
    assert settle(state, env(now=late, busy=True)).then == Do(())
    settled = settle(state, env(now=late))
    assert settled.state.error is not None
    assert settled.state.error.error_code == "TIMEOUT"


def test_a_steering_message_is_read_before_anything_final() -> None:
    state = foresee(asked(owned()), [e.MessageReceived(text="also b", by="you"), turn(1, "done")], NOW)
    settled = settle(state, env())
    assert kinds(settled.events) == ["model.requested"]
    assert settled.state.transcript[-1] == UserItem(text="also b", origin="steering")


def test_an_empty_thought_is_nudged_a_bounded_number_of_times() -> None:
    state = owned()
    for number in range(1, 10):
        state = asked(state)
        state = foresee(state, [msgspec.structs.replace(turn(number), reasoning="hm")], NOW)
        state = foresee(state, settle(state, env()).events, NOW)
        if state.terminal:
            break
    assert state.error is not None
    assert state.error.error_code == "EMPTY_RESPONSE"
    assert state.iteration == 4


def test_a_drained_owner_releases_the_run_for_another_one() -> None:
    settled = settle(asked(owned()), env(draining=True))
    assert kinds(settled.events) == ["run.released"]
    assert settled.state.status is RunStatus.QUEUED


def test_a_run_that_somebody_ended_is_left_alone() -> None:
    state = foresee(owned(), [e.RunCancelled(by="gateway", usage=Usage())], NOW)
    assert settle(state, env()).then == Leave()


def test_files_seen_before_a_claim_are_compared_before_the_next_turn() -> None:
    seen = e.ToolCompleted(
        call_id="call_1_0", ok=True, output="", duration_ms=1, metadata={"path": "a", "sha256": "1"}
    )
    state = foresee(asked(owned()), [turn(1, calls=[call("echo")])], NOW)
    state = foresee(state, [*settle(state, env()).events, seen], NOW)
    assert settle(state, env()).then == Do((Attach(),))


RISKY = ToolSpec(
    name="deploy",
    description="",
    parameters={},
    semantics=Semantics.NON_IDEMPOTENT,
    risk="high",
    needs_workspace=False,
)
WITH_RISKY = {**SPECS, RISKY.name: RISKY}


def risky_env() -> Env:
    return env()._replace(specs=WITH_RISKY)


def test_a_risky_call_has_no_intent_before_a_person_approved_exactly_it() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("deploy", to="prod")])], NOW)
    settled = settle(state, risky_env())
    assert kinds(settled.events) == ["run.released", "input.requested"]
    question = settled.state.pending_question
    assert question is not None
    assert question.kind == "approval"
    approved = e.InputReceived(
        question_id=question.question_id,
        kind="approval",
        answer="",
        by="you",
        decision="approve",
        approval_hash=question.approval_hash,
    )
    state = foresee(settled.state, [approved, e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)], NOW)
    settled = settle(state, risky_env())
    (intent,) = settled.events
    assert isinstance(intent, e.ToolRequested)
    assert intent.approval_hash == question.approval_hash
    assert intent.approval_sequence == question.asked_sequence + 1


def test_the_reason_of_a_rejection_reaches_the_model_as_the_result_of_the_call() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("deploy", to="prod")])], NOW)
    state = foresee(state, settle(state, risky_env()).events, NOW)
    rejected = e.InputReceived(
        question_id="approval_call_1_0", kind="approval", answer="use staging", by="you", decision="reject"
    )
    state = foresee(state, [rejected, e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)], NOW)
    settled = settle(state, risky_env())
    assert kinds(settled.events) == ["tool.completed", "model.requested"]
    last = settled.state.transcript[-1]
    assert isinstance(last, ToolItem)
    assert "use staging" in last.output


def test_the_other_calls_of_a_turn_run_before_it_waits_for_an_approval() -> None:
    made = [call("echo", 0), call("deploy", 1), call("echo", 2)]
    state = foresee(asked(owned()), [turn(1, calls=made)], NOW)
    settled = settle(state, risky_env())
    assert kinds(settled.events) == ["tool.requested", "tool.requested"]
    state = foresee(settled.state, [result("call_1_0"), result("call_1_2")], NOW)
    assert kinds(settle(state, risky_env()).events) == ["run.released", "input.requested"]


def test_an_uncertain_call_is_given_to_a_person_and_each_decision_is_carried_out() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("echo", 0)])], NOW)
    state = foresee(state, settle(state, env()).events, NOW)
    unsure = e.ToolUncertain(call_id="call_1_0", attempt=1, reason="died", host="h", boot="b9")
    settled = settle(foresee(state, [unsure], NOW), env())
    assert kinds(settled.events) == ["run.released", "reconciliation.required"]
    assert settled.state.status is RunStatus.RECONCILIATION_REQUIRED
    decisions: dict[Literal["accept", "retry", "fail"], str] = {
        "accept": "tool.completed",
        "retry": "tool.requested",
        "fail": "run.failed",
    }
    for decision, expected in decisions.items():
        decided = e.ReconciliationResolved(
            call_id="call_1_0", decision=decision, by="you", observation="it happened"
        )
        claimed = e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)
        after = settle(foresee(settled.state, [decided, claimed], NOW), env())
        assert after.events[0].type == expected, decision


def test_children_are_made_once_and_a_parent_waits_for_them_without_being_held() -> None:
    state = foresee(
        asked(owned()), [turn(1, calls=[call("delegate", 0, goal="a"), call("delegate", 1, goal="b")])], NOW
    )
    settled = settle(state, env())
    assert kinds(settled.events) == ["tool.requested", "tool.requested"]
    assert isinstance(settled.then, Do)
    assert len(settled.then.activities) == 2
    both = env()._replace(spawned=frozenset({"call_1_0", "call_1_1"}))
    settled = settle(settled.state, both)
    assert kinds(settled.events) == ["run.released"]
    assert settled.state.status is RunStatus.WAITING_FOR_CHILD
    finished = [
        e.ChildFinished(call_id=f"call_1_{n}", child_run_id="run_x", status=status, answer=f"answer {n}")
        for n, status in ((0, "COMPLETED"), (1, "FAILED"))
    ]
    claimed = e.RunClaimed(owner="y", boot="b2", epoch=2, attempt=2)
    state = foresee(settled.state, [finished[0], finished[1], claimed], NOW)
    settled = settle(state, both)
    results = [event for event in settled.events if isinstance(event, e.ToolCompleted)]
    assert [(result.ok, "answer" in result.output) for result in results] == [(True, True), (False, True)]


def test_a_pause_takes_effect_between_the_steps_and_a_resume_goes_on() -> None:
    state = foresee(asked(owned()), [turn(1, calls=[call("echo", 0)])], NOW)
    state = foresee(state, [*settle(state, env()).events, e.RunPauseRequested(by="you")], NOW)
    assert isinstance(settle(state, env(busy=True)).then, Do)
    settled = settle(foresee(state, [result("call_1_0")], NOW), env())
    assert kinds(settled.events) == ["run.released"]
    assert settled.state.status is RunStatus.PAUSED
    resumed = foresee(settled.state, [e.RunResumeRequested(by="you")], NOW)
    assert resumed.status is RunStatus.QUEUED
