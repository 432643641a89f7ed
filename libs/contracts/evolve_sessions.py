"""The sessions of a project, folded: which go on where, what their runs say, and what an ended one speaks for or against.

Invariant: as in `evolve_project.py`; in each lane one session at a time, and what one did for its lane alone changes nothing
of what the project stands at.
"""

from typing import cast

import msgspec

from libs.contracts import project_events as e
from libs.contracts.envelope import Event
from libs.contracts.errors import IllegalTransition
from libs.contracts.project import ACTIVE_FEATURE, LastSession, ProjectState, StageEnd, Waiting, Work
from libs.contracts.projects import ERROR_CHARS_MAX, Outcome, remembered, together
from libs.contracts.sessions import SessionKind, Stage

_replace = msgspec.structs.replace


def illegal(state: ProjectState, event: Event, why: str) -> IllegalTransition:
    """The refusal of an event that cannot follow, for raising."""
    return IllegalTransition(f"event {event.sequence} of {state.project_id}: {why}")


def session_started(state: ProjectState, event: Event) -> ProjectState:
    """A session begins in a free lane."""
    body = cast(e.SessionStarted, event.body)
    if body.session != state.sessions + 1 or body.lane in state.works:
        raise illegal(state, event, f"session {body.session} cannot begin in lane {body.lane}")
    if any(work.feature_id == body.feature_id is not None for work in state.works.values()):
        raise illegal(state, event, f"another lane works on {body.feature_id}")
    work = Work(
        session=body.session,
        kind=body.kind,
        lane=body.lane,
        started_at=event.at,
        feature_id=body.feature_id,
        attempt=body.attempt,
        reverify=body.reverify,
        base=body.base,
        share=body.share,
    )
    waits = {lane: wait for lane, wait in state.waits.items() if lane != body.lane}
    features = state.features
    if body.feature_id is not None:
        known = features[body.feature_id]
        features = {**features, known.id: _replace(known, sessions=known.sessions + 1)}
    return _replace(
        state,
        sessions=body.session,
        removals=state.removals + (body.kind is SessionKind.REMOVE),
        works={**state.works, body.lane: work},
        waits=waits,
        features=features,
    )


def _work(state: ProjectState, event: Event, lane: int, session: int) -> Work:
    work = state.works.get(lane)
    if work is None or work.session != session:
        raise illegal(state, event, f"session {session} does not go on in lane {lane}")
    return work


def session_run_requested(state: ProjectState, event: Event) -> ProjectState:
    """The run of the session's next stage should exist."""
    body = cast(e.SessionRunRequested, event.body)
    work = _work(state, event, body.lane, body.session)
    if work.run_id is not None or body.stage in work.ends:
        raise illegal(state, event, f"session {body.session} has its run {work.run_id} already")
    work = _replace(work, stage=body.stage, run_id=body.run_id, requested_at=event.at)
    return _replace(state, works={**state.works, body.lane: work})


def session_stalled(state: ProjectState, event: Event) -> ProjectState:
    """The session's run is to end."""
    body = cast(e.SessionStalled, event.body)
    work = _work(state, event, body.lane, body.session)
    if work.run_id != body.run_id or work.stalled:
        raise illegal(state, event, f"run {body.run_id} is not one that may stall")
    why = f"it showed no sign of life for {body.silent_s:.0f} s, {body.limit_s:g} s are allowed (stall_s)"
    return _replace(state, works={**state.works, body.lane: _replace(work, stalled=why)})


def session_run_ended(state: ProjectState, event: Event) -> ProjectState:
    """A stage is over; of a lane that began with it, its workspace stands."""
    body = cast(e.SessionRunEnded, event.body)
    work = _work(state, event, body.lane, body.session)
    if work.run_id != body.run_id or work.stage is not body.stage:
        raise illegal(state, event, f"run {body.run_id} is not the one that goes on")
    end = msgspec.convert(body, StageEnd, from_attributes=True)
    work = _replace(work, stage=None, run_id=None, stalled="", ends={**work.ends, body.stage: end})
    works, usage = {**state.works, body.lane: work}, state.usage.plus(body.usage)
    state = _replace(state, works=works, usage=usage)
    if body.stage is not Stage.BEGIN or body.error is not None:
        return state
    unremoved = {lane: tries for lane, tries in state.unremoved.items() if lane != work.lane}
    return _replace(state, lanes=state.lanes | {work.lane}, unremoved=unremoved)


