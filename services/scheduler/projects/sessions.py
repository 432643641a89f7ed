"""The runs that a session consists of: what each is asked to do, within which limits. Pure.

Invariant: a run's task follows from the project's log alone. The checks of the agent's run are the project's and the
feature's, as the log has them; what the workspace says of either counts for nothing.
"""

from typing import NamedTuple

import msgspec

from libs.contracts.checks import Check, ReviewCheck
from libs.contracts.progress import FEATURES_FILE, PROGRESS_FILE, features_text, progress_text
from libs.contracts.project import Feature, ProjectState, Work
from libs.contracts.projects import FEATURES_MIN, INIT_TIMEOUT_S, FeatureStatus
from libs.contracts.sessions import Errand, SessionKind, SessionRef, Stage
from libs.contracts.tasks import LimitOverrides, Limits, TaskSpec
from libs.contracts.tools import VERIFY
from libs.contracts.values import Share
from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMAND,
    WORKSPACE_COMMIT,
    WORKSPACE_GATHER,
    WORKSPACE_LEAVE,
    WORKSPACE_MERGE,
    WORKSPACE_PREPARE,
    WORKSPACE_RESTORE,
    WORKSPACE_SET_ASIDE,
    branch_object,
    feature_object,
    leavings_object,
)
from services.scheduler.projects.lanes import (
    baseline_for,
    committed_since,
    head_for,
    in_lane,
    session_ref,
    workspace_for,
)
from services.scheduler.projects.prompt import INSTRUCTIONS, goal_of
from services.scheduler.projects.proofs import checks_of, proved_again
from services.scheduler.projects.shares import without

# A commit or a clone of a large repository; git takes seconds for most.
_GIT_S = 600.0
_HOOK_CODE = "HOOK_FAILED"


class SessionRun(NamedTuple):
    """A run as it is to be created."""

    run_id: str
    task: TaskSpec
    limits: Limits


def run_of(state: ProjectState, work: Work, deployment: Limits) -> SessionRun:
    """The run of the session's stage that goes on."""
    assert work.stage is not None
    assert work.run_id is not None
    match work.stage:
        case Stage.BEGIN:
            task = _errand(state, work, "begin from what is committed", begin_steps(state, work))
        case Stage.HEALTH:
            task = _errand(state, work, "look at the environment", health_steps(state, work))
        case Stage.AGENT:
            task = _agent(state, work)
        case Stage.CLOSE:
            task = _errand(state, work, "close the session", close_steps(state, work))
        case Stage.MERGE:
            task = _errand(state, work, "bring it to the project", merge_steps(state, work))
        case Stage.LEAVE:
            task = _errand(state, work, f"take leave of lane {work.lane}", leave_steps(state, work))
        case Stage.GATHER:
            task = _errand(state, work, f"keep what lane {work.lane} held", gather_steps(state, work))
    limits = limits_of(state, work.share, deployment) if work.stage is Stage.AGENT else deployment
    return SessionRun(work.run_id, task, limits)


def _agent(state: ProjectState, work: Work) -> TaskSpec:
    acceptance = _acceptance(state, work)
    return TaskSpec(
        goal=goal_of(state, work),
        workspace=workspace_for(state, work),
        acceptance=acceptance,
        model=state.spec.model,
        metadata=_labels(state, work),
        instructions=INSTRUCTIONS,
        unattended=state.spec.unattended,
        session=_reference(state, work),
        baseline=baseline_for(state, work),
    )


def _acceptance(state: ProjectState, work: Work) -> list[Check]:
    """What proves the session's feature."""
    feature = state.features.get(work.feature_id or "")
    return [*state.spec.verify, *feature.spec.acceptance] if feature is not None else []


def _together(state: ProjectState, work: Work) -> list[Check]:
    """What proves the session's feature beside those that were committed since it began. Reviews were made of the session's own
    change and answer."""
    own = [check for check in _acceptance(state, work) if not isinstance(check, ReviewCheck)]
    others = [
        check for feature in committed_since(state, work) for check in proved_again(feature.spec.acceptance)
    ]
    return [*own, *others]


def _errand(state: ProjectState, work: Work, what: str, steps: list[Errand]) -> TaskSpec:
    about = f" for {work.feature_id}" if work.feature_id is not None else ""
    proved = {Stage.HEALTH: checks_of, Stage.MERGE: _together}.get(work.stage or Stage.CLOSE)
    return TaskSpec(
        goal=f"Project {state.spec.name}, session {work.session}{about}: {what}.",
        workspace=workspace_for(state, work),
        acceptance=proved(state, work) if proved is not None else [],
        metadata=_labels(state, work),
        unattended=True,
        session=_reference(state, work),
        errands=steps,
        baseline=baseline_for(state, work),
    )


