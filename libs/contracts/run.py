"""A run as its log tells it: the state, its statuses, and the one table of legal transitions.

Invariant: a status is reached only through `LEGAL`; no waiting status holds an owner. `evolve.py` folds events into
the state; nothing else changes one.
"""

from enum import StrEnum

import msgspec

from libs.contracts import events as e
from libs.contracts.checks import Check, Verification
from libs.contracts.events import EventBody
from libs.contracts.projects import FeatureSpec, Handoff
from libs.contracts.tasks import Limits, Parent, TaskSpec
from libs.contracts.tools import Semantics
from libs.contracts.transcript import AssistantItem, Item, UserItem
from libs.contracts.values import Offered, ProjectInstructions, RunError, Todo, Usage

# The version of this fold: a checkpoint made by another one is not used.
FOLD_VERSION = 6
# Owners that a run may lose without any progress before it is carried alone.
FRUITLESS_CLAIMS_MAX = 2


class RunStatus(StrEnum):
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    VERIFYING = "VERIFYING"
    WAITING_FOR_INPUT = "WAITING_FOR_INPUT"
    WAITING_FOR_CHILD = "WAITING_FOR_CHILD"
    RECONCILIATION_REQUIRED = "RECONCILIATION_REQUIRED"
    PAUSED = "PAUSED"
    RETRYING = "RETRYING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


S = RunStatus
OWNED = frozenset({S.RUNNING, S.VERIFYING})
WAITING = frozenset(
    {S.WAITING_FOR_INPUT, S.WAITING_FOR_CHILD, S.RECONCILIATION_REQUIRED, S.PAUSED, S.RETRYING}
)
TERMINAL = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED})
LIVE = frozenset(RunStatus) - TERMINAL

# From which statuses each kind of event may follow. RUNNING and VERIFYING accept a claim because a take-over is one.
# A gateway cancels a run without a live owner in one record, so `run.cancelled` may follow every live status.
LEGAL: dict[type[EventBody], frozenset[RunStatus]] = {
    e.RunStartRequested: frozenset({S.PENDING}),
    e.RunClaimed: frozenset({S.QUEUED, S.RETRYING}) | OWNED,
    e.RunReleased: OWNED,
    e.RunCancelRequested: LIVE,
    e.RunPauseRequested: LIVE - {S.PENDING, S.PAUSED},
    e.RunResumeRequested: LIVE - {S.PENDING},
    e.RunForked: frozenset(RunStatus),
    e.RunImported: frozenset(RunStatus),
    e.RunDeleted: TERMINAL,
    e.RunCompleted: OWNED,
    e.RunFailed: LIVE,
    e.RunCancelled: LIVE,
    e.ModelRequested: OWNED,
    e.ModelCompleted: OWNED,
    e.ModelFailed: OWNED,
    e.ContextCompacted: OWNED,
    e.ToolRequested: OWNED,
    e.ToolCompleted: OWNED,
    # Behind the marker of a copy, which owns nothing: a fork is QUEUED, an import PAUSED.
    e.ToolUncertain: OWNED | {S.PAUSED, S.QUEUED},
    e.WorkspaceAttached: OWNED,
    e.WorkspaceSnapshotted: OWNED,
    e.InputRequested: frozenset({S.WAITING_FOR_INPUT}),
    e.InputReceived: frozenset({S.WAITING_FOR_INPUT}),
    e.MessageReceived: LIVE,
    e.ReconciliationRequired: frozenset({S.RECONCILIATION_REQUIRED}),
    e.ReconciliationResolved: frozenset({S.RECONCILIATION_REQUIRED}),
    e.ChildFinished: LIVE,
    e.VerificationRequested: OWNED,
    e.VerificationCompleted: frozenset({S.VERIFYING}),
    e.LessonProposed: LIVE,
}


# The state in the headers of a throw-away log on which `perdure doctor` experiments. No run is ever in it, so whoever
# looks for work or keeps lists passes it over.
EXPERIMENT = "EXPERIMENT"
# The state in the headers of a copied history until its marker (`run.forked`, `run.imported`) makes a run of it.
COPYING = "COPYING"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the run: the replica's name for people, the boot for the fence, since when (RFC 3339)."""

    replica: str
    boot: str
    since: str


class Uncertainty(msgspec.Struct, frozen=True, kw_only=True):
    """Who ran a call whose outcome nobody knows, and when that was last heard of."""

    host: str
    boot: str
    last_seen: str | None = None


class ChildResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a child ended; of one that did not complete, `answer` says why and what it had done."""

    child_run_id: str
    status: str
    answer: str


class CallState(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the last turn that is in the log and has no result yet."""

    call_id: str
    name: str
    arguments: dict[str, object]
    semantics: Semantics
    idempotency_key: str
    attempt: int = 1
    uncertain: Uncertainty | None = None
    approval_sequence: int | None = None
    approval_hash: str | None = None
    needs_workspace: bool = True
    # `None` in logs that are older than the field.
    timeout_s: float | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question or an approval that was asked, with its answer once there is one."""

    question_id: str
    kind: str
    question: str
    call_id: str
    asked_at: str
    asked_sequence: int
    options: list[str] = []
    tool: str | None = None
    arguments: dict[str, object] | None = None
    approval_hash: str | None = None
    answer: str | None = None
    decision: str | None = None
    answered_at: str | None = None
    answered_sequence: int | None = None
    by: str | None = None


class PendingReconciliation(msgspec.Struct, frozen=True, kw_only=True):
    """The call whose outcome nobody knows, and who saw it last."""

    call_id: str
    name: str
    arguments: dict[str, object]
    attempt: int
    host: str
    boot: str
    last_seen: str | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decided about an uncertain call; the next owner acts on it."""

    call_id: str
    decision: str
    observation: str | None = None


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """Where the run's workspace lives; `baseline` is the commit the run began from."""

    workspace_id: str
    host: str
    replica: str
    snapshot: str | None = None
    baseline: str | None = None


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the model gave nothing, after its client had tried all it may; `retry_at`: worth another go then."""

    error_code: str
    message: str
    retry_at: str | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What the run knew when its context was last compacted: the plan, the files it had read or written (the latest),
    how many questions it had asked. It stands in for the turns that left, unchanged until more leave."""

    todos: tuple[Todo, ...] = ()
    files: tuple[str, ...] = ()
    questions: int = 0


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a step of an errand."""

    name: str
    ok: bool
    output: str = ""
    metadata: dict[str, object] = {}


class PendingVerification(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    attempt: int
    checks: list[Check]
    idempotency_key: str


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a run's log up to `sequence` (the public sequence of the last folded event)."""

    run_id: str
    tenant: str
    task_id: str
    task: TaskSpec
    limits: Limits
    workspace: str
    body_hash: str
    created_at: str
    parent: Parent | None = None
    source: str = "api"

    sequence: int = 1
    status: RunStatus = S.PENDING
    last_event_at: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    deleted: bool = False

    # Ownership. `attempt` counts claims; `claims_without_progress` those since anything was achieved.
    epoch: int = 0
    attempt: int = 0
    owner: Owner | None = None
    owned_ms: int = 0
    claims_without_progress: int = 0
    # Owners in a row that let go because the workspace's host lives and does not answer.
    silences: int = 0
    retry_at: str | None = None
    waiting_since: int | None = None

    # Commands that the owner has not carried out yet.
    cancel_requested_by: str | None = None
    pause_requested: bool = False
    inbox: tuple[UserItem, ...] = ()
    # The limits that the model was told are near: as many as there are limits at most.
    told: frozenset[str] = frozenset()
    # Requests of clients that named an Idempotency-Key and were carried out (`http.client_request`).
    client_requests: tuple[str, ...] = ()

    # The conversation and what is open in it.
    iteration: int = 0
    # Iterations that another run made: they are history here, no part of the budget.
    copied_iterations: int = 0
    model_pending: bool = False
    model_failures: int = 0
    model_failure: ModelFailure | None = None
    transcript: tuple[Item, ...] = ()
    # What left the context: the items before `compacted`, with what stands for them; of those before `light` only the
    # beginnings are kept here. `turn_tokens_max` bounds a turn.
    compacted: int = 0
    light: int = 0
    summary: str | None = None
    kept: Kept = Kept()
    turn_tokens_max: int | None = None
    # Tokens by the model's own count for one by our estimate; our estimate of the request that is under way, and of
    # the shortest that a provider called too long.
    token_ratio: float = 1.0
    requested_tokens: int = 0
    refused_tokens: int | None = None
    calls: tuple[CallState, ...] = ()
    answered: frozenset[str] = frozenset()
    todos: tuple[Todo, ...] = ()
    usage: Usage = Usage()
    # What recordings of its model calls take in all (`PERDURE_RECORD_WIRE`).
    recorded_bytes: int = 0

    questions: tuple[Question, ...] = ()
    reconciliation: PendingReconciliation | None = None
    reconciled: Reconciled | None = None
    children: dict[str, str] = {}
    child_results: dict[str, ChildResult] = {}
    # What the children that have ended used of the run's own limits; their tokens and money are in `usage`.
    children_iterations: int = 0
    children_owned_ms: int = 0

    attachment: Attachment | None = None
    # What stands in the prompt; it never changes once the model was asked.
    project: ProjectInstructions | None = None
    # The tools that the model is offered; `None` before it was first asked.
    offered: Offered | None = None
    files: dict[str, str] = {}
    # Effects in the workspace since a snapshot was last made, or tried, and when that was; tries in a row that failed.
    unsaved: int = 0
    save_failures: int = 0
    saved_at: str | None = None
    verification_pending: PendingVerification | None = None
    verification: Verification | None = None
    verification_rounds: int = 0

    # What a session of a project leaves: its handoff, the features that it proposed, the results of its steps in order.
    handoff: Handoff | None = None
    proposed: list[FeatureSpec] | None = None
    steps: tuple[StepResult, ...] = ()
    # How often the steps of an errand were begun again, because the machine that had done them took that with it.
    begun_again: int = 0

    answer: str | None = None
    error: RunError | None = None

    @property
    def log_id(self) -> str:
        return self.run_id

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def carried_alone(self) -> bool:
        """Whether whoever claims the run next makes a process for it alone, so that it takes no other run with it."""
        return self.claims_without_progress >= FRUITLESS_CLAIMS_MAX

    @property
    def last_turn(self) -> AssistantItem | None:
        """The model's latest turn, or `None` before the first."""
        return next((item for item in reversed(self.transcript) if isinstance(item, AssistantItem)), None)

    @property
    def pending_question(self) -> Question | None:
        """The question that the run waits on now."""
        if self.status is not S.WAITING_FOR_INPUT or not self.questions:
            return None
        return self.questions[-1] if self.questions[-1].answered_at is None else None

    def call(self, call_id: str) -> CallState | None:
        return next((call for call in self.calls if call.call_id == call_id), None)
