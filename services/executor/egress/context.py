"""The context window: what still fits, what leaves, and when nothing more can leave.

Invariant: pure; a unit (a turn with all its results) leaves as a whole, the oldest first, the newest never; the system
prompt, the goal, the plan and the last message of a person always survive (`history.py` keeps them in the head). Each
compaction lets something leave or makes the newest turn shorter, so there are only so many before `Exhausted`.
"""

from collections.abc import Callable
from itertools import pairwise
from math import ceil
from typing import NamedTuple

import msgspec

from libs.contracts.envelope import Event
from libs.contracts.events import ContextCompacted
from libs.contracts.evolve_work import compacted
from libs.contracts.run import RunState
from services.executor.egress.budget import input_tokens_max
from services.executor.egress.history import Outbound

# After a compaction the context is filled up to this share only: each one costs the provider's prompt cache, so they
# should be rare.
_TARGET_SHARE = 0.6
# What a provider called too long is cut to this share of what was sent, whatever the estimate says.
_OVERFLOW_SHARE = 0.5
# A turn of fewer tokens tells the model nothing; then its context is exhausted.
_TURN_TOKENS_MIN = 200
# A summary costs a model call: it must make room for at least this share of the request, else the turns just leave.
GAIN_SHARE_MIN = 0.1


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Send it. `tokens` is the whole request's estimate, tool schemas included."""

    tokens: int


class Compact(msgspec.Struct, frozen=True, kw_only=True):
    """Append this event first, fold it, and make the request from the state after it. `summarise`: a summary of what
    leaves is worth a model call first; the event stands when none comes of it."""

    event: ContextCompacted
    summarise: bool = False


class Exhausted(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing more can leave: the run fails with CONTEXT_EXHAUSTED."""

    message: str


Window = Fits | Compact | Exhausted
# The messages of a request as they are, and as they would be in the state after a compaction.
Foreseen = Callable[[RunState], Outbound]


def fit(
    outbound: Outbound, state: RunState, foreseen: Foreseen, *, tool_tokens: int, overflowed: bool = False
) -> Window:
    """Whether a request in this state fits into the budget. `overflowed`: the provider has just refused it as too
    long, so that it does not, whatever the estimate says."""
    tokens, budget = outbound.tokens + tool_tokens, input_tokens_max(state)
    if tokens <= budget and not overflowed:
        return Fits(tokens=scaled(tokens, state))
    goal = int(min(budget * _TARGET_SHARE, tokens * _OVERFLOW_SHARE if overflowed else budget))
    shorter = _Shorter(state, foreseen, tokens, tool_tokens)
    best = _fewer(outbound, shorter, goal, goal if overflowed else budget)
    if best is None or (best.tokens > budget and not overflowed):
        best = _clipped(outbound, shorter, goal if overflowed else budget, overflowed)
    if best is None:
        return Exhausted(message=_exhausted(outbound, shorter, budget))
    gain = tokens - best.tokens
    worth_it = state.limits.context_strategy == "summarising" and best.event.dropped > state.compacted
    return Compact(event=best.event, summarise=worth_it and gain >= GAIN_SHARE_MIN * tokens)


def scaled(tokens: int, state: RunState) -> int:
    """An estimate of ours as the run's model counts."""
    return ceil(tokens * state.token_ratio)


def after(state: RunState, event: ContextCompacted) -> RunState:
    """The state once a compaction is stored."""
    return compacted(state, Event(state.sequence + 1, state.run_id, "", event))


class _Candidate(NamedTuple):
    """A compaction, and the request as it would be after it."""

    event: ContextCompacted
    outbound: Outbound
    tokens: int


class _Shorter(NamedTuple):
    """Makes and measures compactions of a request of `tokens`."""

    state: RunState
    foreseen: Foreseen
    tokens: int
    tool_tokens: int

    def by(self, dropped: int, turn_tokens_max: int | None = None) -> _Candidate:
        event = ContextCompacted(
            strategy="sliding-window",
            tokens_before=scaled(self.tokens, self.state),
            tokens_after=0,
            dropped=dropped,
            summary=self.state.summary,
            turn_tokens_max=turn_tokens_max,
        )
        outbound = self.foreseen(after(self.state, event))
        tokens = outbound.tokens + self.tool_tokens
        counted = msgspec.structs.replace(event, tokens_after=scaled(tokens, self.state))
        return _Candidate(counted, outbound, tokens)


def _fewer(outbound: Outbound, shorter: _Shorter, goal: int, bound: int) -> _Candidate | None:
    """The oldest units leave until `goal` is reached; all but the newest if that is over `bound` still."""
    units = outbound.units
    if len(units) < 2:
        return None
    # What will stand for the units that leave takes room too.
    note = shorter.by(units[1].first).outbound.head_tokens - outbound.head_tokens
    left, dropped = shorter.tokens + max(0, note), units[1].first
    for unit, following in pairwise(units):
        if left <= goal:
            break
        left, dropped = left - unit.tokens, following.first
    found = shorter.by(dropped)
    if found.tokens > bound and dropped < units[-1].first:
        found = shorter.by(units[-1].first)
    return found


def _clipped(outbound: Outbound, shorter: _Shorter, bound: int, overflowed: bool) -> _Candidate | None:
    """Only the newest unit stays, its longest texts clipped as far as `bound` asks for; `None`: that is no way."""
    if not outbound.units:
        return None
    newest = outbound.units[-1]
    # A run without earlier units keeps its head as it is.
    dropped = newest.first if len(outbound.units) > 1 else shorter.state.compacted
    static = shorter.by(dropped).tokens - newest.tokens
    room = min(bound - static, newest.tokens)
    if overflowed and room < _TURN_TOKENS_MIN:
        # What cannot leave fills the bound alone; whether it fits is the provider's to say.
        room = newest.tokens // 2
    if room < _TURN_TOKENS_MIN:
        return None
    found = shorter.by(dropped, room)
    shortened = bool(found.outbound.units) and found.outbound.units[-1].tokens < newest.tokens
    return found if shortened and (overflowed or found.tokens <= bound) else None


def _exhausted(outbound: Outbound, shorter: _Shorter, budget: int) -> str:
    """What is too large, and what can be done about it."""
    state, limit = shorter.state, shorter.state.limits.context_tokens
    static = scaled(outbound.head_tokens + shorter.tool_tokens, state)
    allowed = scaled(budget, state)
    if not outbound.units or outbound.head_tokens + shorter.tool_tokens > budget - _TURN_TOKENS_MIN:
        return (
            f"The instructions, the goal and the descriptions of the tools take about {static} tokens; with "
            f"context_tokens={limit} {allowed} are allowed. Shorten the goal, the instructions or AGENTS.md, offer fewer "
            "tools (`tools` of the task), or raise context_tokens if the model's window is larger."
        )
    newest = scaled(outbound.units[-1].tokens, state)
    return (
        f"The newest turn takes about {newest} tokens beside {static} that never leave, and cannot be made shorter; with "
        f"context_tokens={limit} {allowed} are allowed. Split the task, lower max_tool_output_chars, or raise "
        "context_tokens if the model's window is larger."
    )
