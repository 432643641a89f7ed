"""Quotas of tenants: whether one may start another run now.

Invariant: only the start of a run is ever refused; what runs is parked by its owner, and everything else goes on.
"""

from libs.bus.spending import Spending
from libs.contracts.clock import Clock
from libs.contracts.errors import QuotaExceeded


class Quotas:
    """The quotas of this deployment."""

    def __init__(self, spending: Spending, clock: Clock) -> None:
        self._spending, self._clock = spending, clock

    def require_tokens(self, tenant: str) -> None:
        """Raises `QuotaExceeded`, with the seconds until tomorrow, when the tenant's tokens for today are used up."""
        until = self._spending.over_until(tenant)
        if until is not None:
            raise QuotaExceeded(
                f"the tokens of tenant {tenant} for today are used up; it may start runs again at {until:%H:%M} UTC",
                retry_after_s=max(1, int((until - self._clock.now()).total_seconds()) + 1),
            )