def _reference(state: ProjectState, work: Work) -> SessionRef:
    assert work.stage is not None
    return SessionRef(
        project_id=state.project_id,
        session=work.session,
        stage=work.stage,
        kind=work.kind,
        feature_id=work.feature_id,
        features_min=FEATURES_MIN if work.kind is SessionKind.INITIALIZE else 1,
    )


def _labels(state: ProjectState, work: Work) -> dict[str, str]:
    labels = {"project_id": state.project_id, "session": str(work.session)}
    return {**labels, "feature_id": work.feature_id} if work.feature_id is not None else labels


# --- Errands ----------------------------------------------------------------------------------------------------


def begin_steps(state: ProjectState, work: Work) -> list[Errand]:
    """The lane's workspace becomes what the project's branch holds at the session's base."""
    made = state.spec.hooks.after_create if work.lane not in state.lanes else None
    return [_begin(state, work.base), *_hook(state, "after_create", made, must_pass=True)]


def _begin(state: ProjectState, head: str | None) -> Errand:
    return Errand(
        name=WORKSPACE_BEGIN,
        arguments={"object": branch_object(state.project_id), "head": head},
        timeout_s=_GIT_S,
        label="begin from the project's branch",
    )


def health_steps(state: ProjectState, work: Work) -> list[Errand]:
    """Before the agent: the environment as the project wants it, and what is committed still proved."""
    steps: list[Errand] = []
    hooks = state.spec.hooks
    if work.kind is SessionKind.INITIALIZE:
        origin = msgspec.to_builtins(state.spec.workspace)
        steps.append(
            Errand(name=WORKSPACE_PREPARE, arguments=origin, timeout_s=_GIT_S, label="prepare the workspace")
        )
        steps += _hook(state, "after_create", hooks.after_create, must_pass=True)
    if work.kind is SessionKind.FINAL and state.in_lanes:
        # A merge that was red, or cut off, left its tree there.
        steps.append(_begin(state, state.head))
    steps += _hook(state, "before_run", hooks.before_run, must_pass=True)
    # Red, it is told to the agent, which may have to mend it.
    steps += _init(state)
    if checks_of(state, work):
        steps.append(Errand(name=VERIFY, must_pass=False, label="prove what is committed"))
    feature = state.features.get(work.feature_id or "")
    if feature is not None and feature.side_ref is not None and state.spec.leftovers == "keep":
        travels = _object_of(state, work)
        steps.append(
            Errand(
                name=WORKSPACE_RESTORE,
                arguments={"ref": feature.side_ref, "object": travels},
                timeout_s=_GIT_S,
                # What travels is replaced by what this session leaves, so it begins with it; the last attempt without,
                # rather than not at all.
                must_pass=travels is not None and feature.failures + 1 < state.attempts_max,
                label="bring back what was left over",
            )
        )
    return steps


def close_steps(state: ProjectState, work: Work) -> list[Errand]:
    """After the agent: what was verified is committed, anything else leaves the tree."""
    feature = state.features.get(work.feature_id or "")
    if work.kind is SessionKind.INITIALIZE and state.features:
        step = _commit(state, work, f"Begin {state.spec.name}", {})
    elif feature is not None and feature.state is FeatureStatus.VERIFIED:
        step = _feature_commit(state, work, feature)
    else:
        step = Errand(
            name=WORKSPACE_SET_ASIDE,
            arguments={
                "ref": session_ref(work),
                "message": f"left over by session {work.session}",
                "trailers": {"Perdure-Session": state.project_id + f"/{work.session}"},
                "head": head_for(state, work),
                "offer": _object_of(state, work),
            },
            timeout_s=_GIT_S,
            label="set leftovers aside",
        )
    hook = _hook(state, "after_run", state.spec.hooks.after_run, must_pass=False)
    return [step, *hook, *([_cleaned(state, work)] if hook else [])]


def merge_steps(state: ProjectState, work: Work) -> list[Errand]:
    """What was verified in a lane comes on top of the project's branch: proved again together with what was committed since
    the session began, then committed. Also where nothing was: what git ignores stayed in the lane."""
    feature = state.features[work.feature_id or ""]
    merge = Errand(
        name=WORKSPACE_MERGE,
        arguments={
            "branch": branch_object(state.project_id),
            "object": _object_of(state, work),
            "ref": session_ref(work),
            "head": state.head,
        },
        timeout_s=_GIT_S,
        label="merge",
        error_code="MERGE_CONFLICT",
    )
    proof = Errand(name=VERIFY, label="prove it together", error_code="VERIFICATION_FAILED")
    return [merge, *_init(state), proof, _feature_commit(state, work, feature)]


def leave_steps(state: ProjectState, work: Work) -> list[Errand]:
    """Before the lane's workspace goes: the project's own word, then all that only it holds is stored."""
    leave = Errand(
        name=WORKSPACE_LEAVE,
        arguments={
            "object": leavings_object(state.project_id, work.lane),
            "ref": f"refs/perdure/left/{work.session}",
            "message": f"left in lane {work.lane}",
            "head": state.head,
        },
        timeout_s=_GIT_S,
        label="take leave of the workspace",
    )
    return [*_hook(state, "before_remove", state.spec.hooks.before_remove, must_pass=False), leave]


