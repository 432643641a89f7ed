"""The fold of a project's log: `evolve(state, event) -> state`, without clock, I/O or bus.

Invariant: as in `evolve.py`; and no feature is verified without a verdict PASSED, none committed without a commit: what a
model says never reaches these states. An event costs the same whatever the project's age.
"""

from collections.abc import Callable
from typing import cast

import msgspec

from libs.contracts import project_events as e
from libs.contracts.checks import Verdict
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Event
from libs.contracts.errors import IllegalTransition
from libs.contracts.eventbody import EventBody
from libs.contracts.evolve_items import all_again, all_over, counted, item_decided, items_begun, items_ended
from libs.contracts.evolve_sessions import (
    error_text,
    illegal,
    session_ended,
    session_run_ended,
    session_run_requested,
    session_stalled,
    session_started,
)
from libs.contracts.items import ItemsState
from libs.contracts.project import (
    ACTIVE_FEATURE,
    FEATURE_LEGAL,
    LEGAL,
    PHASE_LEGAL,
    Block,
    Feature,
    ProjectState,
)
from libs.contracts.projects import (
    FeatureSpec,
    FeatureStatus,
    ProjectStatus,
)

_replace = msgspec.structs.replace


def evolve_project(state: ProjectState | None, event: Event) -> ProjectState:
    """The state after `event`. `None` is the state before the first event, which must be `project.created`."""
    body = event.body
    if state is None:
        return _created(event)
    if event.sequence != state.sequence + 1:
        raise IllegalTransition(
            f"event {event.sequence} of {state.project_id} follows {state.sequence}: a gap"
        )
    legal = LEGAL.get(type(body))
    if legal is None or state.status not in legal:
        raise illegal(state, event, f"{body.type} is not legal in {state.status}")
    folded = _FOLDS[type(body)](state, event)
    return _replace(folded, sequence=event.sequence, last_event_at=event.at)


def _created(event: Event) -> ProjectState:
    body = event.body
    if not isinstance(body, e.ProjectCreated) or event.sequence != 1:
        raise IllegalTransition(f"the log of {event.run_id} begins with {body.type} ({event.sequence})")
    state = ProjectState(
        project_id=event.run_id,
        tenant=body.tenant,
        spec=body.spec,
        workspace=body.workspace,
        body_hash=body.body_hash,
        created_at=event.at,
        by=body.by,
        last_event_at=event.at,
        limits=body.spec.limits,
        attempts_max=body.spec.max_attempts_per_feature,
        active_since=event.at,
    )
    return counted(_replace(state, items=ItemsState())) if body.spec.map is not None else state


# --- The list of features ---------------------------------------------------------------------------------------


def _list_set(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.FeatureListSet, event.body)
    if state.features:
        raise illegal(state, event, "the list of features is set once")
    return _replace(_listed(state, body.features), problems=[])


def _list_amended(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.FeatureListAmended, event.body)
    if any(spec.id in state.features for spec in body.features):
        raise illegal(state, event, "a feature that is listed is never changed")
    # What was proved was proved of a shorter list.
    return _replace(_listed(state, body.features), problems=[], proved_at=None)


def _listed(state: ProjectState, specs: list[FeatureSpec]) -> ProjectState:
    start = len(state.features)
    added = {spec.id: Feature(spec=spec, position=start + index) for index, spec in enumerate(specs)}
    counts = {**state.counts, FeatureStatus.PENDING: state.count(FeatureStatus.PENDING) + len(added)}
    return _replace(state, features={**state.features, **added}, counts=counts)


def _list_rejected(state: ProjectState, event: Event) -> ProjectState:
    return _replace(state, problems=cast(e.FeatureListRejected, event.body).problems)


def _feature_changed(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.FeatureStateChanged, event.body)
    known = state.features.get(body.feature_id)
    if known is None or known.state is not body.before:
        raise illegal(state, event, f"feature {body.feature_id} is not {body.before}")
    if body.state not in FEATURE_LEGAL[known.state]:
        raise illegal(state, event, f"feature {body.feature_id} goes from {body.before} to {body.state}")
    evidence = body.evidence
    if body.state is FeatureStatus.VERIFIED and (evidence is None or evidence.verdict != Verdict.PASSED):
        raise illegal(state, event, f"feature {body.feature_id} is verified without a verdict PASSED")
    if body.state is FeatureStatus.COMMITTED and (evidence is None or not evidence.commit):
        raise illegal(state, event, f"feature {body.feature_id} is committed without a commit")
    lane = _lane_of(state, event, body)
    feature = _moved(known, body, event.at, lane)
    counts = {**state.counts, known.state: state.counts[known.state] - 1}
    counts[feature.state] = counts.get(feature.state, 0) + 1
    regressed = body.before is FeatureStatus.COMMITTED
    return _replace(
        state,
        features={**state.features, feature.id: feature},
        counts=counts,
        proved_at=None if regressed else state.proved_at,
    )


