"""What the HTTP API gives of projects, and how a project's state becomes a progress card.

Invariant: as in `views.py`: fields are only added, and a view says nothing that the states do not hold; status and proof
of a feature stand beside each other.
"""

from datetime import datetime, timedelta

import msgspec

from libs.contracts.activity import activity
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.items import item_id
from libs.contracts.project import Feature, ProjectState, Waiting, Work
from libs.contracts.projects import FeatureStatus, Handoff, Phase, ProjectStatus
from libs.contracts.run import RunState
from libs.contracts.sessions import Stage
from libs.contracts.views import Object, UsageView, View, usage_view


class ProjectCreated(View):
    project_id: str
    status: ProjectStatus
    phase: Phase


class ProjectCommandAccepted(View):
    """The answer to a command: the project's status once the command was in its log."""

    project_id: str
    status: ProjectStatus


class ActiveView(View):
    """What a session is at now. `activity` says in one line what its run does, `attempt` counts from 1."""

    session: int
    kind: str
    stage: str | None
    feature_id: str | None
    title: str | None
    attempt: int
    run_id: str | None
    run_status: str | None
    activity: str
    started_at: str
    last_event_at: str | None


class RetryView(View):
    """A session that begins later: the whole queue of them stands on the card."""

    at: str
    feature_id: str | None
    attempt: int
    error: str


class PaceView(View):
    """Committed features an hour while the project was active, and when it ends at this pace (null: not known yet)."""

    active_s: float
    committed_per_hour: float | None
    remaining: int
    eta: str | None


class HandoffView(View):
    done: list[str]
    in_progress: list[str]
    next: list[str]
    decisions: list[str]
    pitfalls: list[str]
    how_to_verify: list[str]


class LastSessionView(View):
    session: int
    outcome: str
    reason: str
    feature_id: str | None
    at: str


class BlockView(View):
    """Why nothing goes on until somebody resumes the project."""

    cap: str
    reason: str


class ProjectView(View):
    """The progress card."""

    project_id: str
    tenant: str
    name: str
    brief: str
    status: ProjectStatus
    phase: Phase
    created_at: str
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    active: list[ActiveView]
    features: dict[str, int]
    features_total: int
    sessions: int
    attempt: int | None
    last_error: str | None
    next_retry: RetryView | None
    retries: list[RetryView]
    usage: UsageView
    pace: PaceView
    handoff: HandoffView
    last_session: LastSessionView | None
    blocked: BlockView | None
    list_problems: list[str]
    workspace: str
    workspace_commit: str | None
    limits: Object
    max_attempts_per_feature: int


class EvidenceView(View):
    """Why a feature is where it is: the verdict with its digest and lines, and the commit that git answered with."""

    run_id: str | None
    verdict: str | None
    digest: str | None
    checks: list[str]
    commit: str | None
    output: str


class FeatureView(View):
    id: str
    title: str
    description: str
    acceptance: list[Object]
    depends_on: list[str]
    priority: int
    status: FeatureStatus
    verified: bool
    attempts: int
    failures: int
    regressions: int
    commit: str | None
    last_error: str | None
    side_ref: str | None
    changed_at: str | None
    evidence: EvidenceView | None


class FeatureList(View):
    project_id: str
    features: list[FeatureView]
    next_cursor: None = None


class ProjectSummary(View):
    """A project as lists show it."""

    project_id: str
    tenant: str
    name: str
    status: ProjectStatus
    phase: Phase
    created_at: str
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    committed: int
    features_total: int
    sessions: int


class ProjectList(View):
    projects: list[ProjectSummary]
    next_cursor: str | None


def project_view(state: ProjectState, runs: dict[str, RunState], now: datetime) -> ProjectView:
    """The card of a project; `runs` are those that its sessions have going now."""
    usage = state.usage
    for run in runs.values():
        usage = usage.plus(run.usage)
    active = [_active(state, work, runs.get(work.run_id or "")) for work in state.works.values()]
    retries = [_retry(state, wait) for lane, wait in state.waits.items() if lane not in state.works]
    return ProjectView(
        project_id=state.project_id,
        tenant=state.tenant,
        name=state.spec.name,
        brief=state.spec.brief,
        status=state.status,
        phase=_phase(state, runs),
        created_at=state.created_at,
        finished_at=state.finished_at,
        last_sequence=state.sequence,
        last_event_at=state.last_event_at,
        active=active,
        features={status.value: state.count(status) for status in FeatureStatus},
        features_total=state.total,
        sessions=state.sessions,
        attempt=active[0].attempt if active else None,
        last_error=state.last_error or None,
        next_retry=min(retries, key=lambda retry: retry.at, default=None),
        retries=retries,
        usage=usage_view(usage),
        pace=_pace(state, now),
        handoff=_handoff(state.handoff),
        last_session=_last_session(state),
        blocked=BlockView(cap=state.block.cap, reason=state.block.reason) if state.block else None,
        list_problems=state.problems,
        workspace=state.workspace,
        workspace_commit=state.head,
        limits=_object(state.limits),
        max_attempts_per_feature=state.attempts_max,
    )


