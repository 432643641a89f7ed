"""Every event of a project's own log, frozen, in the past tense (contract, section 6).

Invariant: as in `events.py`: an event says what became true and carries all that the fold needs, with its evidence. All
of them are `life`: whoever decides about a project looks at it again.
"""

from typing import Literal

import msgspec

from libs.contracts.eventbody import EventBody
from libs.contracts.items import ItemEnd, ItemStart
from libs.contracts.projects import (
    Evidence,
    FeatureSpec,
    FeatureStatus,
    Handoff,
    Outcome,
    Phase,
    ProjectLimits,
    ProjectSpec,
)
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.values import RunError, Share, Usage

Cap = Literal["sessions", "tokens", "cost", "wall_time", "attempts", "features", "items"]


class ProjectCreated(EventBody, frozen=True, kw_only=True):
    """`workspace` is the name of the project's workspace, `limits` what is in force."""

    type = "project.created"
    life = True
    tenant: str
    spec: ProjectSpec
    workspace: str
    body_hash: str
    by: str


class FeatureListSet(EventBody, frozen=True, kw_only=True):
    """The list of features, once; `session` wrote it, or it was given with the project. Valid by `featurelist.py`."""

    type = "project.feature_list_set"
    life = True
    features: list[FeatureSpec]
    session: int | None = None


class FeatureListAmended(EventBody, frozen=True, kw_only=True):
    """A session added features; nothing else of the list may ever change."""

    type = "project.feature_list_amended"
    life = True
    features: list[FeatureSpec]
    session: int


class FeatureListRejected(EventBody, frozen=True, kw_only=True):
    """What a session proposed changes nothing; the next session is told why."""

    type = "project.feature_list_rejected"
    life = True
    problems: list[str]
    session: int


class PhaseChanged(EventBody, frozen=True, kw_only=True):
    type = "project.phase_changed"
    life = True
    before: Phase
    phase: Phase


class ProjectPaused(EventBody, frozen=True, kw_only=True):
    type = "project.paused"
    life = True
    by: str


class ProjectResumed(EventBody, frozen=True, kw_only=True):
    """Goes on after a pause or a block; `limits` are in force from now on, if they were raised."""

    type = "project.resumed"
    life = True
    by: str
    limits: ProjectLimits | None = None
    max_attempts_per_feature: int | None = None


class ProjectBlocked(EventBody, frozen=True, kw_only=True):
    """Nothing more happens until somebody resumes the project: never the same as done."""

    type = "project.blocked"
    life = True
    cap: Cap
    reason: str


class ProjectCancelRequested(EventBody, frozen=True, kw_only=True):
    type = "project.cancel_requested"
    life = True
    by: str


class ProjectCancelled(EventBody, frozen=True, kw_only=True):
    """`removed`: the lanes whose workspaces nobody needs any more; from now on hosts remove them."""

    type = "project.cancelled"
    life = True
    by: str
    removed: list[int] = msgspec.field(default_factory=list[int])


class ProjectCompleted(EventBody, frozen=True, kw_only=True):
    """All features are committed or skipped, and all committed ones were proved once more. `removed`: the lanes whose
    workspaces nobody needs any more; from now on hosts remove them."""

    type = "project.completed"
    life = True
    committed: int
    skipped: int
    commit: str | None = None
    removed: list[int] = msgspec.field(default_factory=list[int])


class SessionStarted(EventBody, frozen=True, kw_only=True):
    """`attempt` is told to the model. `reverify` are committed features that are proved first. `base` is the commit that a
    session beside others begins from, whatever is committed meanwhile. `share` is what its agent may use of the project's caps
    (`None`: it asks no model, or began before this was written down)."""

    type = "session.started"
    life = True
    session: int
    kind: SessionKind
    lane: int = 0
    feature_id: str | None = None
    attempt: int = 1
    reverify: list[str] = msgspec.field(default_factory=list[str])
    base: str | None = None
    share: Share | None = None


class SessionRunRequested(EventBody, frozen=True, kw_only=True):
    """The intent of a run; its id derives from this decision, so however often it is made, there is one."""

    type = "session.run_requested"
    life = True
    session: int
    stage: Stage
    run_id: str
    lane: int = 0


class SessionStalled(EventBody, frozen=True, kw_only=True):
    """The session's run showed no sign of life for `silent_s` seconds, `limit_s` were allowed: it is to end, and its end
    counts as a failure of the session. A run that ends otherwise meanwhile counts as what it is."""

    type = "session.stalled"
    life = True
    session: int
    run_id: str
    silent_s: float
    limit_s: float
    lane: int = 0


class SessionRunEnded(EventBody, frozen=True, kw_only=True):
    """How the run of a stage ended, as its own log says, and what it leaves for the next session; of a workspace beside
    others the snapshot that the session's runs are compared with (`baseline`)."""

    type = "session.run_ended"
    life = True
    session: int
    stage: Stage
    run_id: str
    status: str
    usage: Usage
    lane: int = 0
    error: RunError | None = None
    evidence: Evidence | None = None
    handoff: Handoff | None = None
    baseline: str | None = None


class SessionEnded(EventBody, frozen=True, kw_only=True):
    """`retry_at`: the next session of this lane begins then at the earliest. `side_ref` holds what was not committed."""

    type = "session.ended"
    life = True
    session: int
    outcome: Outcome
    reason: str = ""
    lane: int = 0
    feature_id: str | None = None
    handoff: Handoff | None = None
    evidence: Evidence | None = None
    retry_at: str | None = None
    side_ref: str | None = None
    # The workspace's own commit after this session, and the snapshot that later runs are compared with.
    head: str | None = None
    baseline: str | None = None


class FeatureStateChanged(EventBody, frozen=True, kw_only=True):
    """`by` is a person who asked for it; else `session` made it true and `evidence` says how."""

    type = "feature.state_changed"
    life = True
    feature_id: str
    before: FeatureStatus
    state: FeatureStatus
    reason: str = ""
    session: int | None = None
    evidence: Evidence | None = None
    by: str | None = None


class ItemsBegun(EventBody, frozen=True, kw_only=True):
    """The intent of the runs of these items; their ids derive from the sessions."""

    type = "items.begun"
    life = True
    items: list[ItemStart]


class ItemsEnded(EventBody, frozen=True, kw_only=True):
    """How runs of items ended, as their own logs say; `usage` of all of them."""

    type = "items.ended"
    life = True
    items: list[ItemEnd]
    usage: Usage


class ItemDecided(EventBody, frozen=True, kw_only=True):
    """A person has an item that was given up tried again, or left out."""

    type = "item.decided"
    life = True
    index: int
    skip: bool
    by: str


ProjectEvent = (
    ProjectCreated
    | FeatureListSet
    | FeatureListAmended
    | FeatureListRejected
    | PhaseChanged
    | ProjectPaused
    | ProjectResumed
    | ProjectBlocked
    | ProjectCancelRequested
    | ProjectCancelled
    | ProjectCompleted
    | SessionStarted
    | SessionRunRequested
    | SessionStalled
    | SessionRunEnded
    | SessionEnded
    | FeatureStateChanged
    | ItemsBegun
    | ItemsEnded
    | ItemDecided
)
