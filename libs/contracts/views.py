"""What the HTTP API gives: the shape of every answer, and how a run's state becomes one.

Invariant: fields are only ever added here (readers ignore what they do not know); a view says nothing that the state
does not hold.
"""

import msgspec
from pydantic import BaseModel, ConfigDict

from libs.contracts.activity import activity
from libs.contracts.run import PendingReconciliation, Question, RunState, RunStatus
from libs.contracts.values import Usage
from libs.contracts.visible import visible_json

Object = dict[str, object]


class View(BaseModel):
    """An answer. Unknown fields are ignored, so an older client reads a newer gateway."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FieldProblem(View):
    field: str
    message: str


class ErrorView(View):
    """The body of every failure."""

    error_code: str
    message: str
    request_id: str
    details: list[FieldProblem] | None = None


class TaskCreated(View):
    task_id: str
    run_id: str
    status: RunStatus


class RunMade(View):
    """A run made of another one. `workspace_sequence`: its workspace is as it was after that event (null: it was not kept
    by then, or the run begins anew); changes of files up to `after_sequence` are made again from the log."""

    task_id: str
    run_id: str
    status: RunStatus
    from_run_id: str
    after_sequence: int
    workspace_sequence: int | None


class CommandAccepted(View):
    """The answer to a command: the run's status once the command was in its log."""

    run_id: str
    status: RunStatus


