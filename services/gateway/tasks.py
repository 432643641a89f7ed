"""Tasks: made once for each Idempotency-Key, and shown with their runs.

Invariant: the id of a keyed task derives from tenant and key, so any gateway makes the same one, now or in a month;
the answer to a retry is the first answer again.
"""

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.creation import CreateRequest, Creation
from libs.bus.runs import Runs
from libs.contracts.errors import ConfigurationError, QuotaExceeded
from libs.contracts.http import TaskCreate, body_hash, idempotency_key
from libs.contracts.ids import derived_run_id, first_run_of
from libs.contracts.run import RunStatus
from libs.contracts.views import TaskCreated, task_view
from libs.projection.follow import Projection
from libs.projection.rows import LIMIT_MAX, RunQuery
from services.gateway import edge
from services.gateway.quotas import Quotas
from services.gateway.roster import Roster
from services.gateway.runs import summary

# What an Idempotency-Key derives from, beside the tenant: told from the causes that the machinery has.
KEY_CAUSE = "key"


class TasksApi:
    """Create and show tasks."""

    def __init__(
        self,
        *,
        creation: Creation,
        runs: Runs,
        rows: Projection,
        roster: Roster,
        quotas: Quotas,
        shards: int,
    ) -> None:
        self._creation, self._runs, self._rows = creation, runs, rows
        self._roster, self._quotas, self._shards = roster, quotas, shards

    async def create(self, request: Request, tenant: str) -> Response:
        key = idempotency_key(request.headers.get("idempotency-key"))
        task = await edge.body_of(request, TaskCreate)
        cause = (KEY_CAUSE, key) if key is not None else None
        run_id = derived_run_id(self._shards, tenant, *cause) if cause else self._creation.fresh_run_id()
        if task.auto_start:
            await self._may_start(request, tenant, run_id, keyed=cause is not None)
        created = await self._creation.create(
            CreateRequest(
                tenant=tenant,
                task=task.spec(),
                body_hash=body_hash(task),
                auto_start=task.auto_start,
                by=tenant,
                source="api",
                cause=cause,
                run_id=run_id,
            )
        )
        if not created.existed:
            self._rows.acknowledged(created.run_id, created.folded.last)
        # Every run begins PENDING: the first answer, given again to each retry.
        view = TaskCreated(task_id=created.task_id, run_id=created.run_id, status=RunStatus.PENDING)
        location = {"Location": f"/api/runs/{created.run_id}"}
        return edge.answer(view, status=200 if created.existed else 201, headers=location)

    async def show(self, request: Request, tenant: str) -> Response:
        task_id = edge.task_id_of(request, self._shards)
        state = (await self._runs.load(tenant, first_run_of(task_id))).state
        rows = await self._rows.runs(RunQuery(tenant=tenant, task_id=task_id, limit=LIMIT_MAX))
        return edge.answer(task_view(state, [summary(row) for row in rows]))

    async def _may_start(self, request: Request, tenant: str, run_id: str, *, keyed: bool) -> None:
        """Nothing is created that cannot start, but a retry of what was created before gets its answer."""
        try:
            await self._roster.require_model()
            await self._quotas.require_start(request.scope, tenant, run_id)
        except (ConfigurationError, QuotaExceeded):
            if not keyed or await self._runs.find(tenant, run_id) is None:
                raise
