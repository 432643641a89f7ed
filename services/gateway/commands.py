"""Commands on a run: each is folded, decided and appended behind the run's fence, exactly once.

Invariant: a command answers 202 only after its record is in the log; of concurrent commands that exclude each other
one wins and the others learn the state that it made.
"""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.ports import Liveness
from libs.bus.runs import Folded, Runs
from libs.contracts import deleting
from libs.contracts.bodies import Request as Body
from libs.contracts.events import LogEvent
from libs.contracts.http import (
    Approval,
    Nothing,
    Reconciliation,
    Reply,
    SteeringMessage,
    client_request,
    idempotency_key,
)
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Parent
from libs.contracts.views import CommandAccepted
from libs.projection.follow import Projection
from services.gateway import decisions, edge
from services.gateway.quotas import Quotas
from services.gateway.roster import Roster

Decide = Callable[[RunState], list[LogEvent]]
B = TypeVar("B", bound=Body)
# What a command of one kind means for a state: the body, who sent it, and the client's own request.
Meaning = Callable[[RunState, B, str, str | None], list[LogEvent]]


class CommandsApi:
    """Everything that changes a run."""

    def __init__(
        self,
        *,
        runs: Runs,
        rows: Projection,
        liveness: Liveness,
        roster: Roster,
        quotas: Quotas,
        shards: int,
    ) -> None:
        self._runs, self._rows, self._liveness = runs, rows, liveness
        self._roster, self._quotas, self._shards = roster, quotas, shards

    async def start(self, request: Request, tenant: str) -> Response:
        run_id = await self._command_on(request)
        folded = await self._runs.load(tenant, run_id)
        if folded.state.status is RunStatus.PENDING:
            await self._roster.require_model()
            await self._quotas.require_start(request.scope, tenant, run_id)
        folded = await self._carry_out(tenant, run_id, lambda state: decisions.start(state, tenant))
        return _accepted(run_id, folded.state.status)

    async def cancel(self, request: Request, tenant: str) -> Response:
        run_id = await self._command_on(request)
        owner = (await self._runs.load(tenant, run_id)).state.owner
        dead = owner.boot if owner is not None and await self._liveness.is_dead(owner.boot) else None

        def decide(state: RunState) -> list[LogEvent]:
            owned_by_the_dead = state.owner is not None and state.owner.boot == dead
            return decisions.cancel(state, tenant, owner_is_dead=owned_by_the_dead)

        folded = await self._carry_out(tenant, run_id, decide)
        return _accepted(run_id, folded.state.status)

    async def reply(self, request: Request, tenant: str) -> Response:
        return await self._answer(request, tenant, Reply, decisions.reply)

    async def approve(self, request: Request, tenant: str) -> Response:
        return await self._answer(request, tenant, Approval, decisions.approve)

    async def reconcile(self, request: Request, tenant: str) -> Response:
        return await self._answer(request, tenant, Reconciliation, decisions.reconcile)

    async def message(self, request: Request, tenant: str) -> Response:
        folded = await self._keyed(request, tenant, SteeringMessage, decisions.message)
        return _accepted(folded.state.run_id, folded.state.status)

    async def pause(self, request: Request, tenant: str) -> Response:
        run_id = await self._command_on(request)
        folded = await self._carry_out(tenant, run_id, lambda state: decisions.pause(state, tenant))
        return _accepted(run_id, folded.state.status)

    async def resume(self, request: Request, tenant: str) -> Response:
        run_id = await self._command_on(request)
        folded = await self._carry_out(tenant, run_id, lambda state: decisions.resume(state, tenant))
        return _accepted(run_id, folded.state.status)

    async def delete(self, request: Request, tenant: str) -> Response:
        """Append the tombstone; from then on nobody finds the run. The scheduler purges what lies below it."""
        run_id = await self._command_on(request)
        parent = (await self._runs.load(tenant, run_id)).state.parent
        waits = parent is not None and await self._waits_for_child(tenant, parent)
        await self._carry_out(
            tenant, run_id, lambda state: deleting.deleted(state, tenant, parent_waits=waits)
        )
        return Response(status_code=204)

    async def _answer(self, request: Request, tenant: str, model: type[B], meaning: Meaning[B]) -> Response:
        """Give a person's word on what a run waits for."""
        folded = await self._keyed(request, tenant, model, meaning)
        # What the word made of the run, also when a retry comes after the run went on.
        return _accepted(folded.state.run_id, RunStatus.QUEUED)

    async def _keyed(self, request: Request, tenant: str, model: type[B], meaning: Meaning[B]) -> Folded:
        """A command that a client may send again under its `Idempotency-Key`."""
        run_id = edge.run_id_of(request, self._shards)
        key = idempotency_key(request.headers.get("idempotency-key"))
        body = await edge.body_of(request, model)
        mine = client_request(key, body)
        return await self._carry_out(tenant, run_id, lambda state: meaning(state, body, tenant, mine))

    async def _waits_for_child(self, tenant: str, parent: Parent) -> bool:
        """Whether the parent lives and does not know the child's end. It can only learn it, so looking once is enough."""
        found = await self._runs.find(tenant, parent.run_id)
        return (
            found is not None
            and not found.state.terminal
            and not found.state.deleted
            and parent.call_id not in found.state.child_results
        )

    async def _command_on(self, request: Request) -> str:
        """The run of a command without a body; one that was sent is refused by its fields."""
        run_id = edge.run_id_of(request, self._shards)
        await edge.body_of(request, Nothing)
        return run_id

    async def _carry_out(self, tenant: str, run_id: str, decide: Decide) -> Folded:
        """Decide and append; the lists of this gateway wait for what was appended."""
        decided: list[LogEvent] = []

        def deciding(state: RunState) -> list[LogEvent]:
            decided[:] = decide(decisions.present(state))
            return decided

        folded = await self._runs.command(tenant, run_id, deciding)
        if any(body.life for body in decided):
            self._rows.acknowledged(run_id, folded.last)
        return folded


def _accepted(run_id: str, status: RunStatus) -> Response:
    return edge.answer(CommandAccepted(run_id=run_id, status=status), status=202)
