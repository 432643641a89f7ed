"""The fold of the work of a run: model turns, tool calls, the workspace, verification. `evolve.py` dispatches here.

Invariant: as in `evolve.py`; each function gives the state after its event and looks at nothing else.
"""

from typing import cast

import msgspec

from libs.contracts import events as e
from libs.contracts.checks import Verdict, Verification
from libs.contracts.envelope import Event
from libs.contracts.ids import child_run_id
from libs.contracts.projects import FeatureSpec, Handoff, bounded
from libs.contracts.run import (
    Attachment,
    CallState,
    Kept,
    ModelFailure,
    PendingVerification,
    RunState,
    RunStatus,
    StepResult,
    Uncertainty,
)
from libs.contracts.sessions import WRITE_FEATURES, WRITE_HANDOFF
from libs.contracts.tools import VERIFY, Semantics
from libs.contracts.transcript import AssistantItem, ToolItem, UserItem, lightened
from libs.contracts.values import CONTEXT_EXHAUSTED, Todo, Usage

_replace = msgspec.structs.replace

# Below this the overhead of a provider's own wording hides what its tokens are like, and nothing depends on it.
RATIO_TOKENS_MIN = 1_000
# A provider that counts without what it had cached, or with something of its own, teaches nothing beyond these.
RATIO_MIN, RATIO_MAX = 0.5, 4.0
# What the state keeps of the output of an errand's step; all of it stands in the log.
STEP_OUTPUT_CHARS = 4_000


# --- The model --------------------------------------------------------------------------------------------------


def model_requested(state: RunState, event: Event) -> RunState:
    body = cast(e.ModelRequested, event.body)
    return _replace(
        state,
        status=RunStatus.RUNNING,
        iteration=body.iteration,
        model_pending=True,
        offered=body.offered or state.offered,
        requested_tokens=round(body.estimated_tokens / max(body.token_ratio, RATIO_MIN)),
        transcript=state.transcript + state.inbox,
        inbox=(),
        verification_pending=None,
    )


def model_completed(state: RunState, event: Event) -> RunState:
    body = cast(e.ModelCompleted, event.body)
    turn = AssistantItem(
        iteration=body.iteration,
        content=body.content,
        calls=body.tool_calls,
        finish_reason=body.finish_reason,
        reasoning=body.reasoning,
    )
    return _replace(
        state,
        model_pending=False,
        model_failures=0,
        model_failure=None,
        claims_without_progress=0,
        silences=0,
        transcript=(*state.transcript, turn),
        calls=(),
        answered=frozenset(),
        usage=state.usage.plus(body.usage),
        recorded_bytes=_recorded(state, body),
        token_ratio=_learned_ratio(state, body.usage),
    )


def _learned_ratio(state: RunState, counted: Usage) -> float:
    """More tokens than estimated count at once, fewer bit by bit: too low an estimate costs a refused request."""
    if counted.estimated or counted.requests != 1 or state.requested_tokens < RATIO_TOKENS_MIN:
        return state.token_ratio
    seen = min(max(counted.input_tokens / state.requested_tokens, RATIO_MIN), RATIO_MAX)
    known = state.token_ratio
    return round(seen if seen > known else known + (seen - known) / 4, 3)


def model_failed(state: RunState, event: Event) -> RunState:
    body = cast(e.ModelFailed, event.body)
    if not body.final:
        return state
    failure = ModelFailure(error_code=body.error_code, message=body.message, retry_at=body.retry_at)
    return _replace(
        state,
        model_failures=state.model_failures + 1,
        model_failure=failure,
        # Whoever heard the endpoint out has lived through it: what keeps a run back is not the run.
        claims_without_progress=0,
        usage=state.usage.plus(body.usage),
        recorded_bytes=_recorded(state, body),
        refused_tokens=_refused_tokens(state, body),
    )


def _recorded(state: RunState, body: e.ModelCompleted | e.ModelFailed | e.ContextCompacted) -> int:
    return state.recorded_bytes + (body.wire.bytes if body.wire is not None else 0)


def _refused_tokens(state: RunState, failed: e.ModelFailed) -> int | None:
    if failed.error_code != CONTEXT_EXHAUSTED or not state.requested_tokens:
        return state.refused_tokens
    return min(state.requested_tokens, state.refused_tokens or state.requested_tokens)


