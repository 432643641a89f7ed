"""From a life record to the changes of rows that it means. Pure.

Invariant: a record means the same changes each time, and applying them twice is applying them once; kinds of events
that this version does not know pass through, the header still says the run's status.
"""

from typing import NamedTuple

import msgspec

from libs.contracts import events as e
from libs.contracts import project_events as p
from libs.contracts.envelope import Event, Record, WireEvent, decode_event, raw_events
from libs.contracts.errors import UNREADABLE, UnreadableRecord
from libs.contracts.ids import is_id
from libs.contracts.project import TERMINAL
from libs.contracts.projects import FeatureStatus, Phase
from libs.contracts.values import Listed, Usage
from libs.projection.schedules import ScheduleMade, ScheduleMoved, ScheduleRemoved, schedule_changes

# Raise it with every change of what is written here, of schema.sql, or of what a migration means: rows that an earlier
# version made are then made anew from the log.
FOLD_VERSION = 7
# What a list shows of a goal; the search looks at all of it.
TITLE_CHARS_MAX = 500


class RunMade(NamedTuple):
    run_id: str
    tenant: str
    task_id: str
    parent_run_id: str | None
    title: str
    searched: str
    status: str
    created_at: str
    last_sequence: int
    last_event_at: str
    workspace: str
    priority: str
    metadata: str
    project_id: str | None = None


class RunMoved(NamedTuple):
    """What a record changed about a run; `None` leaves a column as it is."""

    run_id: str
    status: str
    last_sequence: int
    last_event_at: str
    attempt: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    answer: str | None = None
    verdict: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class UsageCounted(NamedTuple):
    run_id: str
    requests: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: float | None


class RunRemoved(NamedTuple):
    run_id: str


class Asked(NamedTuple):
    run_id: str
    question_id: str
    kind: str
    question: str
    asked_at: str


class Answered(NamedTuple):
    run_id: str
    question_id: str
    answer: str
    answered_at: str


class ProjectMade(NamedTuple):
    project_id: str
    tenant: str
    name: str
    status: str
    phase: str
    created_at: str
    last_sequence: int
    last_event_at: str
    features_total: int


class ProjectMoved(NamedTuple):
    """What a record changed about a project: `None` leaves a column as it is, counts are added."""

    project_id: str
    status: str
    last_sequence: int
    last_event_at: str
    phase: str | None = None
    finished_at: str | None = None
    sessions: int | None = None
    listed: int = 0
    committed: int = 0


Change = (
    ProjectMade
    | ProjectMoved
    | ScheduleMade
    | ScheduleMoved
    | ScheduleRemoved
    | RunMade
    | RunMoved
    | UsageCounted
    | RunRemoved
    | Asked
    | Answered
)


def changes(record: Record) -> list[Change]:
    """The changes of rows that a life record means; none for logs of workspaces."""
    if is_id("project", record.log_id):
        return _project_changes(record)
    if is_id("schedule", record.log_id):
        return list(schedule_changes(record, _events(record)))
    if not is_id("run", record.log_id):
        return []
    found: list[Change] = []
    moved: RunMoved | None = None
    header = record.header
    for at, event in _events(record):
        match event.body if event is not None else None:
            case e.RunCreated() as body if event is not None:
                found.append(_made(event, body, header.state, header.last))
            case e.RunDeleted():
                return [RunRemoved(record.log_id)]
            case e.RunForked(listed=Listed() as listed) | e.RunImported(listed=Listed() as listed) if (
                event is not None
            ):
                found += [_copied(event, record.tenant, listed), _counted(event.run_id, listed.usage)]
                moved = _as_listed(RunMoved(record.log_id, header.state, header.last, at), listed)
            case _:
                moved = moved or RunMoved(record.log_id, header.state, header.last, at)
                if event is not None:
                    moved = _moved(moved, event)
                    found.extend(_rows_beside(event))
    return [*found, moved] if moved is not None else found


def _events(record: Record) -> list[tuple[str, Event | None]]:
    """The events with their times; `None` for one that this version does not know: only a fold has to stop at it."""
    try:
        wires = [_wire.decode(raw) for _, raw in raw_events(record)]
    except (UnreadableRecord, *UNREADABLE):
        return []
    found: list[tuple[str, Event | None]] = []
    for wire in wires:
        try:
            found.append((wire.at, decode_event(wire)))
        except (UnreadableRecord, *UNREADABLE):
            found.append((wire.at, None))
    return found


def _made(event: Event, body: e.RunCreated, status: str, last_sequence: int) -> RunMade:
    return RunMade(
        run_id=event.run_id,
        tenant=body.tenant,
        task_id=body.task_id,
        parent_run_id=body.parent.run_id if body.parent else None,
        title=body.task.goal[:TITLE_CHARS_MAX],
        searched=body.task.goal.casefold(),
        status=status,
        created_at=event.at,
        last_sequence=last_sequence,
        last_event_at=event.at,
        workspace=body.workspace,
        priority=body.task.priority,
        metadata=msgspec.json.encode(body.task.metadata).decode(),
        project_id=body.task.session.project_id if body.task.session is not None else None,
    )


