"""How a task becomes a run: one function for the gateway's POST and for tasks published on the bus.

Invariant: the same cause gives the same run; appending at expected sequence 0 decides between two creators, and the
hash of the body in the log decides between "the same again" and a conflict.
"""

from typing import NamedTuple

import msgspec

from libs.bus.runs import Folded, Runs
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict, IdempotencyConflict, RunDeleted, ValidationFailed
from libs.contracts.events import LogEvent, RunCreated, RunStartRequested
from libs.contracts.ids import derived_run_id, random_run_id, task_id_of
from libs.contracts.schedule import ScheduleState
from libs.contracts.tasks import Limits, TaskSpec


class CreateRequest(NamedTuple):
    """`cause`: what the id derives from (an Idempotency-Key, a message), or `None` for a fresh run every time; `run_id`:
    the id itself, where it is settled already (a schedule's)."""

    tenant: str
    task: TaskSpec
    body_hash: str
    auto_start: bool
    by: str
    source: str
    cause: tuple[str, ...] | None = None
    # The task that the run is of; `None`: one of its own.
    task_id: str | None = None
    # The id of a run without a cause, where somebody had to know it before; `None`: a fresh one.
    run_id: str | None = None


def scheduled(state: ScheduleState, run_id: str) -> CreateRequest:
    """A run of a schedule. Whoever makes it makes the same one."""
    return CreateRequest(
        tenant=state.tenant,
        task=msgspec.structs.replace(state.spec.task, schedule=state.schedule_id),
        body_hash=state.spec.task_hash,
        auto_start=True,
        by="schedule",
        source="schedule",
        run_id=run_id,
    )


class Created(NamedTuple):
    folded: Folded
    existed: bool

    @property
    def run_id(self) -> str:
        return self.folded.state.run_id

    @property
    def task_id(self) -> str:
        return self.folded.state.task_id


class Creation:
    """Creates runs for one process. `shards` are the log shards, `limits` the deployment's."""

    def __init__(self, runs: Runs, clock: Clock, *, shards: int, limits: Limits) -> None:
        self._runs, self._clock, self._shards, self.limits = runs, clock, shards, limits

    async def create(self, request: CreateRequest) -> Created:
        """Create the run, or find the one that the same cause made before.

        Raises `ValidationFailed` (limits above the deployment's), `IdempotencyConflict` (another body under this
        cause), `RunDeleted` (the cause's run was deleted).
        """
        try:
            limits = self.limits.lowered_by(request.task.limits)
        except ValueError as error:
            raise ValidationFailed(
                str(error), details=[{"field": "limits", "message": str(error)}]
            ) from error
        run_id = self.run_id_of(request)
        created = RunCreated(
            tenant=request.tenant,
            task_id=request.task_id or task_id_of(run_id),
            task=request.task,
            limits=limits,
            workspace=request.task.workspace or run_id,
            body_hash=request.body_hash,
            source=request.source,
        )
        bodies: list[LogEvent] = [created]
        if request.auto_start:
            bodies.append(RunStartRequested(by=request.by))
        try:
            return Created(await self._runs.create(request.tenant, run_id, bodies), existed=False)
        except AppendConflict:
            return await self._existing(request, run_id)

    async def knows(self, tenant: str, run_id: str) -> bool:
        """Whether this run was made; also of a deleted one, as long as its tombstone says so."""
        return await self._runs.find(tenant, run_id) is not None

    def fresh_run_id(self) -> str:
        """The id of a run that nothing made before. Those spread over the open shards; the choice needs no memory."""
        return random_run_id(self._clock, self._clock.entropy(1)[0] % self._shards)

    def run_id_of(self, request: CreateRequest) -> str:
        """The id of the run that is asked for: always the same of one that has a cause, or names its run."""
        if request.cause is not None:
            return derived_run_id(self._shards, request.tenant, *request.cause)
        return request.run_id or self.fresh_run_id()

    async def _existing(self, request: CreateRequest, run_id: str) -> Created:
        found = await self._runs.find(request.tenant, run_id)
        if found is None or found.state.deleted:
            raise RunDeleted("the run of this Idempotency-Key was deleted; use a new key")
        if found.state.body_hash != request.body_hash:
            raise IdempotencyConflict(
                "this Idempotency-Key was used with another body; use a new key for a new task"
            )
        return Created(found, existed=True)