# A reminder of where the run has been, not an index of its workspace.
KEPT_FILES_MAX = 60


def compacted(state: RunState, event: Event) -> RunState:
    body = cast(e.ContextCompacted, event.body)
    transcript, light = lightened(state.transcript, state.light, body.dropped)
    return _replace(
        state,
        compacted=body.dropped,
        transcript=transcript,
        light=light,
        summary=body.summary,
        kept=Kept(
            todos=state.todos, files=tuple(state.files)[-KEPT_FILES_MAX:], questions=len(state.questions)
        ),
        turn_tokens_max=body.turn_tokens_max or state.turn_tokens_max,
        # A request that was called too long is made again as it is now.
        requested_tokens=round(body.tokens_after / state.token_ratio) if state.model_pending else 0,
        model_failure=None,
        usage=state.usage.plus(body.usage),
        recorded_bytes=_recorded(state, body),
    )


# --- Tools ------------------------------------------------------------------------------------------------------


def tool_requested(state: RunState, event: Event) -> RunState:
    body = cast(e.ToolRequested, event.body)
    call = CallState(
        call_id=body.call_id,
        name=body.name,
        arguments=body.arguments,
        semantics=body.semantics,
        idempotency_key=body.idempotency_key,
        attempt=body.attempt,
        approval_sequence=body.approval_sequence,
        approval_hash=body.approval_hash,
        needs_workspace=body.needs_workspace,
        timeout_s=body.timeout_s,
    )
    others = tuple(known for known in state.calls if known.call_id != body.call_id)
    children = state.children
    if body.name == "delegate":
        children = {**children, body.call_id: child_run_id(state.run_id, body.call_id)}
    reconciled = state.reconciled
    if reconciled is not None and reconciled.call_id == body.call_id:
        reconciled = None
    return _replace(state, calls=(*others, call), children=children, reconciled=reconciled)


def tool_completed(state: RunState, event: Event) -> RunState:
    body = cast(e.ToolCompleted, event.body)
    turn = state.last_turn
    named = next((call.name for call in turn.calls if call.call_id == body.call_id), "") if turn else ""
    item = ToolItem(call_id=body.call_id, name=named, ok=body.ok, output=body.output, sequence=event.sequence)
    todos, files = state.todos, state.files
    if named == "write_todos" and body.ok and (call := state.call(body.call_id)) is not None:
        todos = tuple(msgspec.convert(call.arguments.get("todos", []), list[Todo]))
    path, digest = body.metadata.get("path"), body.metadata.get("sha256")
    if body.ok and isinstance(path, str) and isinstance(digest, str):
        files = {**files, path: digest}
    if body.ok and isinstance(several := body.metadata.get("files"), dict):
        changed = cast(dict[str, str | None], several)
        files = {known: was for known, was in files.items() if known not in changed}
        files |= {known: now for known, now in changed.items() if isinstance(now, str)}
    handoff, proposed = state.handoff, state.proposed
    if body.ok and (call := state.call(body.call_id)) is not None:
        if named == WRITE_HANDOFF:
            handoff = bounded(msgspec.convert(call.arguments, Handoff, strict=False))
        elif named == WRITE_FEATURES:
            proposed = msgspec.convert(call.arguments.get("features", []), list[FeatureSpec])
    made = state.call(body.call_id)
    effects = made is not None and made.needs_workspace and made.semantics is not Semantics.READ_ONLY
    reconciled = state.reconciled
    if reconciled is not None and reconciled.call_id == body.call_id:
        reconciled = None
    return _replace(
        state,
        claims_without_progress=0,
        silences=0,
        transcript=state.transcript if state.task.errands else (*state.transcript, item),
        steps=_with_step(state, body),
        handoff=handoff,
        proposed=proposed,
        calls=tuple(call for call in state.calls if call.call_id != body.call_id),
        answered=state.answered | {body.call_id},
        todos=todos,
        files=files,
        unsaved=state.unsaved + effects,
        reconciled=reconciled,
    )