def _copied(event: Event, tenant: str, listed: Listed) -> RunMade:
    """The row of a run whose history came as a copy, as it was before the marker."""
    return RunMade(
        run_id=event.run_id,
        tenant=tenant,
        task_id=listed.task_id,
        parent_run_id=None,
        title=listed.goal[:TITLE_CHARS_MAX],
        searched=listed.goal.casefold(),
        status="",
        created_at=listed.created_at,
        last_sequence=event.sequence - 1,
        last_event_at=event.at,
        workspace=listed.workspace,
        priority=listed.priority,
        metadata=msgspec.json.encode(listed.metadata).decode(),
    )


def _as_listed(moved: RunMoved, listed: Listed) -> RunMoved:
    return moved._replace(
        attempt=listed.attempt,
        started_at=listed.started_at,
        finished_at=listed.finished_at,
        answer=listed.answer,
        verdict=listed.verdict,
        error_code=listed.error.error_code if listed.error is not None else None,
        error_message=listed.error.message if listed.error is not None else None,
    )


def _moved(moved: RunMoved, event: Event) -> RunMoved:
    moved = moved._replace(last_event_at=event.at)
    match event.body:
        case e.RunClaimed() as body:
            return moved._replace(attempt=body.attempt, started_at=event.at)
        case e.RunCompleted() as body:
            return moved._replace(
                finished_at=event.at, answer=body.answer, verdict=body.verification.status.value
            )
        case e.RunFailed() as body:
            verdict = body.verification.status.value if body.verification else None
            return moved._replace(
                finished_at=event.at,
                answer=body.answer,
                verdict=verdict,
                error_code=body.error.error_code,
                error_message=body.error.message,
            )
        case e.RunCancelled() as body:
            return moved._replace(
                finished_at=event.at, error_code="CANCELLED", error_message=f"cancelled by {body.by}"
            )
        case _:
            return moved


def _rows_beside(event: Event) -> list[Change]:
    match event.body:
        case e.InputRequested() as body:
            return [Asked(event.run_id, body.question_id, body.kind, body.question, event.at)]
        case e.InputReceived() as body:
            return [Answered(event.run_id, body.question_id, body.answer, event.at)]
        case e.RunCompleted() | e.RunFailed() | e.RunCancelled() as body:
            return [_counted(event.run_id, body.usage)]
        case _:
            return []


def _counted(run_id: str, usage: Usage) -> UsageCounted:
    return UsageCounted(
        run_id=run_id,
        requests=usage.requests,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_usd=usage.cost_usd,
    )


def _project_changes(record: Record) -> list[Change]:
    header, found = record.header, list[Change]()
    moved: ProjectMoved | None = None
    for at, event in _events(record):
        body = event.body if event is not None else None
        if isinstance(body, p.ProjectCreated):
            found.append(_project_made(record, body, at))
            continue
        moved = moved or ProjectMoved(record.log_id, header.state, header.last, at)
        moved = _project_moved(moved, body)
    if moved is not None and header.state in _PROJECT_ENDS:
        moved = moved._replace(finished_at=moved.last_event_at)
    return [*found, moved] if moved is not None else found


_PROJECT_ENDS = frozenset(status.value for status in TERMINAL)


def _project_made(record: Record, body: p.ProjectCreated, at: str) -> ProjectMade:
    return ProjectMade(
        project_id=record.log_id,
        tenant=body.tenant,
        name=body.spec.name,
        status=record.header.state,
        phase=Phase.INITIALIZE.value,
        created_at=at,
        last_sequence=record.header.last,
        last_event_at=at,
        features_total=len(body.spec.map.items) if body.spec.map is not None else 0,
    )


def _project_moved(moved: ProjectMoved, body: object) -> ProjectMoved:
    match body:
        case p.PhaseChanged(phase=phase):
            return moved._replace(phase=phase.value)
        case p.FeatureListSet(features=features) | p.FeatureListAmended(features=features):
            return moved._replace(listed=moved.listed + len(features))
        case p.SessionStarted(session=session):
            return moved._replace(sessions=session)
        case p.ItemsBegun(items=items):
            return moved._replace(sessions=items[-1].session)
        case p.ItemsEnded(items=items):
            return moved._replace(committed=moved.committed + sum(item.done for item in items))
        case p.FeatureStateChanged(before=before, state=state):
            change = (state is FeatureStatus.COMMITTED) - (before is FeatureStatus.COMMITTED)
            return moved._replace(committed=moved.committed + change)
        case _:
            return moved


_wire = msgspec.json.Decoder(WireEvent)
