"""Who is there: the replicas of all services and the tools of live hosts, as the bus tells it.

Invariant: a "yes" may be a second old, a "no" is always fresh: nothing is refused on old knowledge.
"""

from typing import NamedTuple

import msgspec

from libs.bus.ports import Bucket, Liveness, Replica
from libs.contracts.clock import Clock
from libs.contracts.errors import UNREADABLE, ConfigurationError
from libs.contracts.tools import HostCatalog

# How long an answer of the bus is used again: long enough that a burst of posts asks once.
FRESH_S = 1.0


class _Seen(NamedTuple):
    at: float
    replicas: list[Replica]


class Roster:
    """The replicas seen on the bus."""

    def __init__(self, liveness: Liveness, catalog: Bucket, clock: Clock) -> None:
        self._liveness, self._catalog, self._clock = liveness, catalog, clock
        self._seen: _Seen | None = None

    async def replicas(self, *, fresh: bool = False) -> list[Replica]:
        """All live replicas."""
        now = self._clock.monotonic()
        if fresh or self._seen is None or now - self._seen.at > FRESH_S:
            live = [replica for replica in await self._liveness.replicas() if not replica.dead]
            self._seen = _Seen(now, live)
        return self._seen.replicas

    async def require_model(self) -> None:
        """Raises `ConfigurationError` when executors are alive and none of them has a model.

        Without any executor the run waits in the log for one to come: that is what a durable queue is for.
        """
        if not _lacks_a_model(await self.replicas()):
            return
        if _lacks_a_model(await self.replicas(fresh=True)):
            raise ConfigurationError(
                "no executor has a model: set OPENAI_API_KEY, OPENAI_BASE_URL and MODEL_ID, and restart the executors"
            )

    async def catalogs(self, *, fresh: bool = False) -> list[HostCatalog]:
        """What live hosts offer."""
        boots = {replica.boot for replica in await self.replicas(fresh=fresh)}
        found: list[HostCatalog] = []
        for entry in await self._catalog.entries():
            try:
                catalog = msgspec.json.decode(entry.value, type=HostCatalog)
            except UNREADABLE:
                continue  # A host of another version, or of another language with a mistake: not ours to judge.
            if catalog.boot in boots:
                found.append(catalog)
        return found


def _lacks_a_model(replicas: list[Replica]) -> bool:
    executors = [replica for replica in replicas if replica.service == "executor"]
    return bool(executors) and not any(executor.model_configured for executor in executors)
