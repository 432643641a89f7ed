"""What a run says of the session of a project that it belongs to, and the steps of a run that asks no model.

Invariant: a step is a call of the runtime; no model is offered it, and it is done again after a crash, so it is idempotent.
"""

from enum import StrEnum

import msgspec

# Tools of the runtime that only the agent of a project's session has: they change its run, not the world.
WRITE_HANDOFF = "write_handoff"
WRITE_FEATURES = "write_features"


class SessionKind(StrEnum):
    """`initialize` writes the list of features, `feature` works on one, `final` proves all of them once more; `item`
    does one item of many and knows nothing of the project; `remove` empties the workspace of a lane, which goes at the
    project's end."""

    INITIALIZE = "initialize"
    FEATURE = "feature"
    FINAL = "final"
    ITEM = "item"
    REMOVE = "remove"


class Stage(StrEnum):
    """The runs of a session, in order: an errand that looks at the environment, the agent, an errand that closes. One that
    is held beside others has a workspace of its own: an errand before them makes that what the project is, and one behind
    them brings the commit to the project's workspace. A session that removes has two of its own: one takes leave in the
    lane's workspace, one brings what was left there to the project's."""

    BEGIN = "begin"
    HEALTH = "health"
    AGENT = "agent"
    CLOSE = "close"
    MERGE = "merge"
    LEAVE = "leave"
    GATHER = "gather"


class SessionRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """In a run's task: which session of which project it is a stage of. `features_min`: how many a first list needs."""

    project_id: str
    session: int
    stage: Stage
    kind: SessionKind
    feature_id: str | None = None
    features_min: int = 1


class Errand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a run that asks no model: a call of the runtime to the workspace's host (`name`, `arguments`), or with
    the name `verify` the proof of the task's acceptance, once. One that `must_pass` and fails ends the run with its
    `error_code`; of another its failure is only recorded. Steps are done again after a crash, so each is idempotent."""

    name: str
    arguments: dict[str, object] = {}
    timeout_s: float = 120.0
    must_pass: bool = True
    label: str = ""
    error_code: str = "WORKSPACE_ERROR"
