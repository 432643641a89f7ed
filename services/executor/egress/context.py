"""The context window: what still fits, what leaves, and when nothing more can leave.

Invariant: pure; a unit (a turn with all its results) leaves as a whole, the oldest first, the newest never; the system
prompt, the goal, the plan and the last message of a person always survive (`history.py` keeps them in the head).

`summarising` is accepted as a strategy and works as the window: the summary itself comes with a later issue, its
place is `ContextCompacted.summary`.
"""

import msgspec

from libs.contracts.events import ContextCompacted
from libs.contracts.tasks import Limits
from services.executor.egress.history import Outbound

# Room for what the model writes: a fixed share would be too small for small windows and wasteful in large ones.
_OUTPUT_TOKENS = 8_000
_OUTPUT_SHARE_MAX = 0.25
# After a compaction the context is filled up to this share only: each one costs the provider's prompt cache, so they
# should be rare.
_TARGET_SHARE = 0.6
# What a provider called too long is cut to this share of what was sent, whatever the estimate says.
_OVERFLOW_SHARE = 0.5


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Send it. `tokens` is the whole request's estimate, tool schemas included."""

    tokens: int


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """Append this event first, fold it, and make the request from the state after it."""

    event: ContextCompacted


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing more can leave: the run fails with CONTEXT_EXHAUSTED."""

    message: str


Window = Fits | Compact | Exhausted


def fit(outbound: Outbound, limits: Limits, *, tool_tokens: int, overflowed: bool = False) -> Window:
    """Whether a request fits into the budget. `overflowed`: the provider has just refused it as too long, so that it
    does not, whatever the estimate says."""
    tokens = outbound.tokens + tool_tokens
    budget = limits.context_tokens - min(_OUTPUT_TOKENS, int(limits.context_tokens * _OUTPUT_SHARE_MAX))
    if tokens <= budget and not overflowed:
        return Fits(tokens=tokens)
    target = int(min(budget * _TARGET_SHARE, tokens * _OVERFLOW_SHARE if overflowed else budget))
    left, dropped = tokens, 0
    for unit, following in zip(outbound.units, outbound.units[1:], strict=False):
        if left <= target:
            break
        left -= unit.tokens
        dropped = following.first
    if not dropped or (left > budget and not overflowed):
        return Exhausted(
            message=f"The instructions, the goal and the newest turn take about {left} tokens; {budget} are allowed."
        )
    return Compact(
        event=ContextCompacted(
            strategy="sliding-window", tokens_before=tokens, tokens_after=left, dropped=dropped
        )
    )
