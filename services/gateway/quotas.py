"""Quotas of tenants: how often one may ask, and whether it may start another run now.

Invariant: over its requests a tenant is refused everything but health until the minute has room again; the other quotas
refuse the start of a run only, what runs goes on. What is left is told in the headers of the answer, also of a refusal,
in the form of the IETF's draft of RateLimit fields.
"""

from typing import NamedTuple

from starlette.types import Scope

from libs.bus.rates import WINDOW_S, Rates
from libs.bus.spending import Spending
from libs.bus.starts import Starts
from libs.contracts.clock import Clock
from libs.contracts.errors import QuotaExceeded

# Where what is left is kept in the scope of a request, for the headers of its answer (`problems.py`).
SCOPE = "perdure.quotas"
# When to ask again for a place: runs end whenever they end.
PLACE_AFTER_S = 5


class Left(NamedTuple):
    """What is left of one quota: `quota` in `window_s` seconds (`None`: at once), more in `more_in_s`."""

    name: str
    quota: int
    window_s: int | None
    remaining: int
    more_in_s: int | None


class Quotas:
    """The quotas of this deployment."""

    def __init__(self, rates: Rates, starts: Starts, spending: Spending, clock: Clock) -> None:
        self._rates, self._starts, self._spending, self._clock = rates, starts, spending, clock

    async def count_request(self, scope: Scope, tenant: str) -> None:
        """One more request. Raises `QuotaExceeded` when the tenant's minute is full, or `Unavailable`."""
        standing = await self._rates.take(tenant)
        if standing is None or self._rates.limit is None:
            return
        left = Left("requests", self._rates.limit, WINDOW_S, standing.remaining, standing.more_in_s)
        _tell(scope, left)
        if not standing.granted:
            raise QuotaExceeded(
                f"tenant {tenant} may send {self._rates.limit} requests a minute (TENANT_REQUESTS_PER_MINUTE); "
                f"go on in {standing.more_in_s} s",
                retry_after_s=standing.more_in_s,
            )

    async def require_start(self, scope: Scope, tenant: str, run_id: str) -> None:
        """Keep a place for this run. Raises `QuotaExceeded` when there is none, or no token left for today."""
        self.require_tokens(tenant)
        place = await self._starts.reserve(tenant, run_id)
        if place is None or self._starts.most is None:
            return
        _tell(scope, Left("runs", self._starts.most, None, place.remaining, None))
        if not place.granted:
            raise QuotaExceeded(
                f"tenant {tenant} has {self._starts.most} runs under way and queued already "
                "(TENANT_MAX_ACTIVE_RUNS, TENANT_MAX_QUEUED_RUNS); start this one when one of them has ended",
                retry_after_s=PLACE_AFTER_S,
            )

    def require_tokens(self, tenant: str) -> None:
        """Raises `QuotaExceeded`, with the seconds until tomorrow, when the tenant's tokens for today are used up."""
        until = self._spending.over_until(tenant)
        if until is not None:
            raise QuotaExceeded(
                f"the tokens of tenant {tenant} for today are used up; it may start runs again at {until:%H:%M} UTC",
                retry_after_s=max(1, int((until - self._clock.now()).total_seconds()) + 1),
            )


def quota_headers(scope: Scope) -> dict[str, str]:
    """The headers that tell what is left, as far as a request was counted."""
    told: list[Left] = scope.get(SCOPE, [])
    if not told:
        return {}
    policies = [
        f'"{left.name}";q={left.quota}' + (f";w={left.window_s}" if left.window_s is not None else "")
        for left in told
    ]
    remaining = [
        f'"{left.name}";r={left.remaining}' + (f";t={left.more_in_s}" if left.more_in_s is not None else "")
        for left in told
    ]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(remaining)}


def _tell(scope: Scope, left: Left) -> None:
    told: list[Left] = scope.setdefault(SCOPE, [])
    told.append(left)