def _lane_of(state: ProjectState, event: Event, body: e.FeatureStateChanged) -> int | None:
    """The lane that works on the feature from now on; only the session that names it may."""
    if body.state not in ACTIVE_FEATURE:
        return None
    for lane, work in state.works.items():
        if work.feature_id == body.feature_id and work.session == body.session:
            return lane
    raise illegal(state, event, f"no session works on feature {body.feature_id}")


def _moved(known: Feature, body: e.FeatureStateChanged, at: str, lane: int | None) -> Feature:
    feature = _replace(
        known, state=body.state, lane=lane, changed_at=at, evidence=body.evidence or known.evidence
    )
    match body.state:
        case FeatureStatus.COMMITTED:
            assert body.evidence is not None
            return _replace(
                feature,
                commit=body.evidence.commit,
                front=False,
                failures=0,
                unfinished=0,
                last_error="",
                side_ref=None,
            )
        case FeatureStatus.PENDING if body.before is FeatureStatus.COMMITTED:
            return _replace(
                feature,
                front=True,
                regressions=feature.regressions + (body.by is None),
                last_error=error_text(body.reason, body.evidence.output if body.evidence else ""),
            )
        case FeatureStatus.PENDING if body.by is not None:
            return _replace(feature, failures=0, unfinished=0, regressions=0)
        case FeatureStatus.BLOCKED:
            return _replace(feature, last_error=feature.last_error or body.reason)
        case _:
            return feature


# --- The project's own life -------------------------------------------------------------------------------------


def _phase_changed(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.PhaseChanged, event.body)
    if body.before is not state.phase or body.phase not in PHASE_LEGAL[state.phase]:
        raise illegal(state, event, f"the phase goes from {state.phase} to {body.phase}")
    return _replace(state, phase=body.phase)


def _halted(state: ProjectState, at: str) -> ProjectState:
    """The time that it was active is counted."""
    if state.active_since is None:
        return state
    active = parse_rfc3339(at) - parse_rfc3339(state.active_since)
    added = max(0, int(active.total_seconds() * 1000))
    return _replace(state, active_ms=state.active_ms + added, active_since=None)


def _paused(state: ProjectState, event: Event) -> ProjectState:
    return _replace(_halted(state, event.at), status=ProjectStatus.PAUSED)


def _resumed(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.ProjectResumed, event.body)
    if state.block is not None and state.block.cap == "items":
        state = all_again(state, event)
    return _replace(
        state,
        status=ProjectStatus.ACTIVE,
        active_since=event.at,
        block=None,
        limits=body.limits or state.limits,
        attempts_max=body.max_attempts_per_feature or state.attempts_max,
        failures=0 if state.block is not None else state.failures,
    )


def _blocked(state: ProjectState, event: Event) -> ProjectState:
    body = cast(e.ProjectBlocked, event.body)
    block = Block(cap=body.cap, reason=body.reason)
    return _replace(_halted(state, event.at), status=ProjectStatus.BLOCKED, block=block)


def _cancel_requested(state: ProjectState, event: Event) -> ProjectState:
    return _replace(state, cancel_requested_by=cast(e.ProjectCancelRequested, event.body).by)


def _cancelled(state: ProjectState, event: Event) -> ProjectState:
    if state.works or (state.items is not None and state.items.going):
        raise illegal(state, event, "a session still goes on")
    return _replace(_halted(state, event.at), status=ProjectStatus.CANCELLED, finished_at=event.at, waits={})


def _completed(state: ProjectState, event: Event) -> ProjectState:
    if not all_over(state) and (
        state.works
        or not state.features
        or any(state.count(status) for status in FeatureStatus if status not in _DONE)
    ):
        raise illegal(state, event, "not every feature is committed or skipped")
    return _replace(_halted(state, event.at), status=ProjectStatus.COMPLETED, finished_at=event.at, waits={})


_DONE = frozenset({FeatureStatus.COMMITTED, FeatureStatus.SKIPPED})


_FOLDS: dict[type[EventBody], Callable[[ProjectState, Event], ProjectState]] = {
    e.FeatureListSet: _list_set,
    e.FeatureListAmended: _list_amended,
    e.FeatureListRejected: _list_rejected,
    e.PhaseChanged: _phase_changed,
    e.ProjectPaused: _paused,
    e.ProjectResumed: _resumed,
    e.ProjectBlocked: _blocked,
    e.ProjectCancelRequested: _cancel_requested,
    e.ProjectCancelled: _cancelled,
    e.ProjectCompleted: _completed,
    e.SessionStarted: session_started,
    e.SessionRunRequested: session_run_requested,
    e.SessionStalled: session_stalled,
    e.SessionRunEnded: session_run_ended,
    e.SessionEnded: session_ended,
    e.FeatureStateChanged: _feature_changed,
    e.ItemsBegun: items_begun,
    e.ItemsEnded: items_ended,
    e.ItemDecided: item_decided,
}
