"""What a command of a client means for a run: pure, one function a command.

Invariant: a decision looks at the folded state alone, so folding again after a lost race and deciding again is safe;
a refusal says the state and what to do instead.
"""

from libs.contracts.bodies import TEXT_CHARS_MAX
from libs.contracts.cancelling import cancelled
from libs.contracts.errors import IdempotencyConflict, InvalidState, NotFound
from libs.contracts.events import (
    InputReceived,
    LogEvent,
    MessageReceived,
    ReconciliationResolved,
    RunPauseRequested,
    RunResumeRequested,
    RunStartRequested,
)
from libs.contracts.http import Approval, Reconciliation, Reply, SteeringMessage
from libs.contracts.run import LIVE, RunState, RunStatus

# What may wait for a run's next turn: all of it goes into that turn, and a run that nobody owns may stand for weeks. Two of
# the longest messages together, or a hundred short ones, are more than a person has to say meanwhile.
UNREAD_MAX = 100
UNREAD_CHARS_MAX = 2 * TEXT_CHARS_MAX


def start(state: RunState, by: str) -> list[LogEvent]:
    """Queue a run that waits to be started."""
    if state.status is not RunStatus.PENDING:
        raise InvalidState(f"run {state.run_id} is {state.status}; only a PENDING run can be started")
    return [RunStartRequested(by=by)]


def cancel(state: RunState, by: str, *, owner_is_dead: bool) -> list[LogEvent]:
    """End a run that nobody works on in one record; ask the owner of any other. Again is the same as once."""
    if state.status is RunStatus.CANCELLED:
        return []
    if state.terminal:
        raise InvalidState(f"run {state.run_id} is {state.status} already; there is nothing left to cancel")
    return cancelled(state, by, owner_is_dead=owner_is_dead)


def reply(state: RunState, body: Reply, by: str, client_request: str | None) -> list[LogEvent]:
    """Answer the pending question. The fence lets exactly one of many replies find it pending."""
    if _carried_out(state, client_request):
        return []
    pending = state.pending_question
    if pending is None:
        raise InvalidState(
            f"run {state.run_id} is {state.status} and waits for no answer; "
            f"GET /api/runs/{state.run_id}/questions shows what was asked and answered"
        )
    if pending.kind != "question":
        raise InvalidState(
            f"run {state.run_id} waits for an approval of {pending.tool}, not for an answer; "
            f"POST /api/runs/{state.run_id}/approve decides it"
        )
    if body.question_id is not None and body.question_id != pending.question_id:
        raise InvalidState(
            f"question {body.question_id} is not the pending one; run {state.run_id} waits for {pending.question_id}"
        )
    return [
        InputReceived(
            question_id=pending.question_id,
            kind="question",
            answer=body.answer,
            by=by,
            client_request=client_request,
        )
    ]


def approve(state: RunState, body: Approval, by: str, client_request: str | None) -> list[LogEvent]:
    """Decide the pending approval of a call. The answer repeats the hash of what was shown: it holds for nothing else."""
    if _carried_out(state, client_request):
        return []
    pending = state.pending_question
    if pending is None:
        raise InvalidState(
            f"run {state.run_id} is {state.status} and waits for no approval; "
            f"GET /api/runs/{state.run_id}/questions shows what was decided"
        )
    if pending.kind != "approval":
        raise InvalidState(
            f"run {state.run_id} waits for an answer, not for an approval; POST /api/runs/{state.run_id}/reply gives it"
        )
    if body.call_id != pending.call_id:
        raise InvalidState(
            f"run {state.run_id} waits for the approval of {pending.call_id}, not of {body.call_id}; look at that one first"
        )
    return [
        InputReceived(
            question_id=pending.question_id,
            kind="approval",
            answer=body.reason,
            by=by,
            decision=body.decision,
            approval_hash=pending.approval_hash,
            client_request=client_request,
        )
    ]


def reconcile(state: RunState, body: Reconciliation, by: str, client_request: str | None) -> list[LogEvent]:
    """Say what became of the call whose outcome nobody knows; whoever owns the run next acts on it."""
    if _carried_out(state, client_request):
        return []
    pending = state.reconciliation
    if state.status is not RunStatus.RECONCILIATION_REQUIRED or pending is None:
        raise InvalidState(f"run {state.run_id} is {state.status}; none of its calls has to be reconciled")
    if body.call_id != pending.call_id:
        raise InvalidState(f"run {state.run_id} asks what became of {pending.call_id}, not of {body.call_id}")
    return [
        ReconciliationResolved(
            call_id=pending.call_id,
            decision=body.decision,
            by=by,
            observation=body.observation,
            client_request=client_request,
        )
    ]


def pause(state: RunState, by: str) -> list[LogEvent]:
    """Pause a run: at once when nobody works on it, else as soon as none of its calls is running. Again is as once."""
    if state.terminal or state.status is RunStatus.PENDING:
        raise InvalidState(
            f"run {state.run_id} is {state.status}; only a run that was started and has not ended pauses"
        )
    at_once = state.status in (RunStatus.QUEUED, RunStatus.RETRYING)
    if state.status is RunStatus.PAUSED or (state.pause_requested and not at_once):
        return []
    return [RunPauseRequested(by=by)]


def resume(state: RunState, by: str) -> list[LogEvent]:
    """Go on with a paused run, or take back a pause that has not come yet."""
    asked_to_pause = state.pause_requested and state.status in LIVE - {RunStatus.PENDING}
    if state.status is not RunStatus.PAUSED and not asked_to_pause:
        raise InvalidState(f"run {state.run_id} is {state.status} and not paused; there is nothing to resume")
    return [RunResumeRequested(by=by)]


def present(state: RunState) -> RunState:
    """The state of a run that is there. Raises `NotFound` for one that was deleted during a race."""
    if state.deleted:
        raise NotFound(f"there is no run {state.run_id}")
    return state


def message(state: RunState, body: SteeringMessage, by: str, client_request: str | None) -> list[LogEvent]:
    """Steer a run: the text reaches the model with its next turn."""
    if _carried_out(state, client_request):
        return []
    if state.terminal:
        raise InvalidState(f"run {state.run_id} is {state.status}; a message would reach nobody")
    unread = [item.text for item in state.inbox]
    if len(unread) >= UNREAD_MAX or sum(map(len, unread)) + len(body.text) > UNREAD_CHARS_MAX:
        raise InvalidState(
            f"run {state.run_id} is {state.status} and its model has not read {len(unread)} messages yet; wait for its next "
            "turn, or put long texts into files of the workspace"
        )
    return [MessageReceived(text=body.text, by=by, client_request=client_request)]


def _carried_out(state: RunState, client_request: str | None) -> bool:
    """Whether this very request of this client was carried out before."""
    if client_request is None:
        return False
    if client_request in state.client_requests:
        return True
    key = client_request.partition(".")[0]
    if any(known.partition(".")[0] == key for known in state.client_requests):
        raise IdempotencyConflict(
            "this Idempotency-Key was used on this run with another body; use a new key for a new request"
        )
    return False