def feature_view(feature: Feature) -> FeatureView:
    spec, evidence = feature.spec, feature.evidence
    return FeatureView(
        id=spec.id,
        title=spec.title,
        description=spec.description,
        acceptance=[_object(check) for check in spec.acceptance],
        depends_on=spec.depends_on,
        priority=spec.priority,
        status=feature.state,
        verified=feature.state in (FeatureStatus.VERIFIED, FeatureStatus.COMMITTED),
        attempts=feature.sessions,
        failures=feature.failures,
        regressions=feature.regressions,
        commit=feature.commit,
        last_error=feature.last_error or None,
        side_ref=feature.side_ref,
        changed_at=feature.changed_at or None,
        evidence=EvidenceView(
            run_id=evidence.run_id,
            verdict=evidence.verdict,
            digest=evidence.digest,
            checks=evidence.checks,
            commit=evidence.commit,
            output=evidence.output,
        )
        if evidence is not None
        else None,
    )


def feature_views(state: ProjectState) -> list[FeatureView]:
    """All features in the order of the list; of a project over items, its items."""
    if state.items is not None:
        return [_item_view(state, index) for index in range(state.total)]
    return [feature_view(feature) for feature in state.features.values()]


def _item_view(state: ProjectState, index: int) -> FeatureView:
    items, mapped = state.items, state.spec.map
    assert items is not None
    assert mapped is not None
    going, waiting, failed = items.going.get(index), items.waiting.get(index), items.failed.get(index)
    tried = failed or waiting
    if index in items.skipped:
        status = FeatureStatus.SKIPPED
    elif failed is not None:
        status = FeatureStatus.BLOCKED
    elif going is not None:
        status = FeatureStatus.IN_PROGRESS
    elif waiting is not None or index >= items.next:
        status = FeatureStatus.PENDING
    else:
        status = FeatureStatus.COMMITTED
    return FeatureView(
        id=item_id(index),
        title=mapped.items[index],
        description="",
        acceptance=[],
        depends_on=[],
        priority=100,
        status=status,
        verified=status is FeatureStatus.COMMITTED and bool(mapped.acceptance),
        attempts=going.attempt if going is not None else tried.attempts if tried is not None else 0,
        failures=tried.attempts if tried is not None else 0,
        regressions=0,
        commit=None,
        last_error=tried.error if tried is not None else None,
        side_ref=None,
        changed_at=None,
        evidence=None,
    )


def _active(state: ProjectState, work: Work, run: RunState | None) -> ActiveView:
    feature = state.features.get(work.feature_id or "")
    return ActiveView(
        session=work.session,
        kind=work.kind.value,
        stage=work.stage.value if work.stage is not None else None,
        feature_id=work.feature_id,
        title=feature.spec.title if feature is not None else None,
        attempt=work.attempt,
        run_id=work.run_id,
        run_status=run.status.value if run is not None else None,
        activity=activity(run) if run is not None else _between(work),
        started_at=work.started_at,
        last_event_at=run.last_event_at if run is not None else None,
    )


def _between(work: Work) -> str:
    """What a session does that has no run."""
    if work.run_id is None and Stage.CLOSE in work.ends:
        return "waits for its turn to be merged"
    if work.run_id is None and Stage.LEAVE in work.ends:
        return "waits for its turn to be kept"
    return "is about to begin"


def _phase(state: ProjectState, runs: dict[str, RunState]) -> Phase:
    """The phase; while the verifier looks at what an agent did, that is what the project is at."""
    verifying = any(run.status == "VERIFYING" for run in runs.values())
    return Phase.VERIFY if verifying and state.phase is Phase.IMPLEMENT else state.phase


def _retry(state: ProjectState, wait: Waiting) -> RetryView:
    feature = state.features.get(wait.feature_id or "")
    failures = feature.failures + feature.unfinished if feature is not None else state.failures
    return RetryView(
        at=wait.until,
        feature_id=feature.id if feature is not None else None,
        attempt=failures + 1,
        error=feature.last_error if feature is not None else state.last_error,
    )


def _pace(state: ProjectState, now: datetime) -> PaceView:
    since = state.active_since
    active_s = state.active_ms / 1000
    if since is not None:
        active_s += max(0.0, (now - parse_rfc3339(since)).total_seconds())
    committed = state.count(FeatureStatus.COMMITTED)
    left = state.count(FeatureStatus.PENDING, FeatureStatus.IN_PROGRESS, FeatureStatus.VERIFIED)
    per_hour = committed / active_s * 3600 if committed and active_s else None
    goes_on = state.status is ProjectStatus.ACTIVE and per_hour is not None
    eta = rfc3339(now + timedelta(hours=left / per_hour)) if goes_on and per_hour else None
    return PaceView(active_s=round(active_s, 3), committed_per_hour=per_hour, remaining=left, eta=eta)


def _handoff(handoff: Handoff) -> HandoffView:
    return HandoffView(
        done=handoff.done,
        in_progress=handoff.in_progress,
        next=handoff.next,
        decisions=handoff.decisions,
        pitfalls=handoff.pitfalls,
        how_to_verify=handoff.how_to_verify,
    )


def _last_session(state: ProjectState) -> LastSessionView | None:
    last = state.last_session
    if last is None:
        return None
    return LastSessionView(
        session=last.session,
        outcome=last.outcome.value,
        reason=last.reason,
        feature_id=last.feature_id,
        at=last.at,
    )


def _object(value: msgspec.Struct) -> Object:
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, object])
