"""Every event of a run, frozen, in the past tense (contract, section 4).

Invariant: an event says what became true and carries all that the fold needs; nothing else may be consulted to
understand a log. Adding a field with a default is the only change a released event may see (`schema.lock.json`).
"""

from typing import Literal

import msgspec

from libs.contracts.checks import Check, CheckResult, Verdict, Verification
from libs.contracts.eventbody import EventBody
from libs.contracts.tasks import Limits, Parent, TaskSpec
from libs.contracts.tools import Semantics
from libs.contracts.values import Listed, ModelToolCall, Offered, RunError, Usage, WireRecording
from libs.contracts.workspaces import WorkspaceAttached, WorkspaceSnapshotted

# --- The run's own life -----------------------------------------------------------------------------------------


class RunCreated(EventBody, frozen=True, kw_only=True):
    type = "run.created"
    life = True
    tenant: str
    task_id: str
    task: TaskSpec
    limits: Limits
    workspace: str
    body_hash: str
    parent: Parent | None = None
    source: str = "api"


class RunStartRequested(EventBody, frozen=True, kw_only=True):
    type = "run.start_requested"
    life = True
    by: str


class RunClaimed(EventBody, frozen=True, kw_only=True):
    type = "run.claimed"
    life = True
    owner: str
    boot: str
    epoch: int
    attempt: int


class RunReleased(EventBody, frozen=True, kw_only=True):
    """The owner let go. `waiting_for`: what a suspended run waits for; `silent_host`: one that lives and never answered;
    `tokens_used_up`: the tenant may use no more of them today; `no_host`: there is none that its tools could be on."""

    type = "run.released"
    life = True
    reason: Literal["suspended", "shutdown", "failure"]
    waiting_for: Literal["input", "child", "reconciliation", "resume"] | None = None
    retry_at: str | None = None
    message: str | None = None
    silent_host: str | None = None
    tokens_used_up: bool = False
    no_host: bool = False


class RunCancelRequested(EventBody, frozen=True, kw_only=True):
    type = "run.cancel_requested"
    life = True
    by: str


class RunPauseRequested(EventBody, frozen=True, kw_only=True):
    type = "run.pause_requested"
    life = True
    by: str


class RunResumeRequested(EventBody, frozen=True, kw_only=True):
    type = "run.resume_requested"
    life = True
    by: str


class RunForked(EventBody, frozen=True, kw_only=True):
    """The run goes on from a copy of `origin`'s events up to `sequence`, with a `workspace` of its own that was brought
    back as it was after its event `workspace_sequence` (`None`: nothing was kept by then). `body_hash` is that of the
    request. `source_run_id` is retired: the contract calls it `from`."""

    type = "run.forked"
    life = True
    sequence: int
    origin: str = msgspec.field(default="", name="from")
    source_run_id: str = ""
    goal: str | None = None
    workspace_sequence: int | None = None
    workspace: str | None = None
    body_hash: str | None = None
    by: str = ""
    listed: Listed | None = None


class RunImported(EventBody, frozen=True, kw_only=True):
    """The run came from another deployment, where it had `sequence` events. `source_run_id` is retired, as above."""

    type = "run.imported"
    life = True
    sequence: int
    origin: str = msgspec.field(default="", name="from")
    source_run_id: str = ""
    listed: Listed | None = None


class RunDeleted(EventBody, frozen=True, kw_only=True):
    """The tombstone: never shown, its hash lets a reused key answer 410."""

    type = "run.deleted"
    life = True
    tombstone = True
    body_hash: str
    by: str


class RunCompleted(EventBody, frozen=True, kw_only=True):
    type = "run.completed"
    life = True
    answer: str
    verification: Verification
    usage: Usage
    evidence: list[str] = msgspec.field(default_factory=list[str])


class RunFailed(EventBody, frozen=True, kw_only=True):
    type = "run.failed"
    life = True
    error: RunError
    usage: Usage
    verification: Verification | None = None
    answer: str | None = None
    evidence: list[str] = msgspec.field(default_factory=list[str])


class RunCancelled(EventBody, frozen=True, kw_only=True):
    type = "run.cancelled"
    life = True
    by: str
    usage: Usage


# --- The model --------------------------------------------------------------------------------------------------


class ModelRequested(EventBody, frozen=True, kw_only=True):
    """`estimated_tokens` are the whole request's, tools included, times `RunState.token_ratio`. `offered`: the tools that
    the model is offered from here on (`None`: as before)."""

    type = "model.requested"

    iteration: int
    model: str
    message_count: int
    estimated_tokens: int
    token_ratio: float = 1.0
    offered: Offered | None = None


class ModelCompleted(EventBody, frozen=True, kw_only=True):
    type = "model.completed"

    iteration: int
    content: str
    tool_calls: list[ModelToolCall]
    finish_reason: str
    usage: Usage
    latency_ms: int
    reasoning: str = ""
    model: str = ""
    attempt: int = 1
    wire: WireRecording | None = None


class ModelFailed(EventBody, frozen=True, kw_only=True):
    """A model call gave nothing usable; unless `final`, its client tries again at `retry_at`."""

    type = "model.failed"

    iteration: int
    error_code: str
    message: str
    attempt: int
    retry_at: str | None = None
    usage: Usage = Usage()
    final: bool = True
    wire: WireRecording | None = None


