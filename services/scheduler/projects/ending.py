"""What the end of a session's run means for the session, its feature and the project. Pure.

Invariant: a feature is verified by the verdict of the agent's run, whose checks the project and the feature name, and
committed by a commit that git answered with; whatever else an agent says or leaves goes into a handoff, never into a
state.
"""

from datetime import datetime

import msgspec

from libs.contracts import project_events as e
from libs.contracts.checks import CheckStatus
from libs.contracts.clock import rfc3339
from libs.contracts.featurelist import amendment, problems
from libs.contracts.project import Feature, ProjectState, Work
from libs.contracts.project_events import ProjectEvent
from libs.contracts.projects import (
    FEATURES_MIN,
    REMOVALS_MAX,
    Evidence,
    FeatureStatus,
    Handoff,
    Outcome,
    Phase,
    bounded,
)
from libs.contracts.run import StepResult
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMIT,
    WORKSPACE_LEAVE,
    WORKSPACE_SET_ASIDE,
)
from services.scheduler.projects.facts import UNFINISHED_CODES, RunSeen, error_of, evidence_of
from services.scheduler.projects.lanes import in_lane, session_ref
from services.scheduler.projects.proofs import proofs
from services.scheduler.projects.selection import CONTINUATION_S, UNFINISHED_MAX, backoff_s, later


