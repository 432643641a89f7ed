"""What the HTTP API says of the deployment itself.

Invariant: as in `views.py`, fields are only ever added; whoever reaches a gateway reads this, so that it names no secret,
no tenant and no run.
"""

from typing import Literal

from pydantic import Field

from libs.contracts.policyviews import PolicyView
from libs.contracts.views import View


class ReplicaView(View):
    replica_id: str
    slots: int
    free: int
    info: dict[str, str]


class ToolView(View):
    name: str
    description: str
    semantics: str
    risk: str


class HealthView(View):
    """What this deployment is made of, as this gateway sees it on the bus; never a secret."""

    status: Literal["ok", "degraded"]
    version: str
    replica_id: str
    secure: bool
    bus: bool
    model_configured: bool
    services: dict[str, list[ReplicaView]]
    tools: list[ToolView]
    sandbox: str
    policy: str
    # Older gateways say only its name.
    policy_in_force: PolicyView | None = None
    backends: dict[str, str]
    test_hooks: list[str] = Field(default_factory=list)


class ReadyView(View):
    status: Literal["ready"]
