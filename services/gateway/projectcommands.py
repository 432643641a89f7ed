"""What a command of a client means for a project: pure, one function a command.

Invariant: as with the commands on runs: a decision looks at the folded state alone, so deciding again after a lost race is
safe; a refusal says the state and what to do instead.
"""

from libs.contracts.errors import InvalidState, NotFound
from libs.contracts.items import index_of
from libs.contracts.project import FEATURE_LEGAL, Feature, ProjectState
from libs.contracts.project_events import (
    FeatureStateChanged,
    ItemDecided,
    ProjectCancelRequested,
    ProjectEvent,
    ProjectPaused,
    ProjectResumed,
)
from libs.contracts.projects import FeatureStatus, ProjectLimits, ProjectStatus


def pause(state: ProjectState, by: str) -> list[ProjectEvent]:
    """No session begins, and the run that goes on comes to a rest. Again is the same as once."""
    _require_live(state, "paused")
    match state.status:
        case ProjectStatus.PAUSED:
            return []
        case ProjectStatus.BLOCKED:
            raise InvalidState(f"project {state.project_id} is BLOCKED: nothing goes on that could be paused")
        case _:
            return [ProjectPaused(by=by)]


def resume(
    state: ProjectState, by: str, limits: ProjectLimits | None = None, attempts_max: int | None = None
) -> list[ProjectEvent]:
    """Go on after a pause or a block, with other limits if some are given. Features that failed too often may be tried
    again when more attempts are allowed."""
    _require_live(state, "resumed")
    if state.status is ProjectStatus.ACTIVE:
        if limits is None and attempts_max is None:
            return []
        raise InvalidState(f"project {state.project_id} is ACTIVE; pause it to change its limits")
    resumed = ProjectResumed(by=by, limits=limits, max_attempts_per_feature=attempts_max)
    if attempts_max is None or attempts_max <= state.attempts_max:
        return [resumed]
    given_up = [feature for feature in state.features.values() if feature.state is FeatureStatus.BLOCKED]
    return [resumed, *(_again(feature, by, "more attempts are allowed") for feature in given_up)]


def cancel(state: ProjectState, by: str) -> list[ProjectEvent]:
    """End the project and the run that goes on. Again is the same as once."""
    if state.status is ProjectStatus.CANCELLED or state.cancel_requested_by is not None:
        return []
    _require_live(state, "cancelled")
    return [ProjectCancelRequested(by=by)]


def skip(state: ProjectState, feature_id: str, by: str) -> list[ProjectEvent]:
    """Leave a feature out. One that is being worked on is not: pause the project first, or wait."""
    if state.items is not None:
        return _item(state, feature_id, by, skip=True)
    feature = _feature(state, feature_id)
    if feature.state is FeatureStatus.SKIPPED:
        return []
    if FeatureStatus.SKIPPED not in FEATURE_LEGAL[feature.state]:
        raise InvalidState(
            f"feature {feature_id} is {feature.state.value}; only a pending or blocked one can be skipped"
        )
    return [_changed(feature, FeatureStatus.SKIPPED, by, "skipped")]


def retry(state: ProjectState, feature_id: str, by: str) -> list[ProjectEvent]:
    """Work on a feature again: one that was given up, skipped, or committed and is not right. A project that was blocked
    by its features goes on."""
    if state.items is not None:
        return _item(state, feature_id, by, skip=False)
    feature = _feature(state, feature_id)
    events: list[ProjectEvent] = []
    match feature.state:
        case FeatureStatus.BLOCKED | FeatureStatus.SKIPPED | FeatureStatus.COMMITTED:
            events.append(_again(feature, by, "retried"))
        case FeatureStatus.PENDING:
            pass
        case _:
            raise InvalidState(f"feature {feature_id} is {feature.state.value}: it is being worked on")
    if state.block is not None and state.block.cap == "features":
        events.append(ProjectResumed(by=by))
    return events


def _item(state: ProjectState, identifier: str, by: str, *, skip: bool) -> list[ProjectEvent]:
    """An item that was given up is tried again or left out; once none is, a project that was blocked by them goes on."""
    items, index = state.items, index_of(identifier, state.total)
    assert items is not None
    if index is None:
        raise NotFound(f"project {state.project_id} has no item {identifier[:80]!r}")
    _require_live(state, "changed")
    if skip and index in items.skipped:
        return []
    if index not in items.failed:
        raise InvalidState(f"{identifier} was not given up; only such items can be retried or skipped")
    events: list[ProjectEvent] = [ItemDecided(index=index, skip=skip, by=by)]
    last = len(items.failed) == 1
    if last and state.block is not None and state.block.cap == "items":
        events.append(ProjectResumed(by=by))
    return events


def _again(feature: Feature, by: str, reason: str) -> FeatureStateChanged:
    return _changed(feature, FeatureStatus.PENDING, by, reason)


def _changed(feature: Feature, status: FeatureStatus, by: str, reason: str) -> FeatureStateChanged:
    return FeatureStateChanged(
        feature_id=feature.id, before=feature.state, state=status, reason=f"{reason} by {by}", by=by
    )


def _feature(state: ProjectState, feature_id: str) -> Feature:
    feature = state.features.get(feature_id)
    if feature is None:
        raise NotFound(f"project {state.project_id} has no feature {feature_id[:80]!r}")
    _require_live(state, "changed")
    return feature


def _require_live(state: ProjectState, what: str) -> None:
    if state.terminal or state.cancel_requested_by is not None:
        raise InvalidState(
            f"project {state.project_id} is {state.status.value} and cannot be {what} any more"
        )
