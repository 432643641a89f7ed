"""A project as its log tells it: the state, and the tables of what may follow what.

Invariant: a feature changes its state only through `FEATURE_LEGAL`, a project its phase only through `PHASE_LEGAL`; in
each lane (a workspace) there is one session at a time, and at most one feature that is being worked on.
`evolve_project.py` folds events into the state; nothing else changes one.
"""

import msgspec

from libs.contracts import project_events as e
from libs.contracts.eventbody import EventBody
from libs.contracts.items import ItemsState
from libs.contracts.projects import (
    REMOVALS_MAX,
    Evidence,
    FeatureSpec,
    FeatureStatus,
    Handoff,
    Outcome,
    Phase,
    ProjectLimits,
    ProjectSpec,
    ProjectStatus,
)
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.values import RunError, Share, Usage

# The version of this fold: a checkpoint made by another one is not used.
PROJECT_FOLD_VERSION = 6

F, P, S = FeatureStatus, Phase, ProjectStatus

LIVE = frozenset({S.ACTIVE, S.PAUSED, S.BLOCKED})
TERMINAL = frozenset({S.COMPLETED, S.CANCELLED})

FEATURE_LEGAL: dict[FeatureStatus, frozenset[FeatureStatus]] = {
    F.PENDING: frozenset({F.IN_PROGRESS, F.SKIPPED, F.BLOCKED}),
    F.IN_PROGRESS: frozenset({F.VERIFIED, F.PENDING, F.BLOCKED}),
    # What was verified and could not be committed as it was judged is proved again.
    F.VERIFIED: frozenset({F.COMMITTED, F.PENDING}),
    # A regression, or a person who wants it done again.
    F.COMMITTED: frozenset({F.PENDING}),
    F.SKIPPED: frozenset({F.PENDING}),
    F.BLOCKED: frozenset({F.PENDING, F.SKIPPED}),
}
# Being worked on: at most one a lane.
ACTIVE_FEATURE = frozenset({F.IN_PROGRESS, F.VERIFIED})
# What is left to do before a project can be done.
OPEN_FEATURE = frozenset({F.PENDING, F.IN_PROGRESS, F.VERIFIED, F.BLOCKED})

PHASE_LEGAL: dict[Phase, frozenset[Phase]] = {
    P.INITIALIZE: frozenset({P.IMPLEMENT}),
    P.IMPLEMENT: frozenset({P.VERIFY}),
    P.VERIFY: frozenset({P.COMMIT, P.IMPLEMENT, P.DONE}),
    P.COMMIT: frozenset({P.IMPLEMENT, P.VERIFY}),
    P.DONE: frozenset(),
}

# In which statuses of the project each kind of event may follow. What runs when a project is paused or blocked still
# ends, and its end is recorded.
LEGAL: dict[type[EventBody], frozenset[ProjectStatus]] = {
    e.FeatureListSet: LIVE,
    e.FeatureListAmended: LIVE,
    e.FeatureListRejected: LIVE,
    e.PhaseChanged: LIVE,
    e.ProjectPaused: frozenset({S.ACTIVE}),
    e.ProjectResumed: frozenset({S.PAUSED, S.BLOCKED}),
    e.ProjectBlocked: frozenset({S.ACTIVE}),
    e.ProjectCancelRequested: LIVE,
    e.ProjectCancelled: LIVE,
    e.ProjectCompleted: frozenset({S.ACTIVE}),
    # Of a project that is cancelled while it rests, what lanes hold is brought home first.
    e.SessionStarted: LIVE,
    e.SessionRunRequested: LIVE,
    e.SessionStalled: LIVE,
    e.SessionRunEnded: LIVE,
    e.SessionEnded: LIVE,
    e.FeatureStateChanged: LIVE,
    e.ItemsBegun: frozenset({S.ACTIVE}),
    e.ItemsEnded: LIVE,
    e.ItemDecided: LIVE,
}


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature with its history in numbers. `front`: it was there and broke, so it goes first. `failures` since it was
    last committed, or since a person wanted it retried; `unfinished` sessions in a row count for one failure in the end.
    `lane`: where it is being worked on."""

    spec: FeatureSpec
    position: int
    state: FeatureStatus = F.PENDING
    lane: int | None = None
    front: bool = False
    sessions: int = 0
    failures: int = 0
    unfinished: int = 0
    regressions: int = 0
    last_error: str = ""
    evidence: Evidence | None = None
    commit: str | None = None
    side_ref: str | None = None
    changed_at: str = ""

    @property
    def id(self) -> str:
        return self.spec.id


class StageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage of the session that goes on ended."""

    run_id: str
    status: str
    error: RunError | None = None
    evidence: Evidence | None = None
    handoff: Handoff | None = None
    baseline: str | None = None


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The session that goes on in a lane; `stage` and `run_id` name the run that should exist now, if any; `stalled` says
    why that one is to end. Beside others it has begun from the commit `base`. `share` is what its agent may use of the caps."""

    session: int
    kind: SessionKind
    lane: int
    started_at: str
    feature_id: str | None = None
    attempt: int = 1
    reverify: list[str] = []
    base: str | None = None
    share: Share | None = None
    stage: Stage | None = None
    run_id: str | None = None
    requested_at: str = ""
    stalled: str = ""
    ends: dict[Stage, StageEnd] = {}


class LastSession(msgspec.Struct, frozen=True, kw_only=True):
    """How the latest session ended, for the card."""

    session: int
    outcome: Outcome
    reason: str = ""
    feature_id: str | None = None
    at: str = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A lane begins nothing before `until`; `sequence` is the event that said so, which a timer names. Meanwhile no other
    lane takes the feature."""

    until: str
    sequence: int
    feature_id: str | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    cap: str
    reason: str


