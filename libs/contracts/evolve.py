"""The fold: `evolve(state, event) -> state`, without clock, I/O or bus.

Invariant: the same events give the same state, everywhere and for ever (golden histories hold it to that); an event
that the table in `run.py` does not allow is a defect and raises `IllegalTransition`.
"""

from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from libs.contracts import events as e
from libs.contracts import evolve_work as work
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Event
from libs.contracts.errors import IllegalTransition
from libs.contracts.events import EventBody
from libs.contracts.run import (
    LEGAL,
    TERMINAL,
    ChildResult,
    Owner,
    PendingReconciliation,
    Question,
    Reconciled,
    RunState,
    RunStatus,
)
from libs.contracts.transcript import UserItem
from libs.contracts.values import RunError, Usage

_replace = msgspec.structs.replace


def evolve(state: RunState | None, event: Event) -> RunState:
    """The state after `event`. `None` is the state before the first event, which must be `run.created`."""
    body = event.body
    if state is None:
        return _created(event)
    if isinstance(body, e.RunCreated):
        raise IllegalTransition(f"{event.run_id} was created twice (event {event.sequence})")
    if event.sequence != state.sequence + 1:
        raise IllegalTransition(f"event {event.sequence} of {event.run_id} follows {state.sequence}: a gap")
    if state.status not in LEGAL.get(type(body), frozenset()):
        raise IllegalTransition(
            f"{body.type} (event {event.sequence}) is not legal in {state.status} ({event.run_id})"
        )
    folded = _FOLDS[type(body)](state, event)
    return _replace(folded, sequence=event.sequence, last_event_at=event.at)


def fold(state: RunState | None, events: Iterable[Event]) -> RunState | None:
    """`evolve` over many events."""
    for event in events:
        state = evolve(state, event)
    return state


def _created(event: Event) -> RunState:
    body = event.body
    if not isinstance(body, e.RunCreated) or event.sequence != 1:
        raise IllegalTransition(f"the log of {event.run_id} begins with {body.type} ({event.sequence})")
    return RunState(
        run_id=event.run_id,
        tenant=body.tenant,
        task_id=body.task_id,
        task=body.task,
        limits=body.limits,
        workspace=body.workspace,
        body_hash=body.body_hash,
        created_at=event.at,
        parent=body.parent,
        source=body.source,
        last_event_at=event.at,
    )


def _disowned(state: RunState, at: str) -> RunState:
    """The state without its owner; the time it was owned is counted."""
    if state.owner is None:
        return state
    owned = parse_rfc3339(at) - parse_rfc3339(state.owner.since)
    return _replace(state, owner=None, owned_ms=state.owned_ms + max(0, int(owned.total_seconds() * 1000)))


# --- The run's own life -----------------------------------------------------------------------------------------


def _start_requested(state: RunState, _: Event) -> RunState:
    return _replace(state, status=RunStatus.QUEUED)


def _claimed(state: RunState, event: Event) -> RunState:
    body = cast(e.RunClaimed, event.body)
    if body.epoch <= state.epoch:
        raise IllegalTransition(f"claim with epoch {body.epoch} after {state.epoch} ({event.run_id})")
    return _replace(
        _disowned(state, event.at),
        status=RunStatus.VERIFYING if state.verification_pending else RunStatus.RUNNING,
        epoch=body.epoch,
        attempt=body.attempt,
        owner=Owner(replica=body.owner, boot=body.boot, since=event.at),
        started_at=state.started_at or event.at,
        claims_without_progress=state.claims_without_progress + 1,
        retry_at=None,
        waiting_since=None,
        model_failure=None,
    )


_STATUS_OF_WAIT = {
    "input": RunStatus.WAITING_FOR_INPUT,
    "child": RunStatus.WAITING_FOR_CHILD,
    "reconciliation": RunStatus.RECONCILIATION_REQUIRED,
    "resume": RunStatus.PAUSED,
}


def _released(state: RunState, event: Event) -> RunState:
    body = cast(e.RunReleased, event.body)
    state = _replace(_disowned(state, event.at), waiting_since=event.sequence)
    match body.reason:
        case "shutdown":
            # A drained owner says nothing against the run.
            return _replace(
                state,
                status=RunStatus.QUEUED,
                claims_without_progress=max(0, state.claims_without_progress - 1),
            )
        case "failure":
            state = _replace(state, status=RunStatus.RETRYING, retry_at=body.retry_at)
            if body.silent_host is None and not body.tokens_used_up and not body.no_host:
                return state
            # The fault is the hosts' or the tenant's, not the run's: it is no reason to carry the run alone.
            return _replace(
                state,
                claims_without_progress=max(0, state.claims_without_progress - 1),
                silences=state.silences + (body.silent_host is not None),
            )
        case "suspended":
            waiting = _STATUS_OF_WAIT[body.waiting_for or "resume"]
            return _replace(
                state, status=waiting, pause_requested=state.pause_requested and waiting != "PAUSED"
            )


