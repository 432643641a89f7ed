"""What a run offers its model: fixed with its first request, named in its log, the same for every owner.

Invariant: what `model.requested` names is stored before, so every later owner offers and judges calls by the same specs,
whatever the catalog says by then. It changes only where it held no tool of a host, for want of one, or is lost.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from libs.bus.history import blob_name
from libs.bus.ports import Blobs
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import UNREADABLE
from libs.contracts.run import RunState
from libs.contracts.tools import ToolSpec
from libs.contracts.values import Offered
from services.executor.tools.hosts import Hosts
from services.executor.tools.runtime import RUNTIME_TOOLS, offered_to

# Sets of tools that a process remembers: there are about as many as there are kinds of tasks and tenants.
SETS_MAX = 128
# A set that is stored is stored anew after this long, which renews the time of its blob: what nothing names yet is swept
# a day after it was stored.
RENEWED_S = 6 * 3600.0

Specs = Mapping[str, ToolSpec]

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(list[ToolSpec])
_log = get_logger("offering")


class Offerings:
    """The sets of tools of all runs of a process."""

    def __init__(self, hosts: Hosts, blobs: Blobs, clock: Clock) -> None:
        self.hosts = hosts
        self._blobs, self._clock = blobs, clock
        # By tenant and digest, with when it was stored from here (`None`: by somebody else); the latest used last.
        self._sets: dict[tuple[str, str], tuple[Specs, float | None]] = {}

    def now(self, state: RunState) -> Specs:
        """The tools that the run would be offered now, in the order of their names."""
        found = {**self.hosts.tools(state.tenant), **offered_to(state)}
        wanted = state.task.tools
        names = sorted(found if wanted is None else found.keys() & set(wanted))
        # Whom else a tool is for is nobody's business.
        return {name: msgspec.structs.replace(found[name], tenants=[]) for name in names}

    def missing(self, state: RunState) -> list[str]:
        """What the task names and nobody offers, before the model is asked for the first time. What goes later is told to
        the model, which can do without."""
        if state.offered is not None or state.task.tools is None:
            return []
        return sorted(set(state.task.tools) - self.hosts.tools(state.tenant).keys() - RUNTIME_TOOLS.keys())

    def stored(self, tenant: str, specs: Specs) -> Offered | None:
        """The name of these tools, if they were stored from here lately."""
        offered = named(specs)
        _, at = self._sets.get((tenant, offered.digest), (None, None))
        return offered if at is not None and self._clock.monotonic() - at < RENEWED_S else None

    async def store(self, tenant: str, specs: Specs) -> Offered:
        """Store the tools; their name."""
        offered = named(specs)
        await self._blobs.put(blob_name(tenant, offered.digest), _encode(list(specs.values())))
        self._remember(tenant, offered, specs, self._clock.monotonic())
        return offered

    async def find(self, state: RunState, offered: Offered) -> Specs | None:
        """The tools of this name; `None` when nobody has them any more. Raises `Unavailable`."""
        key = (state.tenant, offered.digest)
        if key not in self._sets:
            specs: Specs | None = self.now(state)
            if named(specs) != offered:
                specs = await self._read(*key)
            if specs is None:
                return None
            self._remember(state.tenant, offered, specs, None)
        specs, at = self._sets.pop(key)
        self._sets[key] = specs, at
        return specs

    async def _read(self, tenant: str, digest: str) -> Specs | None:
        data = await self._blobs.get(blob_name(tenant, digest))
        try:
            return {spec.name: spec for spec in _decoder.decode(data)} if data is not None else None
        except UNREADABLE as error:
            _log.warning("offering.unreadable", digest=digest, error=str(error))
            return None

    def _remember(self, tenant: str, offered: Offered, specs: Specs, at: float | None) -> None:
        self._sets.pop((tenant, offered.digest), None)
        while len(self._sets) >= SETS_MAX:
            del self._sets[next(iter(self._sets))]
        self._sets[tenant, offered.digest] = specs, at


class RunOffer:
    """What one run offers, under one claim."""

    def __init__(self, offerings: Offerings) -> None:
        self._all = offerings
        self._specs: Specs | None = None
        self._made: Offered | None = None
        self._lost: Offered | None = None

    async def recall(self, state: RunState) -> None:
        """Find what the run's log names. Raises `Unavailable`."""
        if state.offered is None:
            return
        self._specs = await self._all.find(state, state.offered)
        if self._specs is None:
            _log.warning("offering.lost", run_id=state.run_id, digest=state.offered.digest)
            self._lost = state.offered

    def specs(self, state: RunState) -> Specs:
        """What the run offers; before that is settled, what it would offer now."""
        return self._specs if self._specs is not None else self._all.now(state)

    def wanted(self, state: RunState) -> bool:
        """Whether the next request has to name what is offered: the first one, and the first one with a host."""
        offered = state.offered
        if offered is None or offered == self._lost:
            return True
        return RUNTIME_TOOLS.keys() >= set(offered.names) and bool(
            self._all.now(state).keys() - RUNTIME_TOOLS
        )

    def missing(self, state: RunState) -> list[str]:
        return self._all.missing(state)

    def made(self, state: RunState) -> Offered | None:
        """What is stored for the next request to name, if anything is."""
        if self._made is None and self._all.hosts.ready() and not self.missing(state):
            specs = self._all.now(state)
            self._take(self._all.stored(state.tenant, specs), specs)
        return self._made if self._made != state.offered else None

    async def make(self, state: RunState) -> None:
        """Settle what is offered from now on, and store it. Raises `Unavailable`."""
        specs = self._all.now(state)
        self._take(await self._all.store(state.tenant, specs), specs)

    def _take(self, offered: Offered | None, specs: Specs) -> None:
        if offered is not None:
            self._made, self._specs = offered, specs
            if offered == self._lost:
                self._lost = None


def named(specs: Specs) -> Offered:
    """The name of a set of tools."""
    return Offered(digest=hashlib.sha256(_encode(list(specs.values()))).hexdigest(), names=list(specs))
