"""Which session begins next in a lane that is free, or why none does. Pure.

Invariant: a project is done only when every feature is committed or skipped and the whole was proved once more; with
anything else left it is blocked, and says by what.
"""

from datetime import datetime

from libs.contracts import project_events as e
from libs.contracts.project import OPEN_FEATURE, Feature, ProjectState
from libs.contracts.project_events import ProjectEvent
from libs.contracts.projects import FeatureStatus, Phase
from libs.contracts.sessions import SessionKind
from libs.contracts.values import Share
from services.scheduler.projects.selection import (
    exhausted,
    held_elsewhere,
    next_feature,
    reached_cap,
    to_reverify,
    unmet,
)
from services.scheduler.projects.shares import places, share_of

# Features that a reason names; the list of them is one request away.
_NAMED_MAX = 5


def start(state: ProjectState, lane: int, now: datetime) -> list[ProjectEvent]:
    """What is to be recorded for a free lane; nothing while another lane's work, or wait, has to end first. What concerns
    the whole project begins in lane 0."""
    if state.phase is Phase.INITIALIZE:
        return _initialize(state, lane, now) if lane == 0 and not state.works else []
    feature = next_feature(state, lane)
    if feature is None:
        if _is_over(state) and lane in state.to_leave:
            return [removal(state, lane)]
        busy = lane != 0 or state.works or _waited_for(state, lane)
        return [] if busy else _without_features(state, lane, now)
    why = exhausted(state, feature)
    if why is not None:
        return [
            e.FeatureStateChanged(
                feature_id=feature.id,
                before=feature.state,
                state=FeatureStatus.BLOCKED,
                reason=f"{why}; last error: {feature.last_error or 'none'}",
            )
        ]
    cap = reached_cap(state, now)
    if cap is not None:
        # What other lanes are at ends first, and counts.
        return [] if state.works else [_capped(cap)]
    share = share_of(state, places(state, feature))
    # What is left is given to others; each that ends gives back what it did not use.
    return [_session(state, lane, feature, share)] if share is not None else []


def removal(state: ProjectState, lane: int) -> ProjectEvent:
    """A session that brings home what the lane's workspace holds, so that it can go."""
    return e.SessionStarted(
        session=state.sessions + 1,
        kind=SessionKind.REMOVE,
        lane=lane,
        attempt=state.unremoved.get(lane, 0) + 1,
    )


def _is_over(state: ProjectState) -> bool:
    """Whether nothing is left to do but to put things away."""
    return not state.count(*OPEN_FEATURE) and not _to_prove(state)


def _to_prove(state: ProjectState) -> bool:
    return state.proved_at is None and state.count(FeatureStatus.COMMITTED) > 0


def _waited_for(state: ProjectState, lane: int) -> bool:
    """Whether another lane will go on with something that is pending, or with its removal."""
    if _is_over(state) and state.to_leave:
        return True
    held = held_elsewhere(state, lane)
    return any(state.features[feature_id].state is FeatureStatus.PENDING for feature_id in held)


def _initialize(state: ProjectState, lane: int, now: datetime) -> list[ProjectEvent]:
    if state.spec.features and not state.features:
        return [e.FeatureListSet(features=state.spec.features)]
    return _tried(state, now) or [
        e.SessionStarted(
            session=state.sessions + 1,
            kind=SessionKind.INITIALIZE,
            lane=lane,
            attempt=state.failures + 1,
            share=share_of(state, 1),
        )
    ]


def _session(state: ProjectState, lane: int, feature: Feature, share: Share) -> ProjectEvent:
    return e.SessionStarted(
        session=state.sessions + 1,
        kind=SessionKind.FEATURE,
        lane=lane,
        feature_id=feature.id,
        attempt=feature.failures + feature.unfinished + 1,
        reverify=to_reverify(state),
        base=state.head if state.in_lanes else None,
        share=share,
    )


def _without_features(state: ProjectState, lane: int, now: datetime) -> list[ProjectEvent]:
    """Nothing is left that anybody could work on."""
    if state.count(FeatureStatus.PENDING, FeatureStatus.BLOCKED):
        return [_stuck(state)]
    if _to_prove(state):
        tried = _tried(state, now)
        if tried:
            return tried
        committed = [
            feature.id for feature in state.features.values() if feature.state is FeatureStatus.COMMITTED
        ]
        session = e.SessionStarted(
            session=state.sessions + 1, kind=SessionKind.FINAL, lane=lane, reverify=committed
        )
        return [*_phase(state, Phase.VERIFY), session]
    return [
        *_phase(state, Phase.VERIFY),
        e.PhaseChanged(before=Phase.VERIFY, phase=Phase.DONE),
        e.ProjectCompleted(
            committed=state.count(FeatureStatus.COMMITTED),
            skipped=state.count(FeatureStatus.SKIPPED),
            commit=state.head,
            removed=state.removed,
        ),
    ]


def _phase(state: ProjectState, phase: Phase) -> list[ProjectEvent]:
    return [e.PhaseChanged(before=state.phase, phase=phase)] if state.phase is not phase else []


def _tried(state: ProjectState, now: datetime) -> list[ProjectEvent]:
    """The block of a project whose sessions without a feature fail, or that has reached a cap."""
    if state.failures >= state.attempts_max:
        why = f"{state.failures} sessions failed in a row, at most {state.attempts_max} are allowed"
        return [e.ProjectBlocked(cap="attempts", reason=f"{why}; last error: {state.last_error or 'none'}")]
    cap = reached_cap(state, now)
    return [_capped(cap)] if cap is not None else []


def _capped(cap: tuple[e.Cap, str]) -> e.ProjectBlocked:
    return e.ProjectBlocked(cap=cap[0], reason=f"{cap[1]}; resume it with a higher limit to go on")


def _stuck(state: ProjectState) -> e.ProjectBlocked:
    """Features are left, and none of them may be worked on."""
    blocked = [feature for feature in state.features.values() if feature.state is FeatureStatus.BLOCKED]
    waiting = [feature for feature in state.features.values() if feature.state is FeatureStatus.PENDING]
    parts = [f"{len(blocked)} features are blocked: {_named(blocked)}"] if blocked else []
    if waiting:
        needs = sorted({needed for feature in waiting for needed in unmet(state, feature)})
        parts.append(
            f"{len(waiting)} features wait for {', '.join(needs[:_NAMED_MAX])}, which will not be committed"
        )
    told = "; ".join(parts)
    return e.ProjectBlocked(cap="features", reason=f"{told}. Retry or skip them, then resume the project")


def _named(features: list[Feature]) -> str:
    more = len(features) - _NAMED_MAX
    named = "; ".join(f"{feature.id} ({feature.last_error[:200]})" for feature in features[:_NAMED_MAX])
    return f"{named} and {more} more" if more > 0 else named