def run_ended(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """What is to be recorded once the run of the session's stage has ended."""
    assert work.stage is not None
    ended = e.SessionRunEnded(
        session=work.session,
        stage=work.stage,
        run_id=run.run_id,
        status="DELETED" if run.deleted else run.status.value,
        usage=run.usage,
        lane=work.lane,
        error=error_of(run),
        evidence=evidence_of(run),
        handoff=_handoff(state, work, run) if work.stage is Stage.AGENT else None,
        baseline=_text(run.step(WORKSPACE_BEGIN), "baseline"),
    )
    match work.stage:
        case Stage.BEGIN:
            return [ended, *_begun(state, work, run, now)]
        case Stage.HEALTH:
            return [ended, *_looked(state, work, run, now)]
        case Stage.AGENT:
            return [ended, *_worked(state, work, run)]
        case Stage.CLOSE:
            return [ended, *_closed(state, work, run, now)]
        case Stage.MERGE:
            return [ended, *_merged(state, work, run, now)]
        case Stage.LEAVE | Stage.GATHER:
            return [ended, *_emptied(state, work, run, now)]


def _begun(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """After the lane's workspace was to become what the project is."""
    if error_of(run) is None:
        return []
    return closed(state, work, *_failure(state, work, run), retry_at=_retry_at(state, work, now))


# --- The environment --------------------------------------------------------------------------------------------


def _looked(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """After a look at the environment: features that broke go back, and what could not be looked at ends the session.
    Anything else that is red is told to the agent, which may have to mend it."""
    broken = regressions(state, work, run)
    if broken:
        named = ", ".join(feature.id for feature, _ in broken)
        events: list[ProjectEvent] = [
            e.FeatureStateChanged(
                feature_id=feature.id,
                before=FeatureStatus.COMMITTED,
                state=FeatureStatus.PENDING,
                session=work.session,
                reason="it was committed, and its acceptance fails now",
                evidence=evidence,
            )
            for feature, evidence in broken
        ]
        reason = f"broken since they were committed: {named}"
        return [*events, *closed(state, work, Outcome.REGRESSED, reason, retry_at=later(now, CONTINUATION_S))]
    error = error_of(run)
    if error is not None and not _only_red(run):
        return closed(state, work, *_failure(state, work, run), retry_at=_retry_at(state, work, now))
    if work.kind is SessionKind.FINAL:
        if run.passed:
            return closed(state, work, Outcome.PROVED, "every committed feature was proved once more")
        reason = "the project's own checks fail although every feature is committed"
        return closed(
            state,
            work,
            Outcome.FAILED,
            reason,
            evidence=evidence_of(run),
            retry_at=_retry_at(state, work, now),
        )
    return []


def _only_red(run: RunSeen) -> bool:
    """Whether the errand went all its way, and only its proof failed."""
    return (
        run.error is not None
        and run.error.error_code == "VERIFICATION_FAILED"
        and run.verification is not None
    )


def regressions(state: ProjectState, work: Work, run: RunSeen) -> list[tuple[Feature, Evidence]]:
    """The committed features whose acceptance was among the run's checks and failed. One that another lane has committed
    since the session began was not what the run saw."""
    if run.verification is None:
        return []
    found: list[tuple[Feature, Evidence]] = []
    for feature_id, place in proofs(state, work).items():
        feature = state.features[feature_id]
        results = run.verification.checks[place]
        is_red = any(result.status is CheckStatus.FAILED for result in results)
        if is_red and feature.state is FeatureStatus.COMMITTED and feature.changed_at <= work.started_at:
            found.append((feature, evidence_of(run, results)))
    return found


# --- The agent --------------------------------------------------------------------------------------------------


def _worked(state: ProjectState, work: Work, run: RunSeen) -> list[ProjectEvent]:
    if work.kind is SessionKind.INITIALIZE:
        return _list_written(work, run)
    events = _list_proposed(state, work, run)
    assert work.feature_id is not None
    feature = state.features[work.feature_id]
    if run.passed and feature.state is FeatureStatus.IN_PROGRESS:
        verified = e.FeatureStateChanged(
            feature_id=feature.id,
            before=FeatureStatus.IN_PROGRESS,
            state=FeatureStatus.VERIFIED,
            session=work.session,
            reason="its acceptance and the project's checks passed",
            evidence=evidence_of(run),
        )
        events += [verified, *_phase(state, Phase.VERIFY)]
    return events


def _list_written(work: Work, run: RunSeen) -> list[ProjectEvent]:
    """The list of the first session, if it wrote one that holds."""
    if error_of(run) is not None:
        return []
    if run.features is None:
        found = ["no list of features was written: call write_features once with all of them"]
    else:
        found = problems(run.features, at_least=FEATURES_MIN)
    if found or run.features is None:
        return [e.FeatureListRejected(problems=found, session=work.session)]
    return [e.FeatureListSet(features=run.features, session=work.session)]


def _list_proposed(state: ProjectState, work: Work, run: RunSeen) -> list[ProjectEvent]:
    if run.features is None:
        return []
    known = {feature.id: feature.spec for feature in state.features.values()}
    added, found = amendment(known, run.features)
    if found:
        return [e.FeatureListRejected(problems=found, session=work.session)]
    return [e.FeatureListAmended(features=added, session=work.session)] if added else []


def _handoff(state: ProjectState, work: Work, run: RunSeen) -> Handoff:
    """What the agent left for the next session; of one that left nothing, what the runtime knows."""
    if run.handoff is not None:
        return bounded(run.handoff)
    feature = state.features.get(work.feature_id or "")
    title = f"{feature.id}: {feature.spec.title}" if feature is not None else "the list of features"
    error = error_of(run)
    if error is None:
        return bounded(Handoff(done=[title]))
    return bounded(Handoff(in_progress=[title], pitfalls=[f"{title}: {error.error_code}: {error.message}"]))


# --- The end of the session -------------------------------------------------------------------------------------


def _closed(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """After the errand that commits what was verified, or sets aside what was not."""
    # What a hook left behind is set aside by a later step of that name.
    step = run.step(WORKSPACE_COMMIT) or next((s for s in run.steps if s.name == WORKSPACE_SET_ASIDE), None)
    commit = _text(step, "commit") if step is not None and step.ok else None
    if work.kind is SessionKind.INITIALIZE:
        if state.features and commit is not None:
            done = closed(state, work, Outcome.INITIALIZED, "the baseline is committed", close=step)
            return [*done, *_phase(state, Phase.IMPLEMENT)]
        outcome, reason = _failure(state, work, run)
        return closed(state, work, outcome, reason, close=step, retry_at=_retry_at(state, work, now))
    assert work.feature_id is not None
    feature = state.features[work.feature_id]
    if feature.state is FeatureStatus.VERIFIED and commit is not None:
        return [] if in_lane(state, work) else _committed(state, work, feature, step)
    outcome, reason = _failure(state, work, run)
    return closed(state, work, outcome, reason, close=step, retry_at=_retry_at(state, work, now, outcome))


def _merged(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """After the errand that brings what was verified in a lane to the project's branch. Only a proof there counts; without one
    nothing speaks against the work, and the next session goes on with it on top of what is there by now, and is told whether
    that has changed or the work needs what no commit takes along."""
    assert work.feature_id is not None
    feature = state.features[work.feature_id]
    step = run.step(WORKSPACE_COMMIT)
    if step is not None and step.ok and run.passed:
        return _committed(state, work, feature, step)
    error = error_of(run)
    if error is not None and error.error_code == "CANCELLED":
        outcome, reason = _failure(state, work, run)
    else:
        why = f"{error.error_code}: {error.message}" if error is not None else "no check proved it"
        outcome = Outcome.UNFINISHED
        ignored = (
            "it does not hold without the files of its lane that git ignores, which come along with no commit"
        )
        together = "it does not go together with what was committed meanwhile"
        is_alone = work.base == state.head and error is not None and error.error_code == "VERIFICATION_FAILED"
        reason = f"{ignored if is_alone else together}: {why}"
    return closed(
        state,
        work,
        outcome,
        reason,
        evidence=evidence_of(run),
        side_ref=session_ref(work),
        retry_at=_retry_at(state, work, now, outcome),
    )


def _emptied(state: ProjectState, work: Work, run: RunSeen, now: datetime) -> list[ProjectEvent]:
    """After the lane's workspace was to be emptied: it goes only once all that was in it, and the branch does not hold, is
    in the project's. A hook that failed keeps nothing from going."""
    error = error_of(run)
    if error is None:
        step = run.step(WORKSPACE_LEAVE)
        if work.stage is Stage.LEAVE and step is not None and step.metadata.get("offered") is True:
            return []
        return closed(state, work, Outcome.REMOVED, "what its workspace held is in the project's")
    tries = state.unremoved.get(work.lane, 0) + 1
    again = later(now, backoff_s(tries)) if tries < REMOVALS_MAX else None
    reason = f"{error.error_code}: {error.message}"
    if again is None:
        reason = f"the workspace of lane {work.lane} stays as it is: {reason}"
    return closed(state, work, Outcome.FAILED, reason, retry_at=again)


def _committed(
    state: ProjectState, work: Work, feature: Feature, step: StepResult | None
) -> list[ProjectEvent]:
    commit = _text(step, "commit")
    assert commit is not None
    assert feature.evidence is not None
    committed = e.FeatureStateChanged(
        feature_id=feature.id,
        before=FeatureStatus.VERIFIED,
        state=FeatureStatus.COMMITTED,
        session=work.session,
        reason="committed by the runtime",
        evidence=msgspec.structs.replace(feature.evidence, commit=commit),
    )
    reason = f"{feature.id} is committed as {commit[:12]}"
    return [committed, *closed(state, work, Outcome.COMMITTED, reason, close=step)]


def _failure(state: ProjectState, work: Work, run: RunSeen) -> tuple[Outcome, str]:
    """How a session that did not reach its goal ended, and why: by what went wrong first."""
    agent = work.ends.get(Stage.AGENT)
    error = agent.error if agent is not None else None
    if error is None and agent is not None and agent.evidence is not None and work.feature_id is not None:
        feature = state.features[work.feature_id]
        if feature.state is FeatureStatus.IN_PROGRESS:
            return Outcome.FAILED, f"nothing proved that it is done: {agent.evidence.verdict or 'no verdict'}"
    error = error or error_of(run)
    if error is None:
        step = run.step(WORKSPACE_COMMIT)
        if work.kind is SessionKind.INITIALIZE and state.problems:
            return Outcome.FAILED, f"the list of features does not hold: {'; '.join(state.problems)}"
        return Outcome.FAILED, step.output if step is not None and step.output else "it left no commit"
    if error.error_code in UNFINISHED_CODES:
        return Outcome.UNFINISHED, f"{error.error_code}: {error.message}"
    cancelled = error.error_code == "CANCELLED"
    return Outcome.CANCELLED if cancelled else Outcome.FAILED, f"{error.error_code}: {error.message}"


def closed(
    state: ProjectState,
    work: Work,
    outcome: Outcome,
    reason: str,
    *,
    close: StepResult | None = None,
    evidence: Evidence | None = None,
    side_ref: str | None = None,
    retry_at: datetime | None = None,
) -> list[ProjectEvent]:
    """The end of a session, whatever it was at: nothing is left active. Of a lane's own workspace nothing is the project's
    but what was left over there."""
    events: list[ProjectEvent] = []
    feature = state.features.get(work.feature_id or "")
    agent = work.ends.get(Stage.AGENT)
    told = evidence or (agent.evidence if agent is not None else None)
    own = close if work.stage is Stage.MERGE or not in_lane(state, work) else None
    if feature is not None and outcome is not Outcome.COMMITTED and feature.lane == work.lane:
        events.append(
            e.FeatureStateChanged(
                feature_id=feature.id,
                before=feature.state,
                state=FeatureStatus.PENDING,
                session=work.session,
                reason=reason,
                evidence=told,
            )
        )
    events.append(
        e.SessionEnded(
            session=work.session,
            outcome=outcome,
            reason=reason,
            lane=work.lane,
            feature_id=work.feature_id,
            handoff=agent.handoff if agent is not None else None,
            evidence=told,
            retry_at=rfc3339(retry_at) if retry_at is not None else None,
            side_ref=side_ref or _text(close, "side_ref"),
            head=_text(own, "head"),
            baseline=_text(own, "baseline"),
        )
    )
    others = any(
        other.state is FeatureStatus.VERIFIED and other.lane != work.lane for other in state.active_features
    )
    is_work = outcome is not Outcome.PROVED and work.kind is not SessionKind.REMOVE
    left = state.phase in (Phase.VERIFY, Phase.COMMIT) and is_work and not others
    return [*events, *(_phase(state, Phase.IMPLEMENT) if left else [])]


def _retry_at(state: ProjectState, work: Work, now: datetime, outcome: Outcome = Outcome.FAILED) -> datetime:
    """When the next session may begin: soon after one that was cut off, ever later after failures."""
    feature = state.features.get(work.feature_id or "")
    if outcome is Outcome.UNFINISHED and feature is not None and feature.unfinished < UNFINISHED_MAX:
        return later(now, CONTINUATION_S)
    failures = feature.failures if feature is not None else state.failures
    return later(now, backoff_s(failures + 1))


def _phase(state: ProjectState, phase: Phase) -> list[ProjectEvent]:
    return [e.PhaseChanged(before=state.phase, phase=phase)] if state.phase is not phase else []


def _text(step: StepResult | None, name: str) -> str | None:
    value = step.metadata.get(name) if step is not None else None
    return value if isinstance(value, str) else None