def gather_steps(state: ProjectState, work: Work) -> list[Errand]:
    """What was left in a lane's workspace is kept in the project's, where people find it."""
    arguments: dict[str, object] = {
        "object": leavings_object(state.project_id, work.lane),
        "under": f"refs/perdure/lane/{work.lane}",
    }
    label = "keep what the lane held"
    return [Errand(name=WORKSPACE_GATHER, arguments=arguments, timeout_s=_GIT_S, label=label)]


def _object_of(state: ProjectState, work: Work) -> str | None:
    """Under which name what a lane made of its feature travels to other workspaces."""
    if not in_lane(state, work) or work.feature_id is None:
        return None
    return feature_object(state.project_id, work.feature_id)


def _cleaned(state: ProjectState, work: Work) -> Errand:
    """The next session finds the tree as it was committed, whatever the hook wrote."""
    return Errand(
        name=WORKSPACE_SET_ASIDE,
        arguments={
            "ref": f"refs/perdure/after_run/{work.session}",
            "message": f"left over by the hook after session {work.session}",
            "trailers": {"Perdure-Session": f"{state.project_id}/{work.session}"},
            "head": "HEAD",
        },
        timeout_s=_GIT_S,
        must_pass=False,
        label="set aside what after_run left",
    )


def _feature_commit(state: ProjectState, work: Work, feature: Feature) -> Errand:
    assert feature.evidence is not None
    trailers = {"Perdure-Feature": feature.id, "Perdure-Evidence": feature.evidence.digest or ""}
    title = f"{feature.id}: {feature.spec.title}"
    if not in_lane(state, work):
        return _commit(state, work, title, trailers, verified=feature.evidence.snapshot)
    if work.stage is Stage.MERGE:
        return _commit(state, work, title, trailers)
    # The files of the runtime are the branch's: with two versions of them no two lanes would ever go together.
    kept: dict[str, object] = {"files": {}, "kept": [PROGRESS_FILE, FEATURES_FILE]}
    there = {"offer": _object_of(state, work), "ref": session_ref(work)}
    return _commit(state, work, title, trailers, verified=feature.evidence.snapshot, **kept, **there)


def _commit(state: ProjectState, work: Work, title: str, trailers: dict[str, str], **more: object) -> Errand:
    agent = work.ends.get(Stage.AGENT)
    handoff = agent.handoff if agent is not None else None
    return Errand(
        name=WORKSPACE_COMMIT,
        arguments={
            "message": title,
            "trailers": {**trailers, "Perdure-Session": f"{state.project_id}/{work.session}"},
            "files": {PROGRESS_FILE: progress_text(state, handoff), FEATURES_FILE: features_text(state)},
            "head": head_for(state, work),
            "offer": branch_object(state.project_id) if state.in_lanes else None,
            **more,
        },
        timeout_s=_GIT_S,
        label="commit",
    )


def _init(state: ProjectState) -> list[Errand]:
    if not state.spec.init:
        return []
    return [
        Errand(
            name=WORKSPACE_COMMAND,
            arguments={"argv": state.spec.init},
            timeout_s=INIT_TIMEOUT_S,
            must_pass=False,
            label="init",
        )
    ]


def _hook(state: ProjectState, name: str, argv: list[str] | None, *, must_pass: bool) -> list[Errand]:
    if argv is None:
        return []
    return [
        Errand(
            name=WORKSPACE_COMMAND,
            arguments={"argv": argv},
            timeout_s=state.spec.hooks.timeout_s,
            must_pass=must_pass,
            label=f"hook {name}",
            error_code=_HOOK_CODE,
        )
    ]


# --- Limits -----------------------------------------------------------------------------------------------------


def limits_of(state: ProjectState, share: Share | None, deployment: Limits) -> Limits:
    """The limits of an agent's run: the deployment's, the project's for each, and its share of the project's caps."""
    share, rest = share or Share(), without(state)
    tokens = share.tokens if share.tokens is not None else rest.tokens
    cost_usd = share.cost_usd if share.cost_usd is not None else rest.cost_usd
    limits = _lowered(deployment, state.limits.session)
    return _lowered(limits, LimitOverrides(max_total_tokens=tokens, max_cost_usd=cost_usd))


def _lowered(limits: Limits, wanted: LimitOverrides) -> Limits:
    """What `wanted` lowers; a deployment that allows less by now wins."""
    changes: dict[str, object] = {}
    for name in LimitOverrides.__struct_fields__:
        value, current = getattr(wanted, name), getattr(limits, name)
        if value is not None and (name == "context_strategy" or current is None or value < current):
            changes[name] = value
    return msgspec.structs.replace(limits, **changes)