class UsageView(View):
    """Sums of the run and its children; `cost_usd` is null as soon as one part of it is unknown, and `estimated` says
    that the endpoint did not count some of it. Of the input tokens `cached_tokens` were read from the provider's cache and
    `cache_write_tokens` written into it. Lists do not know
    `estimated`."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False


class LeaseView(View):
    """Who holds the run now (null: nobody) and how often it was claimed by a new owner."""

    owner: str | None
    epoch: int


class RunErrorView(View):
    error_code: str
    message: str


class QuestionView(View):
    """A question or an approval, with its answer once there is one.

    `arguments_shown` is for the eyes of whoever approves: the JSON of `arguments` with every hidden character escaped.
    An approval is bound to `approval_hash`: SHA-256 over tool, call and arguments.
    """

    question_id: str
    kind: str
    question: str
    options: list[str]
    call_id: str
    tool: str | None
    arguments: Object | None
    arguments_shown: str | None = None
    approval_hash: str | None = None
    asked_at: str
    sequence: int
    answer: str | None
    decision: str | None
    answered_at: str | None
    answered_by: str | None


class QuestionList(View):
    run_id: str
    questions: list[QuestionView]
    next_cursor: str | None = None


class ReconciliationView(View):
    """A call whose outcome nobody knows: what it was to do, and who had it last. `sequence` is the event that asks."""

    call_id: str
    name: str
    arguments: Object
    arguments_shown: str
    attempt: int
    host: str
    boot: str
    last_seen: str | None
    sequence: int | None


class RunView(View):
    """A run, as its log tells it at the time of the request."""

    run_id: str
    task_id: str
    parent_run_id: str | None
    tenant: str
    goal: str
    status: RunStatus
    attempt: int
    iteration: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    activity: str
    pending_question: QuestionView | None
    pending_reconciliation: ReconciliationView | None
    answer: str | None
    verification: Object | None
    usage: UsageView
    limits: Object
    error: RunErrorView | None
    lease: LeaseView
    todos: list[Object]
    workspace: str
    priority: str
    metadata: dict[str, str]


class RunSummary(View):
    """A run in a list. It is folded from the events that change who must act next; the run itself says more."""

    run_id: str
    task_id: str
    parent_run_id: str | None
    tenant: str
    goal: str
    status: RunStatus
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    workspace: str
    priority: str
    metadata: dict[str, str]
    pending_question: str | None
    answer: str | None
    verdict: str | None
    error: RunErrorView | None
    usage: UsageView


class RunList(View):
    runs: list[RunSummary]
    next_cursor: str | None


class TaskView(View):
    """A task as accepted, with the runs made for it, newest first."""

    task_id: str
    run_id: str
    status: RunStatus
    created_at: str
    task: Object
    runs: list[RunSummary]


class EventView(View):
    """One event. `transient` ones have sequence 0 and are never stored."""

    sequence: int
    type: str
    run_id: str
    at: str
    payload: Object
    transient: bool = False


class EventsPage(View):
    """Events after a sequence; ask again with `next_after_sequence`. A page may be shorter than its limit."""

    run_id: str
    events: list[EventView]
    next_after_sequence: int


class DeadLetterView(View):
    """A message that nobody could handle. `subject` is where it came from, `body` its text (`\\x..` for other bytes)."""

    id: str
    kind: str
    at: str
    reason: str
    subject: str
    tenant: str | None
    run_id: str | None
    body: str
    body_bytes: int


class DeadLetterList(View):
    dead_letters: list[DeadLetterView]
    next_cursor: str | None


class DeadLetterReplayed(View):
    """A dead letter that was sent again to where it came from."""

    id: str
    subject: str


def run_view(state: RunState) -> RunView:
    """The public form of a run."""
    pending, error = state.pending_question, state.error
    return RunView(
        run_id=state.run_id,
        task_id=state.task_id,
        parent_run_id=state.parent.run_id if state.parent else None,
        tenant=state.tenant,
        goal=state.task.goal,
        status=state.status,
        attempt=state.attempt,
        iteration=state.iteration,
        created_at=state.created_at,
        started_at=state.started_at,
        finished_at=state.finished_at,
        last_sequence=state.sequence,
        last_event_at=state.last_event_at,
        activity=activity(state),
        pending_question=question_view(pending) if pending else None,
        pending_reconciliation=reconciliation_view(state),
        answer=state.answer,
        verification=_object(state.verification),
        usage=usage_view(state.usage),
        limits=_object(state.limits) or {},
        error=RunErrorView(error_code=error.error_code, message=error.message) if error else None,
        lease=LeaseView(owner=state.owner.replica if state.owner else None, epoch=state.epoch),
        todos=[_object(todo) or {} for todo in state.todos],
        workspace=state.workspace,
        priority=state.task.priority,
        metadata=state.task.metadata,
    )


def task_view(state: RunState, runs: list[RunSummary]) -> TaskView:
    """A task by its first run, whose state carries what was asked for."""
    return TaskView(
        task_id=state.task_id,
        run_id=state.run_id,
        status=state.status,
        created_at=state.created_at,
        task=_object(state.task) or {},
        runs=runs,
    )


def question_view(question: Question) -> QuestionView:
    return QuestionView(
        question_id=question.question_id,
        kind=question.kind,
        question=question.question,
        options=question.options,
        call_id=question.call_id,
        tool=question.tool,
        arguments=question.arguments,
        arguments_shown=visible_json(question.arguments) if question.arguments is not None else None,
        approval_hash=question.approval_hash,
        asked_at=question.asked_at,
        sequence=question.asked_sequence,
        answer=question.answer,
        decision=question.decision,
        answered_at=question.answered_at,
        answered_by=question.by,
    )


def reconciliation_view(state: RunState) -> ReconciliationView | None:
    """What a person has to say before the run goes on; `None` unless it waits for that now."""
    pending: PendingReconciliation | None = state.reconciliation
    if pending is None or state.status is not RunStatus.RECONCILIATION_REQUIRED:
        return None
    return ReconciliationView(
        call_id=pending.call_id,
        name=pending.name,
        arguments=pending.arguments,
        arguments_shown=visible_json(pending.arguments),
        attempt=pending.attempt,
        host=pending.host,
        boot=pending.boot,
        last_seen=pending.last_seen,
        sequence=state.waiting_since,
    )


def usage_view(usage: Usage) -> UsageView:
    return UsageView(
        requests=usage.requests,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_usd=usage.cost_usd,
        estimated=usage.estimated,
    )


def _object(value: msgspec.Struct | None) -> Object | None:
    if value is None:
        return None
    return msgspec.convert(msgspec.to_builtins(value), Object)
