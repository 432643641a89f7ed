"""What a session may use of its project's caps, beside those that go on. Pure.

Invariant: what was used, and what is given to those that go on, never come to more than a cap; with something left and given
to nobody, one can begin. A run ends the turn in which it meets its limit, so each may use that much more.

A share is in the event that begins the session and given back once its agent's run has ended, whatever that used. An errand
asks no model and has none.
"""

import math
from collections.abc import Sequence

from libs.contracts.project import Feature, ProjectState
from libs.contracts.projects import FeatureStatus
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.values import Share

# Less is not worth a session beside others: a token, and what sums of fractions are off by is far below.
_TOKENS_MIN, _COST_USD_MIN = 1.0, 0.0001
_ASKS = frozenset({SessionKind.INITIALIZE, SessionKind.FEATURE})


def share_of(state: ProjectState, places: int, also: Sequence[Share] = ()) -> Share | None:
    """What one of `places` sessions that could begin now gets, beside those that go on and those that begin with it (`also`);
    `None`: it waits for one of them to end. With less than sessions have used on average none begins beside others: it would be
    cut off, and the turn that it may use too much is not worth it."""
    going = _given(state)
    given = [*going, *also]
    ended = max(1, state.sessions - state.removals - len(going))
    limits, session, usage = state.limits, state.limits.session, state.usage
    tokens = _part(
        (limits.max_total_tokens, session.max_total_tokens),
        usage.total_tokens,
        [share.tokens if share is not None else None for share in given],
        places,
        max(_TOKENS_MIN, usage.total_tokens / ended),
    )
    cost_usd = None
    # Of a cost that nobody knows nothing can be said; tokens are still capped.
    if usage.cost_usd is not None:
        cost_usd = _part(
            (limits.max_cost_usd, session.max_cost_usd),
            usage.cost_usd,
            [share.cost_usd if share is not None else None for share in given],
            places,
            max(_COST_USD_MIN, usage.cost_usd / ended),
        )
    if tokens == 0 or cost_usd == 0:
        return None
    return Share(tokens=int(tokens) if tokens is not None else None, cost_usd=cost_usd)


def without(state: ProjectState) -> Share:
    """What is left for one that began without a share: before these were written down, or before there was a cap. Beside it
    no other one begins."""
    tokens, cost_usd, spent_usd = (
        state.limits.max_total_tokens,
        state.limits.max_cost_usd,
        state.usage.cost_usd,
    )
    if tokens is not None:
        tokens = max(int(_TOKENS_MIN), tokens - state.usage.total_tokens)
    if cost_usd is not None:
        cost_usd = max(_COST_USD_MIN, cost_usd - spent_usd) if spent_usd is not None else None
    return Share(tokens=tokens, cost_usd=cost_usd)


def _part(
    caps: tuple[float | None, float | None],
    used: float,
    given: Sequence[float | None],
    places: int,
    enough: float,
) -> float | None:
    """An equal part of what is left and given to nobody, at least `enough`; 0: there is not enough; `None`: there is no cap.
    `caps` are the project's and that of each run."""
    cap, own = caps
    if cap is None:
        return None
    # One that began without a share may use all there is.
    free = cap - used - sum(math.inf if one is None else one for one in given)
    most = own if own is not None else math.inf
    if given and free < min(enough, most):
        return 0
    return max(0, min(max(free / places, enough), free, most))


def places(state: ProjectState, feature: Feature) -> int:
    """How many sessions could begin, this one of `feature` with them, before it is over: in lanes to which nothing is given,
    for features that wait neither for this one nor for a person."""
    lanes = state.spec.concurrency - len(_given(state))
    if lanes <= 1:
        return 1
    works = {work.feature_id for work in state.works.values()}
    later = _behind(state, feature)
    able = sum(
        other.state is FeatureStatus.PENDING and other.id not in works and other.id not in later
        for other in state.features.values()
    )
    return max(1, min(lanes, 1 + able))


def _behind(state: ProjectState, feature: Feature) -> set[str]:
    """The feature, those that are given up or left out, and all that depends on one of these."""
    closed = FeatureStatus.BLOCKED, FeatureStatus.SKIPPED
    found = [other.id for other in state.features.values() if other.state in closed]
    found.append(feature.id)
    following: dict[str, list[str]] = {}
    for other in state.features.values():
        for needed in other.spec.depends_on:
            following.setdefault(needed, []).append(other.id)
    behind = set(found)
    while found:
        new = [name for name in following.get(found.pop(), ()) if name not in behind]
        behind.update(new)
        found += new
    return behind


def _given(state: ProjectState) -> list[Share | None]:
    """The shares of those that go on and may still ask a model; `None`: of one that began before there were shares."""
    if state.items is not None:
        return [work.share for work in state.items.going.values()]
    return [
        work.share for work in state.works.values() if work.kind in _ASKS and Stage.AGENT not in work.ends
    ]
