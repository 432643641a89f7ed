"""Which feature is next, what is proved again before it, and when enough is enough. Pure.

Invariant: what broke goes first, then priority, then the order of the list, and nothing before what it depends on is
committed. Reaching a cap is a reason to stop and ask, never to be done.
"""

from datetime import datetime, timedelta

from libs.contracts.clock import parse_rfc3339
from libs.contracts.project import Feature, ProjectState
from libs.contracts.project_events import Cap
from libs.contracts.projects import FeatureStatus

# Between a clean session that was cut off, and the next one.
CONTINUATION_S = 1.0
# After failures: doubled each time, up to a bound that a person can wait for.
BACKOFF_S = 10.0
BACKOFF_S_MAX = 300.0
# 10·2^5 is above the bound; a larger power would overflow before it could be bounded.
_DOUBLINGS_MAX = 5
# Sessions of one feature that are cut off in a row; more say that it is too large.
UNFINISHED_MAX = 16
# Committed features that are proved again before a session.
REVERIFIED_MAX = 2


def backoff_s(failures: int) -> float:
    """Seconds before the try after this many failures in a row: `min(10·2^(n-1), 300)`."""
    return min(BACKOFF_S * 2 ** min(max(failures - 1, 0), _DOUBLINGS_MAX), BACKOFF_S_MAX)


def next_feature(state: ProjectState, lane: int) -> Feature | None:
    """The pending feature that may be worked on now in the lane and comes first."""
    held = held_elsewhere(state, lane)
    able = (
        feature
        for feature in state.features.values()
        if feature.state is FeatureStatus.PENDING and feature.id not in held and not unmet(state, feature)
    )
    return min(
        able,
        key=lambda feature: (not feature.front, feature.spec.priority, feature.position),
        default=None,
    )


def held_elsewhere(state: ProjectState, lane: int) -> set[str]:
    """The features that other lanes work on, or wait to go on with: a pause behind a failure is one for everybody."""
    works = {work.feature_id for work in state.works.values()}
    waits = {wait.feature_id for other, wait in state.waits.items() if other != lane}
    return {feature_id for feature_id in works | waits if feature_id is not None}


def unmet(state: ProjectState, feature: Feature) -> list[str]:
    """What the feature depends on and is not committed."""
    return [
        needed
        for needed in feature.spec.depends_on
        if state.features[needed].state is not FeatureStatus.COMMITTED
    ]


def to_reverify(state: ProjectState) -> list[str]:
    """The committed features to prove again now: the latest, and one that changes with each session."""
    committed = [feature for feature in state.features.values() if feature.state is FeatureStatus.COMMITTED]
    if not committed:
        return []
    latest = max(committed, key=lambda feature: feature.changed_at)
    turn = committed[state.sessions % len(committed)]
    return list(dict.fromkeys([latest.id, turn.id]))[:REVERIFIED_MAX]


def exhausted(state: ProjectState, feature: Feature) -> str | None:
    """Why nobody should work on the feature again before a person has looked at it."""
    most = state.attempts_max
    if feature.failures >= most:
        return f"{feature.failures} attempts failed, at most {most} are allowed"
    if feature.regressions >= most:
        return (
            f"it broke again {feature.regressions} times after it was committed, at most {most} are allowed"
        )
    if feature.unfinished >= UNFINISHED_MAX:
        return f"{feature.unfinished} sessions in a row were cut off: it is too large, cut it smaller"
    return None


def active_s(state: ProjectState, now: datetime) -> float:
    """How long the project was active."""
    since = (
        (now - parse_rfc3339(state.active_since)).total_seconds() if state.active_since is not None else 0.0
    )
    return state.active_ms / 1000 + max(0.0, since)


def reached_cap(state: ProjectState, now: datetime) -> tuple[Cap, str] | None:
    """The cap that forbids another session, with the reason."""
    limits, usage = state.limits, state.usage
    held = state.sessions - state.removals
    if limits.max_sessions is not None and held >= limits.max_sessions:
        return "sessions", f"{held} sessions were held, at most {limits.max_sessions} are allowed"
    if limits.max_total_tokens is not None and usage.total_tokens >= limits.max_total_tokens:
        return (
            "tokens",
            f"{usage.total_tokens} tokens were used, at most {limits.max_total_tokens} are allowed",
        )
    cost = usage.cost_usd
    if limits.max_cost_usd is not None and cost is not None and cost >= limits.max_cost_usd:
        return "cost", f"${cost:.4f} was spent, at most ${limits.max_cost_usd:g} is allowed"
    active = active_s(state, now)
    if limits.wall_time_s is not None and active >= limits.wall_time_s:
        return "wall_time", f"it was active for {active:.0f} s, at most {limits.wall_time_s:g} s are allowed"
    return None


def due_at(state: ProjectState, lane: int) -> datetime | None:
    """Before when nothing begins in the lane."""
    wait = state.waits.get(lane)
    return parse_rfc3339(wait.until) if wait is not None else None


def later(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)