def _with_step(state: RunState, body: e.ToolCompleted) -> tuple[StepResult, ...]:
    """The results of an errand's steps with this one. They come one after the other."""
    if not state.task.errands:
        return state.steps
    call = state.call(body.call_id)
    name = call.name if call is not None else ""
    output = body.output[-STEP_OUTPUT_CHARS:]
    return (*state.steps, StepResult(name=name, ok=body.ok, output=output, metadata=body.metadata))


def tool_uncertain(state: RunState, event: Event) -> RunState:
    body = cast(e.ToolUncertain, event.body)
    uncertain = Uncertainty(host=body.host, boot=body.boot, last_seen=body.last_seen)
    return _replace(
        state,
        calls=tuple(
            _replace(call, uncertain=uncertain) if call.call_id == body.call_id else call
            for call in state.calls
        ),
    )


def workspace_attached(state: RunState, event: Event) -> RunState:
    body = cast(e.WorkspaceAttached, event.body)
    baseline = state.attachment.baseline if state.attachment is not None else body.baseline
    attachment = Attachment(
        workspace_id=body.workspace_id,
        host=body.host,
        replica=body.replica,
        snapshot=body.snapshot,
        baseline=baseline or body.baseline,
    )
    inbox = state.inbox
    if body.changed:
        listed = ", ".join(body.changed)
        note = f"SYSTEM NOTE: these files changed since you last saw them, read them again: {listed}"
        inbox = (*inbox, UserItem(text=note, origin="runtime"))
    if body.lost:
        note = f"SYSTEM NOTE: the workspace moved to another machine; these effects may be missing there, check and repeat what you need: {'; '.join(body.lost)}"
        inbox = (*inbox, UserItem(text=note, origin="runtime"))
    # What a run finds in a workspace that was there before it has no other copy yet.
    found_unsaved = state.attachment is None and body.saved is None and state.task.workspace is not None
    files = {path: digest for path, digest in state.files.items() if path not in body.changed}
    project, found = state.project, body.instructions
    if found is not None and state.iteration == 0:
        project = found
        if found.problem is None:
            # The model has seen the file: should it change, that is said like of any other.
            files = {**files, found.path: found.sha256}
    if body.lost and state.task.errands:
        state = _begun_again(state)
    return _replace(
        state,
        attachment=attachment,
        inbox=inbox,
        files=files,
        project=project,
        silences=0,
        unsaved=state.unsaved + found_unsaved,
    )


def _begun_again(state: RunState) -> RunState:
    """An errand in a workspace that moved without what its steps did: each is idempotent, and nobody has to ask which of
    them is missing. A result of a call that was under way tells of the other machine."""
    return _replace(
        state,
        status=RunStatus.RUNNING,
        steps=(),
        calls=(),
        verification_pending=None,
        begun_again=state.begun_again + 1,
    )


def workspace_snapshotted(state: RunState, event: Event) -> RunState:
    body = cast(e.WorkspaceSnapshotted, event.body)
    failures = state.save_failures + 1 if body.problem is not None else 0
    return _replace(state, unsaved=0, saved_at=event.at, save_failures=failures)


def unchanged(state: RunState, _: Event) -> RunState:
    return state


# --- Verification -----------------------------------------------------------------------------------------------


def verification_requested(state: RunState, event: Event) -> RunState:
    body = cast(e.VerificationRequested, event.body)
    pending = PendingVerification(
        round=body.round, attempt=body.attempt, checks=body.checks, idempotency_key=body.idempotency_key
    )
    return _replace(
        state,
        status=RunStatus.VERIFYING,
        verification_pending=pending,
        verification_rounds=max(state.verification_rounds, body.round),
    )


def verification_completed(state: RunState, event: Event) -> RunState:
    body = cast(e.VerificationCompleted, event.body)
    verdict = Verification(status=body.status, round=body.round, checks=body.checks, commit=body.commit)
    transcript = state.transcript
    if body.feedback:
        transcript = (*transcript, UserItem(text=body.feedback, origin="verification"))
    steps = state.steps
    if state.task.errands:
        steps = (*steps, StepResult(name=VERIFY, ok=body.status is not Verdict.FAILED))
    return _replace(
        state,
        steps=steps,
        status=RunStatus.RUNNING,
        claims_without_progress=0,
        silences=0,
        verification_pending=None,
        verification=verdict,
        transcript=transcript,
    )
