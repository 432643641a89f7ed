"""The verifier's composition root.

Invariant: as with every host, rounds are taken only between registration and release of the lease, and a process that
is declared dead ends with the exit code that asks for a new start.
"""

import asyncio
import platform

from libs.bus.liveness import Registration, register
from libs.chassis.hosting import EFFECTS_MAX, HostSetting, ToolHost
from libs.chassis.redacted import Redacted
from libs.chassis.run import Chassis
from libs.contracts.checks import CHECK_TIMEOUT_S_MAX
from libs.contracts.errors import LeaseLost
from libs.contracts.streams import shared_tool_consumer
from libs.contracts.tools import VERIFY, HostCatalog, Semantics, ToolSpec
from services.verifier.review.judge import Judge
from services.verifier.rounds import Rounds
from services.verifier.settings import VerifierSettings

# In the catalog so that people see who verifies; `shared` keeps it from being offered to a model.
VERIFY_SPEC = ToolSpec(
    name=VERIFY,
    description="Holds a run's answer against its workspace. Called by the runtime, never by a model.",
    parameters={"type": "object"},
    semantics=Semantics.IDEMPOTENT,
    timeout_s=CHECK_TIMEOUT_S_MAX,
    needs_workspace=False,
)


async def serve(chassis: Chassis[VerifierSettings]) -> None:
    """Verify until told to stop. Raises `LeaseLost` when the others have declared this process dead."""
    settings, bus, clock = chassis.settings, chassis.bus, chassis.clock
    died = asyncio.Event()
    rounds = Rounds(bus, clock, Judge(settings.access, clock, settings.redaction))
    host = ToolHost(bus, clock, Redacted(rounds, settings.redaction))
    registration = Registration(
        service="verifier",
        replica=settings.replica_id,
        slots=EFFECTS_MAX,
        model_configured=False,
        ttl_s=settings.lease_ttl_s,
        info={},
    )
    async with register(bus, clock, registration, control=host.control, on_death=died.set) as liveness:
        rounds.begin(liveness)
        catalog = HostCatalog(
            boot=liveness.boot,
            replica=settings.replica_id,
            host=platform.node(),
            tools=[VERIFY_SPEC],
            shared=True,
        )
        effects = shared_tool_consumer(bus.subjects, VERIFY)
        await host.serve(liveness, HostSetting(catalog, effects), stop=chassis.stop, died=died)
        if died.is_set():
            raise LeaseLost("the others declared this verifier dead; it starts again as a new boot")
