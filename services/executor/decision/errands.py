"""Runs that ask no model: the steps of an errand, one after the other, and how such a run ends. Pure.

Invariant: a step has its intent in the log before it is done, under a call id that says its place; nothing of a step that
failed and must pass is followed by another.
"""

from libs.contracts import events as e
from libs.contracts.checks import Verdict, Verification
from libs.contracts.run import RunState, StepResult
from libs.contracts.sessions import Errand
from libs.contracts.tools import VERIFY, Semantics
from libs.contracts.values import RunError
from libs.contracts.workspaces import WORKSPACE_COMMIT

_CALL = "step-"
# What of a failed step's output the run's error repeats.
_TOLD_CHARS = 500


def is_over(state: RunState) -> bool:
    """Whether no step is left, or one failed that must pass."""
    done = len(state.steps)
    return done == len(state.task.errands) or _failure(state) is not None


def intent(state: RunState) -> e.LogEvent:
    """The intent of the next step."""
    place = len(state.steps)
    step = state.task.errands[place]
    call_id = f"{_CALL}{place}" + (f"-{state.begun_again}" if state.begun_again else "")
    if step.name == VERIFY:
        return e.VerificationRequested(
            round=state.verification_rounds + 1,
            checks=state.task.acceptance,
            idempotency_key=f"{state.run_id}:{call_id}",
        )
    return e.ToolRequested(
        call_id=call_id,
        name=step.name,
        arguments=_arguments(state, step, place),
        semantics=Semantics.IDEMPOTENT,
        idempotency_key=f"{state.run_id}:{call_id}",
        timeout_s=step.timeout_s,
    )


def _arguments(state: RunState, step: Errand, place: int) -> dict[str, object]:
    """The step's own; a commit behind a proof holds what was proved there and nothing that came since."""
    proved = any(before.name == VERIFY for before in state.task.errands[:place])
    if step.name != WORKSPACE_COMMIT or not proved or state.verification is None:
        return step.arguments
    return {**step.arguments, "verified": state.verification.commit}


def end(state: RunState) -> e.RunCompleted | e.RunFailed:
    """How the run ends once its steps are over."""
    failed = _failure(state)
    verdict = state.verification
    if failed is not None:
        step, result = failed
        said = result.output.strip()[-_TOLD_CHARS:]
        error = RunError(error_code=step.error_code, message=f"{step.label or step.name} failed: {said}")
        return e.RunFailed(error=error, usage=state.usage, verification=verdict)
    if verdict is not None and verdict.status is Verdict.FAILED:
        error = RunError(error_code="VERIFICATION_FAILED", message="a check failed; see the evidence")
        evidence = verdict.evidence
        return e.RunFailed(error=error, usage=state.usage, verification=verdict, evidence=evidence)
    told = [
        f"{step.label or step.name}: {'done' if result.ok else 'failed'}"
        for step, result in zip(state.task.errands, state.steps, strict=True)
    ]
    judged = verdict or Verification(status=Verdict.UNVERIFIED, round=0)
    return e.RunCompleted(
        answer="\n".join(told), verification=judged, usage=state.usage, evidence=judged.evidence
    )


def _failure(state: RunState) -> tuple[Errand, StepResult] | None:
    """The step that stopped the errand."""
    done = zip(state.task.errands, state.steps, strict=False)
    return next(((step, result) for step, result in done if step.must_pass and not result.ok), None)
