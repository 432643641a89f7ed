"""What a project sees of the runs that it asked for. Pure.

Invariant: only what stands in a run's own log counts; what its model says of itself is quoted, never believed.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from libs.contracts.checks import CheckResult, CheckStatus, Verdict, Verification
from libs.contracts.projects import (
    ERROR_CHARS_MAX,
    EVIDENCE_CHARS_MAX,
    EVIDENCE_LINES_MAX,
    Evidence,
    FeatureSpec,
    Handoff,
)
from libs.contracts.run import RunState, RunStatus, StepResult
from libs.contracts.values import RunError, Usage

# Of each failed check's output, so that several fit one evidence.
_TAIL_CHARS = 1_500

# A run that was cut off with nothing against its work: the next session goes on where it stood.
UNFINISHED_CODES = frozenset(
    {"MAX_ITERATIONS", "BUDGET_EXCEEDED", "TIMEOUT", "CONTEXT_EXHAUSTED", "MAX_TOKENS"}
)


class RunSeen(NamedTuple):
    """A run as its log tells it now."""

    run_id: str
    status: RunStatus
    usage: Usage = Usage()
    deleted: bool = False
    error: RunError | None = None
    verification: Verification | None = None
    handoff: Handoff | None = None
    features: list[FeatureSpec] | None = None
    steps: tuple[StepResult, ...] = ()
    cancelled_by: str | None = None
    pause_requested: bool = False
    # For how long it has shown no sign of life, where its owner says so; and why the project itself ends it.
    silent_s: float | None = None
    stalled: str = ""

    @property
    def ended(self) -> bool:
        return self.deleted or self.status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)

    @property
    def passed(self) -> bool:
        """Whether a verifier proved what the run was to do: zero checks never pass."""
        return (
            self.status is RunStatus.COMPLETED
            and self.verification is not None
            and self.verification.status is Verdict.PASSED
        )

    def step(self, name: str) -> StepResult | None:
        """The result of the latest step of this name."""
        return next((step for step in reversed(self.steps) if step.name == name), None)


def seen(state: RunState, silent_s: float | None = None) -> RunSeen:
    """What of a folded run concerns its project; `silent_s` by `silences.py`."""
    return RunSeen(
        run_id=state.run_id,
        status=state.status,
        usage=state.usage,
        deleted=state.deleted,
        error=state.error,
        verification=state.verification,
        handoff=state.handoff,
        features=state.proposed,
        steps=state.steps,
        cancelled_by=state.cancel_requested_by,
        pause_requested=state.pause_requested,
        silent_s=silent_s,
    )


def gone(run_id: str) -> RunSeen:
    """A run that was deleted before its end was recorded: nothing of it is known any more."""
    return RunSeen(run_id, RunStatus.CANCELLED, deleted=True)


def error_of(run: RunSeen) -> RunError | None:
    """Why the run did not complete; `None` if it did."""
    if run.deleted:
        return RunError(error_code="CANCELLED", message="its run was deleted before its end was recorded")
    if run.status is RunStatus.CANCELLED and run.stalled:
        return RunError(error_code="STALLED", message=run.stalled)
    if run.status is RunStatus.CANCELLED:
        who = run.cancelled_by or "somebody"
        return RunError(error_code="CANCELLED", message=f"its run was cancelled by {who}")
    return run.error


def evidence_of(run: RunSeen, results: Sequence[CheckResult] | None = None) -> Evidence:
    """The evidence of a run's proof, or of the part `results` of it."""
    verdict = run.verification
    if verdict is None:
        return Evidence(run_id=run.run_id, output=_steps_output(run))
    judged = verdict.checks if results is None else list(results)
    return Evidence(
        run_id=run.run_id,
        verdict=verdict.status.value,
        digest=digest_of(verdict),
        snapshot=verdict.commit,
        checks=[_line(result) for result in judged[:EVIDENCE_LINES_MAX]],
        output=_output(judged) or _steps_output(run),
    )


def digest_of(verification: Verification) -> str:
    """The SHA-256 of a whole verification: what a commit's trailer names."""
    return hashlib.sha256(msgspec.json.encode(verification, order="deterministic")).hexdigest()


def _line(result: CheckResult) -> str:
    reason = f" ({result.reason})" if result.reason and result.status is CheckStatus.FAILED else ""
    return f"{result.status.value}: {result.kind} {result.subject}{reason}"[:EVIDENCE_CHARS_MAX]


def _output(results: Sequence[CheckResult]) -> str:
    failed = [result for result in results if result.status is CheckStatus.FAILED]
    parts = [f"{_line(result)}\n{result.output_tail.strip()[-_TAIL_CHARS:]}".strip() for result in failed]
    return "\n\n".join(parts)[:ERROR_CHARS_MAX]


def _steps_output(run: RunSeen) -> str:
    told = [
        f"{step.name} {'tells' if step.ok else 'failed'}:\n{step.output[-_TAIL_CHARS:]}"
        for step in run.steps
        if not step.ok or step.metadata.get("problem")
    ]
    return "\n\n".join(told)[:ERROR_CHARS_MAX]
