"""Projects: made once for each Idempotency-Key, shown as a card, and told what to do.

Invariant: what is said of one project is folded up to the leader's tail at the time of the request; a command answers 202
only after its record is in the log.
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.runs import Projects, Runs
from libs.contracts.clock import Clock
from libs.contracts.errors import (
    AppendConflict,
    IdempotencyConflict,
    NotFound,
    ValidationFailed,
)
from libs.contracts.featurelist import FEATURE_ID
from libs.contracts.http import Nothing, body_hash, idempotency_key
from libs.contracts.ids import derived_project_id, random_project_id
from libs.contracts.progress import progress_text
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectCreated, ProjectEvent
from libs.contracts.projecthttp import ProjectCreate, ProjectResume
from libs.contracts.projects import Phase, ProjectSpec, ProjectStatus
from libs.contracts.projectviews import (
    FeatureList,
    ProjectCommandAccepted,
    ProjectList,
    ProjectSummary,
    feature_views,
    project_view,
)
from libs.contracts.projectviews import ProjectCreated as Created
from libs.contracts.run import RunState
from libs.projection.follow import Projection
from libs.projection.rows import LIMIT_DEFAULT, LIMIT_MAX, ProjectQuery, ProjectRow
from services.gateway import edge, projectcommands
from services.gateway.quotas import Quotas
from services.gateway.roster import Roster
from services.gateway.settings import GatewaySettings
from services.gateway.tasks import KEY_CAUSE

Decide = Callable[[ProjectState], Sequence[ProjectEvent]]


class ProjectsApi:
    """Everything about projects but the stream."""

    def __init__(
        self,
        *,
        projects: Projects,
        runs: Runs,
        rows: Projection,
        roster: Roster,
        quotas: Quotas,
        clock: Clock,
        settings: GatewaySettings,
        shards: int,
    ) -> None:
        self._projects, self._runs, self._rows = projects, runs, rows
        self._roster, self._quotas, self._clock = roster, quotas, clock
        self._limits, self._secure, self._shards = settings.limits, bool(settings.keys), shards

    def handlers(self) -> dict[str, Callable[[Request, str], Awaitable[Response]]]:
        """What serves each operation, by its name."""
        return {
            "create_project": self.create,
            "list_projects": self.find,
            "show_project": self.show,
            "list_features": self.features,
            "show_progress": self.progress,
            "pause_project": self.pause,
            "resume_project": self.resume,
            "cancel_project": self.cancel,
            "skip_feature": self.skip,
            "retry_feature": self.retry,
        }

    async def create(self, request: Request, tenant: str) -> Response:
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, ProjectCreate)
        spec = body.spec()
        self._require_possible(spec)
        if key is None:
            shard = self._clock.entropy(1)[0] % self._shards
            project_id = random_project_id(self._clock, shard)
        else:
            project_id = derived_project_id(self._shards, tenant, KEY_CAUSE, key)
            found = await self._projects.find(tenant, project_id)
            if found is not None:
                return _made(found.state, body_hash(body))
        await self._roster.require_model()
        self._quotas.require_tokens(tenant)
        event = ProjectCreated(
            tenant=tenant, spec=spec, workspace=project_id, body_hash=body_hash(body), by=tenant
        )
        try:
            folded = await self._projects.create(tenant, project_id, [event])
        except AppendConflict:
            return _made((await self._projects.load(tenant, project_id)).state, body_hash(body))
        self._rows.acknowledged(project_id, folded.last)
        return _created(project_id, status=201)

    async def find(self, request: Request, tenant: str) -> Response:
        limit = edge.number(request, "limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)
        query = ProjectQuery(
            tenant=tenant,
            limit=limit + 1,
            statuses=edge.choice(request, "status", frozenset(ProjectStatus)),
            before=edge.cursor_of(request),
        )
        rows = await self._rows.projects(query)
        more = edge.cursor_text(rows[limit - 1].cursor) if len(rows) > limit else None
        return edge.answer(ProjectList(projects=[_summary(row) for row in rows[:limit]], next_cursor=more))

    async def show(self, request: Request, tenant: str) -> Response:
        state = await self._state(request, tenant)
        return edge.answer(project_view(state, await self._going_on(state), self._clock.now()))

    async def features(self, request: Request, tenant: str) -> Response:
        state = await self._state(request, tenant)
        return edge.answer(FeatureList(project_id=state.project_id, features=feature_views(state)))

    async def progress(self, request: Request, tenant: str) -> Response:
        return Response(progress_text(await self._state(request, tenant)), media_type="text/markdown")

    async def pause(self, request: Request, tenant: str) -> Response:
        return await self._command(request, tenant, lambda state: projectcommands.pause(state, tenant))

    async def cancel(self, request: Request, tenant: str) -> Response:
        return await self._command(request, tenant, lambda state: projectcommands.cancel(state, tenant))

    async def resume(self, request: Request, tenant: str) -> Response:
        project_id = edge.project_id_of(request, self._shards)
        body = await edge.body_of(request, ProjectResume) if await request.body() else ProjectResume()
        limits = body.limits.limits() if body.limits is not None else None
        return await self._carry_out(
            tenant,
            project_id,
            lambda state: projectcommands.resume(state, tenant, limits, body.max_attempts_per_feature),
        )

    async def skip(self, request: Request, tenant: str) -> Response:
        feature_id = _feature_of(request)
        return await self._command(
            request, tenant, lambda state: projectcommands.skip(state, feature_id, tenant)
        )

    async def retry(self, request: Request, tenant: str) -> Response:
        feature_id = _feature_of(request)
        return await self._command(
            request, tenant, lambda state: projectcommands.retry(state, feature_id, tenant)
        )

    async def _command(self, request: Request, tenant: str, decide: Decide) -> Response:
        project_id = edge.project_id_of(request, self._shards)
        await edge.body_of(request, Nothing)
        return await self._carry_out(tenant, project_id, decide)

    async def _carry_out(self, tenant: str, project_id: str, decide: Decide) -> Response:
        folded = await self._projects.command(tenant, project_id, decide)
        self._rows.acknowledged(project_id, folded.last)
        view = ProjectCommandAccepted(project_id=project_id, status=folded.state.status)
        return edge.answer(view, status=202)

    async def _state(self, request: Request, tenant: str) -> ProjectState:
        return (await self._projects.load(tenant, edge.project_id_of(request, self._shards))).state

    async def _going_on(self, state: ProjectState) -> dict[str, RunState]:
        """The runs that the project's sessions have going now."""
        found: dict[str, RunState] = {}
        for work in state.works.values():
            run = await self._runs.find(state.tenant, work.run_id) if work.run_id is not None else None
            if run is not None:
                found[run.state.run_id] = run.state
        return found

    def _require_possible(self, spec: ProjectSpec) -> None:
        """What only this deployment can judge. Raises `ValidationFailed`."""
        if self._secure and spec.workspace.seed_dir is not None:
            # A folder of the tool host's machine is nobody's to give away.
            raise _bad("workspace.seed_dir", "is only for a trusted user; use git_url")
        try:
            self._limits.lowered_by(spec.limits.session)
        except ValueError as error:
            raise _bad("limits.session", str(error)) from error