class ProjectState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a project's log up to `sequence`. Its size follows from the list of features, never from its age."""

    project_id: str
    tenant: str
    spec: ProjectSpec
    workspace: str
    body_hash: str
    created_at: str
    by: str

    sequence: int = 1
    status: ProjectStatus = S.ACTIVE
    phase: Phase = P.INITIALIZE
    last_event_at: str = ""
    finished_at: str | None = None
    # For the machinery of logs: nobody owns a project, and none is deleted.
    epoch: int = 0
    deleted: bool = False

    limits: ProjectLimits = ProjectLimits()
    attempts_max: int = 1
    block: Block | None = None
    cancel_requested_by: str | None = None
    active_ms: int = 0
    active_since: str | None = None

    features: dict[str, Feature] = {}
    # Of a project over items, in place of features and works.
    items: ItemsState | None = None
    counts: dict[FeatureStatus, int] = {}
    works: dict[int, Work] = {}
    waits: dict[int, Waiting] = {}
    # The lanes whose own workspaces stand; and how often, in a row, one could not be emptied.
    lanes: frozenset[int] = frozenset()
    unremoved: dict[int, int] = {}
    # Those that removed are among the sessions, and not what a cap on sessions is about.
    sessions: int = 0
    removals: int = 0
    # First sessions, or proofs of the whole, that failed in a row; and the event that says that the whole was proved.
    failures: int = 0
    proved_at: int | None = None
    problems: list[str] = []
    usage: Usage = Usage()

    head: str | None = None
    baseline: str | None = None
    handoff: Handoff = Handoff()
    # When the latest one was left.
    handoff_at: str = ""
    last_session: LastSession | None = None
    last_error: str = ""

    @property
    def log_id(self) -> str:
        return self.project_id

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def in_lanes(self) -> bool:
        """Whether sessions of features are held beside each other, each in the workspace of its lane."""
        return self.spec.map is None and self.spec.concurrency > 1

    @property
    def to_leave(self) -> list[int]:
        """The lanes whose workspaces are still to be emptied before the project ends."""
        return [lane for lane in sorted(self.lanes) if self.unremoved.get(lane, 0) < REMOVALS_MAX]

    @property
    def removed(self) -> list[int]:
        """The lanes whose workspaces hold nothing of worth: emptied, or never more than begun."""
        return (
            [lane for lane in range(self.spec.concurrency) if lane not in self.lanes] if self.in_lanes else []
        )

    @property
    def active_features(self) -> list[Feature]:
        """What is being worked on: at most one a lane."""
        named = (self.features.get(work.feature_id or "") for work in self.works.values())
        return [feature for feature in named if feature is not None and feature.state in ACTIVE_FEATURE]

    @property
    def total(self) -> int:
        """How many features there are, or items."""
        return len(self.spec.map.items) if self.spec.map is not None else len(self.features)

    def count(self, *states: FeatureStatus) -> int:
        return sum(self.counts.get(state, 0) for state in states)
