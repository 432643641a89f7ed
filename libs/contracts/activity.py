"""What a run does now, in one line for people.

Invariant: pure; every state has words, and they never take more than one line of a list.
"""

from libs.contracts.run import RunState, RunStatus

LINE_CHARS_MAX = 160


def activity(state: RunState) -> str:
    """What the run does now, in one line."""
    return _line(_activity(state))


def _activity(state: RunState) -> str:
    match state.status:
        case RunStatus.PENDING:
            return "waits to be started"
        case RunStatus.QUEUED:
            return "waits for a free executor"
        case RunStatus.RUNNING:
            return _running(state)
        case RunStatus.VERIFYING:
            return f"is being verified (round {state.verification_rounds})"
        case RunStatus.WAITING_FOR_INPUT:
            pending = state.pending_question
            if pending is not None and pending.kind == "approval":
                return f"waits for a person to approve {pending.tool}"
            return f"waits for an answer: {pending.question}" if pending else "waits for an answer"
        case RunStatus.WAITING_FOR_CHILD:
            return "waits for a run that it delegated to"
        case RunStatus.RECONCILIATION_REQUIRED:
            name = state.reconciliation.name if state.reconciliation else "a call"
            return f"waits for a person to say what became of {name}"
        case RunStatus.PAUSED:
            return "is paused"
        case RunStatus.RETRYING:
            return f"tries again at {state.retry_at}" if state.retry_at else "tries again soon"
        case RunStatus.COMPLETED:
            verdict = state.verification.status if state.verification else "UNVERIFIED"
            return f"completed ({verdict})"
        case RunStatus.FAILED:
            return f"failed: {state.error.error_code}: {state.error.message}" if state.error else "failed"
        case RunStatus.CANCELLED:
            return "was cancelled"


def _running(state: RunState) -> str:
    if state.cancel_requested_by is not None:
        return "is being cancelled"
    if state.pause_requested:
        return "is being paused"
    if state.calls:
        return "runs " + ", ".join(call.name for call in state.calls)
    if state.model_pending:
        return f"asks the model (turn {state.iteration})"
    return "is being worked on"


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= LINE_CHARS_MAX else flat[: LINE_CHARS_MAX - 1] + "…"