def _made(state: ProjectState, digest: str) -> Response:
    """The answer to a client's own retry."""
    if state.body_hash != digest:
        raise IdempotencyConflict(
            "this Idempotency-Key was used with another body; use a new key for a new project"
        )
    return _created(state.project_id, status=200)


def _created(project_id: str, *, status: int) -> Response:
    # Every project begins so: the first answer, given again to each retry.
    view = Created(project_id=project_id, status=ProjectStatus.ACTIVE, phase=Phase.INITIALIZE)
    return edge.answer(view, status=status, headers={"Location": f"/api/projects/{project_id}"})


def _feature_of(request: Request) -> str:
    feature_id = str(request.path_params["feature_id"])
    if FEATURE_ID.fullmatch(feature_id) is None:
        raise NotFound(f"there is no feature {feature_id[:80]!r}")
    return feature_id


def _bad(field: str, message: str) -> ValidationFailed:
    return ValidationFailed(f"{field} {message}", details=[{"field": field, "message": message}])


def _summary(row: ProjectRow) -> ProjectSummary:
    return ProjectSummary(
        project_id=row.project_id,
        tenant=row.tenant,
        name=row.name,
        status=ProjectStatus(row.status),
        phase=Phase(row.phase),
        created_at=row.created_at,
        finished_at=row.finished_at,
        last_sequence=row.last_sequence,
        last_event_at=row.last_event_at,
        committed=row.committed,
        features_total=row.features_total,
        sessions=row.sessions,
    )
