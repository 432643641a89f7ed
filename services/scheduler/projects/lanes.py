"""Sessions beside each other: each lane has a workspace of its own, and what it made comes to the project's one after the
other. Pure.

Invariant: only a session in a lane works beside others, and only in the lane's workspace; the project's branch moves by one
merge at a time. A merge waits for nobody who is not ready: a session that asks a person may take weeks.
"""

from libs.contracts.project import Feature, ProjectState, Work
from libs.contracts.projects import FeatureStatus
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.workspaces import lane_workspace

# Features that a merge proves beside its own; more of them are proved by the sessions that follow, and at the end.
PROVED_MAX = 20
# The stages of a session in a lane that are held in the project's own workspace, and those that come right before.
_AT_HOME = frozenset({Stage.MERGE, Stage.GATHER})
_BEFORE_HOME = frozenset({Stage.CLOSE, Stage.LEAVE})
_IN_LANES = frozenset({SessionKind.FEATURE, SessionKind.REMOVE})


def in_lane(state: ProjectState, work: Work) -> bool:
    """Whether the session is one that may be held beside others; the first one of a project and its last proof never
    are."""
    return state.in_lanes and work.kind in _IN_LANES


def workspace_for(state: ProjectState, work: Work) -> str:
    """The name of the workspace of the stage that goes on."""
    if not in_lane(state, work) or work.stage in _AT_HOME:
        return state.workspace
    return lane_workspace(state.workspace, work.lane)


def baseline_for(state: ProjectState, work: Work) -> str | None:
    """The snapshot of that workspace that the run is compared with; `None`: how it finds it."""
    if not in_lane(state, work) or work.stage in _AT_HOME:
        return state.baseline
    begun = work.ends.get(Stage.BEGIN)
    return begun.baseline if begun is not None else None


def head_for(state: ProjectState, work: Work) -> str | None:
    """The commit that the stage's commit comes on top of."""
    return work.base if in_lane(state, work) and work.stage not in _AT_HOME else state.head


def committed_since(state: ProjectState, work: Work) -> list[Feature]:
    """What was committed since the session began, the latest first: it has never been seen together with what is made
    here."""
    since = [
        feature
        for feature in state.features.values()
        if feature.state is FeatureStatus.COMMITTED and feature.changed_at >= work.started_at
    ]
    return sorted(since, key=lambda feature: feature.changed_at, reverse=True)[:PROVED_MAX]


def session_ref(work: Work) -> str:
    """Where people find what a session left, or made in a lane."""
    return f"refs/perdure/session/{work.session}"


def is_last(state: ProjectState, work: Work, stage: Stage) -> bool:
    """Whether the stage makes the commit that the project's branch gets, if there is to be one."""
    return stage is (Stage.MERGE if in_lane(state, work) else Stage.CLOSE)


def has_its_turn(state: ProjectState, work: Work) -> bool:
    """Whether the next stage may begin: those at home come one at a time, and of those that could, the session that began
    first."""
    if not goes_home(work):
        return True
    ready = [other for other in state.works.values() if goes_home(other)]
    first = min(other.session for other in ready)
    return work.session == first and not any(other.stage in _AT_HOME for other in ready)


def goes_home(work: Work) -> bool:
    """Whether what comes next, or goes on, is held in the project's own workspace."""
    return not _BEFORE_HOME.isdisjoint(work.ends)
