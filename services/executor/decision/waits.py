"""The part of the decision that lets go of a run: what it waits for, and what a person's word on a call becomes.

Invariant: a run suspends only when none of its calls is running, and what it waits for is the last event it records.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec

from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import CallState, Reconciled, RunState
from libs.contracts.values import ModelToolCall, RunError
from libs.contracts.visible import visible
from libs.policy.approval import approval_hash
from services.executor.decision.calls import answer_to, completed
from services.executor.tools.runtime import ASK_USER

# A living host that does not answer is mostly busy or about to be declared dead: the run waits for that elsewhere, each
# time twice as long, a quarter of an hour in all. A host that is silent for longer has a defect that a person must see.
SILENCE_PAUSE_S = 30.0
SILENCES_MAX = 5
# How soon a run that found no tool host at all looks again. It does for as long as that takes: nobody needs it before.
NO_HOST_PAUSE_S = 60.0


def silent(state: RunState, host: str, now: datetime) -> e.LogEvent:
    """What becomes of a run whose workspace is held by a living host that does not answer: it waits, a few times."""
    told = f"host {host}, which holds the workspace, lives and does not answer"
    if state.silences >= SILENCES_MAX:
        message = (
            f"{told}, {state.silences + 1} times in a row; look at its log, end it and start the task again"
        )
        return e.RunFailed(error=RunError(error_code="WORKSPACE_ERROR", message=message), usage=state.usage)
    retry_at = rfc3339(now + timedelta(seconds=SILENCE_PAUSE_S * 2**state.silences))
    return e.RunReleased(reason="failure", retry_at=retry_at, silent_host=host, message=told)


def unhosted(now: datetime) -> e.RunReleased:
    """What becomes of a run that needs a tool host where there is none: it holds no place while it waits, and says so."""
    return e.RunReleased(
        reason="failure",
        retry_at=rfc3339(now + timedelta(seconds=NO_HOST_PAUSE_S)),
        no_host=True,
        message="no tool host is there that can hold a workspace; start one (`perdure doctor` tells what lives)",
    )


def unmet(state: RunState, missing: list[str]) -> e.RunFailed:
    """What becomes of a run whose task names tools that the hosts do not offer: without them it would do something else."""
    message = (
        f"no tool host offers what the task names: {', '.join(missing)}; start the host or the MCP server that has it "
        "(GET /api/health lists all tools), then retry the run"
    )
    return e.RunFailed(error=RunError(error_code="DEPENDENCY_FAILED", message=message), usage=state.usage)


def suspend(
    state: RunState, open_calls: list[ModelToolCall], why: Callable[[ModelToolCall], str]
) -> list[e.LogEvent]:
    """Let go of the run until a person or a child has done what is open: reconciliation first, then the first question
    or approval in the model's order, then the children. `why` a call needs an approval."""
    unsure = next((call for call in state.calls if call.uncertain is not None), None)
    if unsure is not None:
        return [e.RunReleased(reason="suspended", waiting_for="reconciliation"), _reconciliation(unsure)]
    for call in open_calls:
        known = state.call(call.call_id)
        if known is None:
            return [e.RunReleased(reason="suspended", waiting_for="input"), _approval(call, why(call))]
        if known.name == ASK_USER.name and answer_to(state, call.call_id) is None:
            return [e.RunReleased(reason="suspended", waiting_for="input"), _question(known)]
    return [e.RunReleased(reason="suspended", waiting_for="child")]


def resolution(call: CallState, decided: Reconciled) -> e.LogEvent:
    """What a person's `accept` or `retry` becomes."""
    if decided.decision == "accept":
        return completed(call.call_id, ok=True, output=decided.observation or "")
    return again(call)


def again(call: CallState) -> e.ToolRequested:
    """The intent of the next attempt of a call, under the same idempotency key."""
    return e.ToolRequested(
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
        semantics=call.semantics,
        idempotency_key=call.idempotency_key,
        attempt=call.attempt + 1,
        approval_sequence=call.approval_sequence,
        approval_hash=call.approval_hash,
        needs_workspace=call.needs_workspace,
        timeout_s=call.timeout_s,
    )


def _reconciliation(call: CallState) -> e.ReconciliationRequired:
    uncertain = call.uncertain
    assert uncertain is not None
    return e.ReconciliationRequired(
        call_id=call.call_id,
        name=call.name,
        arguments=call.arguments,
        attempt=call.attempt,
        host=uncertain.host,
        boot=uncertain.boot,
        last_seen=uncertain.last_seen,
    )


def _question(call: CallState) -> e.InputRequested:
    return e.InputRequested(
        question_id=f"question_{call.call_id}",
        kind="question",
        question=str(call.arguments.get("question", "")),
        call_id=call.call_id,
        options=msgspec.convert(call.arguments.get("options") or [], list[str], strict=False),
    )


def _approval(call: ModelToolCall, why: str) -> e.InputRequested:
    arguments = call.arguments or {}
    return e.InputRequested(
        question_id=f"approval_{call.call_id}",
        kind="approval",
        question=f"May {call.name} be called with these arguments? The policy says: {visible(why)}.",
        call_id=call.call_id,
        options=["approve", "reject"],
        tool=call.name,
        arguments=arguments,
        approval_hash=approval_hash(call.name, arguments, call.call_id),
    )