class ContextCompacted(EventBody, frozen=True, kw_only=True):
    """Older turns left the context: the first `dropped` items of the transcript, `summary` in their place. `usage` is
    what asking for one cost. From here on a turn is shown with at most `turn_tokens_max` (`None`: as before)."""

    type = "context.compacted"

    strategy: str
    tokens_before: int
    tokens_after: int
    dropped: int
    summary: str | None = None
    usage: Usage = Usage()
    turn_tokens_max: int | None = None
    wire: WireRecording | None = None


# --- Tools ------------------------------------------------------------------------------------------------------


class ToolRequested(EventBody, frozen=True, kw_only=True):
    """The intent of a call. `needs_workspace` says where it goes and `timeout_s` how long it may take, whatever the
    catalog says by the time it is repeated."""

    type = "tool.requested"

    call_id: str
    name: str
    arguments: dict[str, object]
    semantics: Semantics
    idempotency_key: str
    attempt: int = 1
    approval_sequence: int | None = None
    approval_hash: str | None = None
    needs_workspace: bool = True
    timeout_s: float | None = None


class ToolCompleted(EventBody, frozen=True, kw_only=True):
    type = "tool.completed"

    call_id: str
    ok: bool
    output: str
    duration_ms: int
    metadata: dict[str, object] = msgspec.field(default_factory=dict[str, object])


class ToolUncertain(EventBody, frozen=True, kw_only=True):
    """The outcome of a call is unknown; `attempt` is the one that nobody can account for."""

    type = "tool.uncertain"

    call_id: str
    attempt: int
    reason: str
    host: str = ""
    boot: str = ""
    last_seen: str | None = None


# --- People and other runs --------------------------------------------------------------------------------------


class InputRequested(EventBody, frozen=True, kw_only=True):
    type = "input.requested"
    life = True
    question_id: str
    kind: Literal["question", "approval"]
    question: str
    call_id: str
    options: list[str] = msgspec.field(default_factory=list[str])
    tool: str | None = None
    arguments: dict[str, object] | None = None
    approval_hash: str | None = None


class InputReceived(EventBody, frozen=True, kw_only=True):
    type = "input.received"
    life = True
    question_id: str
    kind: Literal["question", "approval"]
    answer: str
    by: str
    decision: Literal["approve", "reject"] | None = None
    approval_hash: str | None = None
    # The client's own Idempotency-Key and body, hashed: its retry finds them here and gets the first answer again.
    client_request: str | None = None


class MessageReceived(EventBody, frozen=True, kw_only=True):
    """A steering message, or a note of the runtime to the model (`by="runtime"`): of a limit that is near, `about` it."""

    type = "message.received"

    text: str
    by: str
    client_request: str | None = None
    about: str | None = None


class ReconciliationRequired(EventBody, frozen=True, kw_only=True):
    type = "reconciliation.required"
    life = True
    call_id: str
    name: str
    arguments: dict[str, object]
    attempt: int
    host: str
    boot: str
    last_seen: str | None = None


class ReconciliationResolved(EventBody, frozen=True, kw_only=True):
    type = "reconciliation.resolved"
    life = True
    call_id: str
    decision: Literal["accept", "retry", "fail"]
    by: str
    observation: str | None = None
    client_request: str | None = None


class ChildFinished(EventBody, frozen=True, kw_only=True):
    """A child has ended. What it used, its own children's share included, counts on its parent from here on: `usage`, turns
    (`iterations`) and owned time."""

    type = "child.finished"
    life = True
    call_id: str
    child_run_id: str
    status: str
    answer: str
    usage: Usage = Usage()
    iterations: int = 0
    owned_ms: int = 0


# --- Verification and learning ----------------------------------------------------------------------------------


class VerificationRequested(EventBody, frozen=True, kw_only=True):
    """The intent of a verification call; a dead verifier's round is requested again with attempt + 1."""

    type = "verification.requested"
    life = True
    round: int
    checks: list[Check]
    idempotency_key: str
    attempt: int = 1


class VerificationCompleted(EventBody, frozen=True, kw_only=True):
    type = "verification.completed"
    life = True
    round: int
    status: Verdict
    checks: list[CheckResult]
    commit: str | None = None
    feedback: str = ""


class LessonProposed(EventBody, frozen=True, kw_only=True):
    type = "lesson.proposed"

    lesson_id: str
    text: str


LogEvent = (
    RunCreated
    | RunStartRequested
    | RunClaimed
    | RunReleased
    | RunCancelRequested
    | RunPauseRequested
    | RunResumeRequested
    | RunForked
    | RunImported
    | RunDeleted
    | RunCompleted
    | RunFailed
    | RunCancelled
    | ModelRequested
    | ModelCompleted
    | ModelFailed
    | ContextCompacted
    | ToolRequested
    | ToolCompleted
    | ToolUncertain
    | WorkspaceAttached
    | WorkspaceSnapshotted
    | InputRequested
    | InputReceived
    | MessageReceived
    | ReconciliationRequired
    | ReconciliationResolved
    | ChildFinished
    | VerificationRequested
    | VerificationCompleted
    | LessonProposed
)