def _cancel_requested(state: RunState, event: Event) -> RunState:
    return _replace(state, cancel_requested_by=cast(e.RunCancelRequested, event.body).by)


def _pause_requested(state: RunState, event: Event) -> RunState:
    if state.status in (RunStatus.QUEUED, RunStatus.RETRYING):
        return _replace(state, status=RunStatus.PAUSED, retry_at=None, waiting_since=event.sequence)
    return _replace(state, pause_requested=True)


def _resume_requested(state: RunState, _: Event) -> RunState:
    if state.status is RunStatus.PAUSED:
        return _replace(state, status=RunStatus.QUEUED, pause_requested=False)
    return _replace(state, pause_requested=False)


def _forked(state: RunState, event: Event) -> RunState:
    """The conversation goes on; what was spent, asked, wanted or judged in the other run is no part of this one."""
    body = cast(e.RunForked, event.body)
    inbox = state.inbox
    if body.goal is not None:
        note = f"SYSTEM NOTE: this run goes on from an earlier one with another goal, which counts now: {body.goal}"
        inbox = (*inbox, UserItem(text=note, origin="runtime"))
    attachment = state.attachment
    if attachment is not None:
        # Only what the run began from is still true: the workspace is another one, and nobody holds it yet.
        attachment = _replace(attachment, workspace_id="", host="", replica="", snapshot=None)
    at_work = {call.call_id for call in state.calls if call.call_id not in state.child_results}
    return _replace(
        _unasked(_disowned(state, event.at)),
        status=RunStatus.QUEUED,
        task=_replace(state.task, goal=body.goal) if body.goal is not None else state.task,
        workspace=body.workspace or state.workspace,
        body_hash=body.body_hash if body.body_hash is not None else state.body_hash,
        source="fork",
        parent=None,
        created_at=event.at,
        started_at=None,
        finished_at=None,
        attempt=0,
        owned_ms=0,
        children_iterations=0,
        children_owned_ms=0,
        claims_without_progress=0,
        silences=0,
        retry_at=None,
        cancel_requested_by=None,
        pause_requested=False,
        inbox=inbox,
        told=frozenset(),
        client_requests=(),
        copied_iterations=state.iteration,
        model_failures=0,
        usage=Usage(),
        recorded_bytes=0,
        reconciled=None,
        children={call: child for call, child in state.children.items() if call in at_work},
        attachment=attachment,
        save_failures=0,
        saved_at=None,
        verification_pending=None,
        verification=None,
        verification_rounds=0,
        answer=None,
        error=None,
    )


def _imported(state: RunState, event: Event) -> RunState:
    if state.terminal:
        return state
    return _replace(
        _unasked(_disowned(state, event.at)), status=RunStatus.PAUSED, waiting_since=event.sequence
    )


def _unasked(state: RunState) -> RunState:
    """A copy without what its owner had under way: the model and people are asked again, by whoever owns the copy."""
    return _replace(
        state,
        waiting_since=None,
        model_pending=False,
        model_failure=None,
        questions=tuple(question for question in state.questions if question.answered_at is not None),
        reconciliation=None,
    )


def _deleted(state: RunState, _: Event) -> RunState:
    return _replace(state, deleted=True)


def _ended(state: RunState, event: Event, status: RunStatus) -> RunState:
    assert status in TERMINAL
    return _replace(
        _disowned(state, event.at), status=status, finished_at=event.at, model_pending=False, calls=()
    )


def _completed(state: RunState, event: Event) -> RunState:
    body = cast(e.RunCompleted, event.body)
    ended = _ended(state, event, RunStatus.COMPLETED)
    return _replace(ended, answer=body.answer, verification=body.verification, usage=body.usage)


def _failed(state: RunState, event: Event) -> RunState:
    body = cast(e.RunFailed, event.body)
    ended = _ended(state, event, RunStatus.FAILED)
    verification = body.verification or state.verification
    return _replace(ended, error=body.error, answer=body.answer, usage=body.usage, verification=verification)


def _cancelled(state: RunState, event: Event) -> RunState:
    body = cast(e.RunCancelled, event.body)
    error = RunError(error_code="CANCELLED", message=f"the run was cancelled by {body.by}")
    return _replace(_ended(state, event, RunStatus.CANCELLED), usage=body.usage, error=error)


