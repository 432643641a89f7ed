"""Health: what this deployment is made of, for people and probes.

Invariant: open to everybody, so it names no secret, no tenant and no run; it answers within its bound even when the
bus does not.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from libs.bus.ports import Bus, Liveness, Replica
from libs.contracts.errors import BusUnavailable
from libs.contracts.healthviews import HealthView, ReadyView, ReplicaView, ToolView
from libs.contracts.tools import HostCatalog
from libs.policy.risk import risk_of
from libs.policy.rules import Policy
from services.gateway import edge
from services.gateway.policies import policy_view
from services.gateway.roster import Roster

# A probe gives up after a few seconds; an answer that the bus is silent must come before that.
PATIENCE_S = 2.0
STORES_NOTHING = (
    "the bus answers and stores nothing; if its disk is full, make room and start nats-server again "
    "(`perdure up` does so by itself)"
)
SERVICES = ("gateway", "scheduler", "executor", "toolhost", "verifier")


class Identity(NamedTuple):
    """What this process says of itself."""

    replica_id: str
    version: str
    secure: bool
    rows: str
    test_hooks: Sequence[str]


class HealthApi:
    """`/api/health` and `/api/health/ready`."""

    def __init__(
        self, *, bus: Bus, liveness: Liveness, roster: Roster, identity: Identity, policy: Policy
    ) -> None:
        self._bus, self._liveness, self._roster, self._identity = bus, liveness, roster, identity
        self._policy = policy

    async def health(self, _: Request) -> Response:
        replicas: list[Replica] = []
        catalogs: list[HostCatalog] = []
        usable = self._bus.connected()
        try:
            async with asyncio.timeout(PATIENCE_S):
                replicas = await self._roster.replicas()
                catalogs = await self._roster.catalogs()
        except (TimeoutError, BusUnavailable):
            usable = False
        services = {name: [_view(one) for one in replicas if one.service == name] for name in SERVICES}
        complete = usable and all(services.values())
        hosts = [catalog for catalog in catalogs if catalog.workspaces]
        policy = policy_view(self._policy, replicas)
        return edge.answer(
            HealthView(
                status="ok" if complete else "degraded",
                version=self._identity.version,
                replica_id=self._identity.replica_id,
                secure=self._identity.secure,
                bus=usable,
                model_configured=any(one.model_configured for one in replicas if one.service == "executor"),
                services=services,
                tools=_tools(catalogs),
                sandbox=", ".join(sorted({host.sandbox for host in hosts})) or "none",
                policy=f"{policy.mode} {policy.digest}",
                policy_in_force=policy,
                backends={"log": "jetstream", "index": self._identity.rows},
                test_hooks=list(self._identity.test_hooks),
            )
        )

    async def ready(self, _: Request) -> Response:
        """Whether the log's leader answers, and stores: the own lease is written all the time anyway. A model is not
        needed to read history."""
        if not await self._bus.usable():
            raise BusUnavailable("the bus does not answer; the gateway reconnects by itself", retry_after_s=1)
        if not self._liveness.confirmed():
            raise BusUnavailable(STORES_NOTHING, retry_after_s=1)
        return edge.answer(ReadyView(status="ready"))


def _view(replica: Replica) -> ReplicaView:
    return ReplicaView(replica_id=replica.replica, slots=replica.slots, free=replica.free, info=replica.info)


def _tools(catalogs: Sequence[HostCatalog]) -> list[ToolView]:
    found = {
        tool.name: ToolView(
            name=tool.name, description=tool.description, semantics=tool.semantics, risk=risk_of(tool)
        )
        for catalog in catalogs
        # What is shared among hosts of a kind (`verify`) is called by the runtime, never by a model.
        if not catalog.shared
        for tool in catalog.tools
        # What only some tenants have is nobody else's business, and this answer is everybody's.
        if not tool.tenants
    }
    return [found[name] for name in sorted(found)]
