"""The pure core of projects: `settle(state, env)` says what is to be recorded, and which runs should exist now.

Invariant: the same log and the same runs give the same decision, in whichever scheduler; a run is asked for in the log
before it is made, under an id that derives from that decision, so no session is ever held twice.

One step (`decide`) either has something to say (events, after which it is asked again) or names what should be true of
the world: runs that exist, runs that end or pause, a timer that stands.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from libs.contracts import project_events as e
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.envelope import Event
from libs.contracts.evolve_project import evolve_project
from libs.contracts.ids import session_run_id
from libs.contracts.project import ProjectState, Work
from libs.contracts.project_events import ProjectEvent
from libs.contracts.projects import LANES_MAX, FeatureStatus, Outcome, Phase, ProjectStatus
from libs.contracts.run import RunStatus
from libs.contracts.sessions import SessionKind, Stage
from services.scheduler.projects.effects import (
    Do,
    Effect,
    Env,
    MakeRun,
    PauseRun,
    ResumeRun,
    Say,
    StopRun,
    Wait,
    Watch,
)
from services.scheduler.projects.ending import closed, run_ended
from services.scheduler.projects.items import decide_items
from services.scheduler.projects.lanes import has_its_turn, in_lane, is_last
from services.scheduler.projects.selection import due_at, later
from services.scheduler.projects.sessions import health_steps
from services.scheduler.projects.silences import STALL
from services.scheduler.projects.starting import removal, start

# What can be said in a row, of each lane: the end of a run, what follows for the session, a feature that is given up, the
# next session and its first run. All of it is one record.
SAYS_MAX = 8 * LANES_MAX
# A run that empties a lane, beside its hook: git over one workspace, twice, and a bundle. A project that is over waits so long
# for it, be it that no host is there.
REMOVAL_S = 120.0
# Who stops a run that takes longer, and goes on with those that rest.
BY = "project"


class Settled(NamedTuple):
    """All that is to be recorded now, and what should be true once it is."""

    events: list[ProjectEvent]
    then: Do
    state: ProjectState


def settle(state: ProjectState, env: Env) -> Settled:
    """Decide until there is nothing more to say. Ends, because each `Say` ends a run, a session, or begins one."""
    said: list[ProjectEvent] = []
    for _ in range(SAYS_MAX):
        step = decide(state, env)
        if isinstance(step, Do):
            return Settled(said, step, state)
        state = foresee(state, step.events, env.now)
        said += step.events
    raise AssertionError(f"the decision on {state.project_id} does not come to an end")


def foresee(state: ProjectState, bodies: Sequence[ProjectEvent], now: datetime) -> ProjectState:
    """The state as it will be once `bodies` are stored."""
    at = rfc3339(now)
    for body in bodies:
        state = evolve_project(state, Event(state.sequence + 1, state.project_id, at, body))
    return state


def decide(state: ProjectState, env: Env) -> Say | Do:
    """One step for a project, whoever asks."""
    if state.terminal:
        return Do(())
    if state.items is not None:
        return decide_items(state, env)
    for work in state.works.values():
        run = env.runs.get(work.run_id or "")
        if run is not None and run.ended:
            return Say(run_ended(state, work, run._replace(stalled=work.stalled), env.now))
    if state.cancel_requested_by is not None:
        return _cancel(state, env, state.cancel_requested_by)
    match state.status:
        case ProjectStatus.PAUSED:
            return Do(tuple(_pauses(state, env)))
        case ProjectStatus.BLOCKED:
            return Do(())
        case _:
            return _go_on(state, env)


def _cancel(state: ProjectState, env: Env, by: str) -> Say | Do:
    """Whatever works ends; then the lanes are emptied, and the project is over."""
    stops: list[Effect] = []
    for work in state.works.values():
        if work.kind is SessionKind.REMOVE:
            continue
        if work.run_id is None:
            return Say(_abandoned(state, work, by))
        # A run that was asked for and is not there yet may be made this moment by another scheduler: it is made, and
        # stopped once it is seen.
        stops.append(StopRun(work.run_id, by) if work.run_id in env.runs else MakeRun(work.lane))
    if stops:
        return Do(tuple(stops))
    effects: list[Effect] = []
    for lane in sorted({*state.works, *state.to_leave}):
        work = state.works.get(lane)
        step = _held(state, env, work) if work is not None else _leave(state, env, lane)
        if isinstance(step, Say):
            return step
        effects += step.effects
    if state.works or state.to_leave:
        return Do(tuple(effects))
    return Say([e.ProjectCancelled(by=by, removed=state.removed)])


def _leave(state: ProjectState, env: Env, lane: int) -> Say | Do:
    """Begin to empty a lane whose project is cancelled; only behind a try that failed it is waited."""
    wait = _wait(state, env, lane) if lane in state.unremoved else None
    return Do((wait,)) if wait is not None else Say([removal(state, lane)])


def _abandoned(state: ProjectState, work: Work, by: str) -> list[ProjectEvent]:
    """The end of a session between two of its runs."""
    return closed(state, work, Outcome.CANCELLED, f"the project was cancelled by {by}")


def _pauses(state: ProjectState, env: Env) -> list[Effect]:
    """Whatever runs comes to a rest between its steps."""
    runs = (env.runs.get(work.run_id or "") for work in state.works.values())
    return [
        PauseRun(run.run_id, state.project_id)
        for run in runs
        if run is not None and run.status is not RunStatus.PAUSED and not run.pause_requested
    ]


def _go_on(state: ProjectState, env: Env) -> Say | Do:
    effects: list[Effect] = []
    for lane in range(state.spec.concurrency):
        work = state.works.get(lane)
        step = _held(state, env, work) if work is not None else _idle(state, env, lane)
        if isinstance(step, Say):
            return step
        effects += step.effects
    return Do(tuple(effects))


def _held(state: ProjectState, env: Env, work: Work) -> Say | Do:
    """One step for a session that goes on."""
    if work.run_id is not None:
        return _running(state, env, work)
    return Say(_next_run(state, work)) if has_its_turn(state, work) else Do(())


def _running(state: ProjectState, env: Env, work: Work) -> Say | Do:
    assert work.run_id is not None
    run = env.runs.get(work.run_id)
    if run is None:
        return Do((MakeRun(work.lane),))
    if work.kind is SessionKind.REMOVE and env.now >= _removed_by(state, work):
        return Do((StopRun(work.run_id, BY),))
    if not work.stalled and (run.status is RunStatus.PAUSED or run.pause_requested):
        return Do((ResumeRun(work.run_id, BY),))
    limit_s = state.limits.stall_s
    if work.stalled:
        return Do((StopRun(work.run_id, STALL),))
    if limit_s <= 0:
        return Do(())
    if run.silent_s is not None and run.silent_s >= limit_s:
        stalled = e.SessionStalled(
            session=work.session,
            run_id=work.run_id,
            silent_s=run.silent_s,
            limit_s=limit_s,
            lane=work.lane,
        )
        return Say([stalled])
    return Do((Watch(work.run_id, limit_s),))


def _removed_by(state: ProjectState, work: Work) -> datetime:
    """How long the project waits for a run that empties a lane, or that nobody takes up; a sweep finds that it is over."""
    return later(parse_rfc3339(work.requested_at), state.spec.hooks.timeout_s + REMOVAL_S)


def _idle(state: ProjectState, env: Env, lane: int) -> Say | Do:
    wait = _wait(state, env, lane)
    if wait is not None:
        return Do((wait,))
    return Say(events) if (events := start(state, lane, env.now)) else Do(())


def _wait(state: ProjectState, env: Env, lane: int) -> Wait | None:
    """The timer behind which something begins in the lane again."""
    wait, until = state.waits.get(lane), due_at(state, lane)
    if wait is None or until is None or until <= env.now or env.fired == wait.sequence:
        return None
    return Wait(wait.sequence, until)


def _next_run(state: ProjectState, work: Work) -> list[ProjectEvent]:
    """Ask for the run of the session's next stage."""
    stage = next_stage(state, work)
    events: list[ProjectEvent] = []
    if stage is Stage.AGENT and work.feature_id is not None:
        feature = state.features[work.feature_id]
        if feature.state is not FeatureStatus.PENDING:
            return closed(state, work, Outcome.ABANDONED, f"{feature.id} is {feature.state.value} by now")
        events.append(
            e.FeatureStateChanged(
                feature_id=feature.id,
                before=feature.state,
                state=FeatureStatus.IN_PROGRESS,
                session=work.session,
                reason=f"attempt {work.attempt}",
            )
        )
    if is_last(state, work, stage) and state.phase is Phase.VERIFY and work.kind is SessionKind.FEATURE:
        events.append(e.PhaseChanged(before=Phase.VERIFY, phase=Phase.COMMIT))
    run_id = session_run_id(state.project_id, work.session, stage)
    events.append(e.SessionRunRequested(session=work.session, stage=stage, run_id=run_id, lane=work.lane))
    return events


def next_stage(state: ProjectState, work: Work) -> Stage:
    """What comes after the stages that have ended. A list that was given needs no model to write it, and where there is
    nothing to look at before the agent nobody looks."""
    if work.kind is SessionKind.REMOVE:
        return Stage.GATHER if Stage.LEAVE in work.ends else Stage.LEAVE
    if Stage.CLOSE in work.ends:
        return Stage.MERGE
    if Stage.AGENT in work.ends:
        return Stage.CLOSE
    if in_lane(state, work) and Stage.BEGIN not in work.ends:
        return Stage.BEGIN
    if Stage.HEALTH not in work.ends and health_steps(state, work):
        return Stage.HEALTH
    given = work.kind is SessionKind.INITIALIZE and state.features
    return Stage.CLOSE if given else Stage.AGENT