# --- People and other runs --------------------------------------------------------------------------------------


def _input_requested(state: RunState, event: Event) -> RunState:
    body = cast(e.InputRequested, event.body)
    question = Question(
        question_id=body.question_id,
        kind=body.kind,
        question=body.question,
        call_id=body.call_id,
        asked_at=event.at,
        asked_sequence=event.sequence,
        options=body.options,
        tool=body.tool,
        arguments=body.arguments,
        approval_hash=body.approval_hash,
    )
    return _replace(state, questions=(*state.questions, question), waiting_since=event.sequence)


def _input_received(state: RunState, event: Event) -> RunState:
    body = cast(e.InputReceived, event.body)
    answered = tuple(
        _replace(
            question,
            answer=body.answer,
            decision=body.decision,
            answered_at=event.at,
            answered_sequence=event.sequence,
            by=body.by,
        )
        if question.question_id == body.question_id
        else question
        for question in state.questions
    )
    remembered = _remembered(state, body.client_request)
    return _replace(remembered, questions=answered, status=RunStatus.QUEUED, waiting_since=None)


def _message_received(state: RunState, event: Event) -> RunState:
    body = cast(e.MessageReceived, event.body)
    item = UserItem(text=body.text, origin="runtime" if body.by == "runtime" else "steering")
    remembered = _remembered(state, body.client_request)
    told = state.told if body.about is None else state.told | {body.about}
    return _replace(remembered, inbox=(*state.inbox, item), told=told)


def _reconciliation_required(state: RunState, event: Event) -> RunState:
    body = cast(e.ReconciliationRequired, event.body)
    pending = PendingReconciliation(
        call_id=body.call_id,
        name=body.name,
        arguments=body.arguments,
        attempt=body.attempt,
        host=body.host,
        boot=body.boot,
        last_seen=body.last_seen,
    )
    return _replace(state, reconciliation=pending, waiting_since=event.sequence)


def _reconciliation_resolved(state: RunState, event: Event) -> RunState:
    body = cast(e.ReconciliationResolved, event.body)
    decided = Reconciled(call_id=body.call_id, decision=body.decision, observation=body.observation)
    return _replace(
        _remembered(state, body.client_request),
        status=RunStatus.QUEUED,
        reconciliation=None,
        reconciled=decided,
        waiting_since=None,
    )


def _remembered(state: RunState, client_request: str | None) -> RunState:
    if client_request is None:
        return state
    return _replace(state, client_requests=(*state.client_requests, client_request))


def _child_finished(state: RunState, event: Event) -> RunState:
    body = cast(e.ChildFinished, event.body)
    result = ChildResult(child_run_id=body.child_run_id, status=body.status, answer=body.answer)
    state = _replace(
        state,
        child_results={**state.child_results, body.call_id: result},
        usage=state.usage.plus(body.usage),
        children_iterations=state.children_iterations + body.iterations,
        children_owned_ms=state.children_owned_ms + body.owned_ms,
    )
    if state.status is RunStatus.WAITING_FOR_CHILD:
        return _replace(state, status=RunStatus.QUEUED, waiting_since=None)
    return state


_FOLDS: dict[type[EventBody], Callable[[RunState, Event], RunState]] = {
    e.RunStartRequested: _start_requested,
    e.RunClaimed: _claimed,
    e.RunReleased: _released,
    e.RunCancelRequested: _cancel_requested,
    e.RunPauseRequested: _pause_requested,
    e.RunResumeRequested: _resume_requested,
    e.RunForked: _forked,
    e.RunImported: _imported,
    e.RunDeleted: _deleted,
    e.RunCompleted: _completed,
    e.RunFailed: _failed,
    e.RunCancelled: _cancelled,
    e.ModelRequested: work.model_requested,
    e.ModelCompleted: work.model_completed,
    e.ModelFailed: work.model_failed,
    e.ContextCompacted: work.compacted,
    e.ToolRequested: work.tool_requested,
    e.ToolCompleted: work.tool_completed,
    e.ToolUncertain: work.tool_uncertain,
    e.WorkspaceAttached: work.workspace_attached,
    e.WorkspaceSnapshotted: work.workspace_snapshotted,
    e.InputRequested: _input_requested,
    e.InputReceived: _input_received,
    e.MessageReceived: _message_received,
    e.ReconciliationRequired: _reconciliation_required,
    e.ReconciliationResolved: _reconciliation_resolved,
    e.ChildFinished: _child_finished,
    e.VerificationRequested: work.verification_requested,
    e.VerificationCompleted: work.verification_completed,
    e.LessonProposed: work.unchanged,
}