def session_ended(state: ProjectState, event: Event) -> ProjectState:
    """The session is over: nothing is left active in its lane."""
    body = cast(e.SessionEnded, event.body)
    work = _work(state, event, body.lane, body.session)
    feature = state.features.get(work.feature_id or "")
    if work.run_id is not None or (feature is not None and feature.state in ACTIVE_FEATURE):
        raise illegal(state, event, f"session {body.session} is not over yet")
    error = error_text(body.reason, body.evidence.output if body.evidence is not None else "")
    if work.kind is not SessionKind.REMOVE:
        state = _concluded(state, work, body, event, error)
    elif body.outcome is Outcome.REMOVED:
        state = _replace(state, lanes=state.lanes - {work.lane})
    else:
        tries = state.unremoved.get(work.lane, 0) + 1
        state = _replace(state, unremoved={**state.unremoved, work.lane: tries}, last_error=error)
    waits = state.waits
    if body.retry_at is not None:
        wait = Waiting(until=body.retry_at, sequence=event.sequence, feature_id=body.feature_id)
        waits = {**waits, body.lane: wait}
    return _replace(
        state,
        works={lane: other for lane, other in state.works.items() if lane != body.lane},
        waits=waits,
    )


def _concluded(
    state: ProjectState, work: Work, body: e.SessionEnded, event: Event, error: str
) -> ProjectState:
    """What a session that worked for the project leaves to the sessions that follow."""
    handoff = remembered(state.handoff, body.handoff)
    if body.handoff is not None and state.handoff_at > work.started_at:
        handoff = together(state.handoff, handoff)
    return _replace(
        _judged(state, work, body, error),
        handoff=handoff,
        handoff_at=state.handoff_at if body.handoff is None else event.at,
        last_session=LastSession(
            session=body.session,
            outcome=body.outcome,
            reason=body.reason,
            feature_id=body.feature_id,
            at=event.at,
        ),
        last_error="" if body.outcome in _GOOD else error,
        head=body.head or state.head,
        baseline=body.baseline or state.baseline,
        proved_at=event.sequence if body.outcome is Outcome.PROVED else state.proved_at,
    )


_GOOD = frozenset({Outcome.COMMITTED, Outcome.INITIALIZED, Outcome.PROVED})
_COUNTED = frozenset({Outcome.FAILED, Outcome.CANCELLED})


def _judged(state: ProjectState, work: Work, body: e.SessionEnded, error: str) -> ProjectState:
    """What the end of a session says against its feature, or against the beginning of the project."""
    if work.kind is not SessionKind.FEATURE:
        failed = body.outcome in _COUNTED or body.outcome is Outcome.UNFINISHED
        return _replace(state, failures=state.failures + 1 if failed else 0)
    assert work.feature_id is not None
    known = state.features[work.feature_id]
    feature = known
    if body.outcome in _COUNTED:
        # What was judged and failed is not gone on with; people find it under the session's side ref.
        kept = None if Stage.AGENT in work.ends else known.side_ref
        feature = _replace(known, failures=known.failures + 1, last_error=error, side_ref=kept)
    elif body.outcome is Outcome.UNFINISHED:
        # Of a session that never came to its agent, what the one before left is still to be gone on with.
        kept = body.side_ref if Stage.AGENT in work.ends else body.side_ref or known.side_ref
        feature = _replace(known, unfinished=known.unfinished + 1, last_error=error, side_ref=kept)
    return _replace(state, features={**state.features, feature.id: feature})


def error_text(reason: str, output: str) -> str:
    text = f"{reason}\n{output}".strip()
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
