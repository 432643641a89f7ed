"""What is said of workspaces: which host holds one, and what was kept of it.

Invariant: a snapshot exists for readers only once its event is in a log; the newest record of a workspace's own log says
all that a host needs to hold it.
"""

from collections.abc import Sequence

import msgspec

from libs.contracts.eventbody import EventBody
from libs.contracts.ids import is_id
from libs.contracts.values import ProjectInstructions

# Calls of the runtime itself in errands, over the work queue; never offered to a model (`HostCatalog`). Each is idempotent.
# `workspace_prepare` {seed_dir, git_url, head} -> metadata {began: bool}: an empty workspace begins as it shall
WORKSPACE_PREPARE = "workspace_prepare"
# `workspace_command` {argv}: a command of the project (its `init`, a hook), in the workspace and its sandbox
WORKSPACE_COMMAND = "workspace_command"
# `workspace_commit` {message, trailers, files, verified, head, kept, offer} -> metadata {commit, head, baseline, found}
WORKSPACE_COMMIT = "workspace_commit"
# `workspace_set_aside` {ref, message, head, offer} -> metadata {side_ref, head, baseline}: leftovers go, the tree is clean
WORKSPACE_SET_ASIDE = "workspace_set_aside"
# `workspace_restore` {ref, object} -> metadata {restored: bool, problem: bool}: what was set aside comes back
WORKSPACE_RESTORE = "workspace_restore"
# `workspace_begin` {object, head} -> metadata {head, baseline}: the tree is what the project's branch holds at `head`
WORKSPACE_BEGIN = "workspace_begin"
# `workspace_merge` {branch, object, ref, head} -> metadata {conflicts: [path]}: the tree is `head` with what `ref` changed
WORKSPACE_MERGE = "workspace_merge"
# `workspace_leave` {object, ref, message, head} -> metadata {offered: bool}: all that `head` does not hold is stored
WORKSPACE_LEAVE = "workspace_leave"
# `workspace_gather` {object, under} -> the references that another workspace left are here, below `under`
WORKSPACE_GATHER = "workspace_gather"


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a workspace in the object store. `chain`: the snapshots that bring it back, the first one whole and
    each later one on top of the one before; the last is this one. It holds what run `run_id` had done up to its event
    `at_sequence`, and all that stood in the workspace then. `commit` is what it holds, as verifications name it."""

    snapshot: str
    commit: str
    chain: list[str]
    run_id: str
    at_sequence: int


class WorkspaceAttached(EventBody, frozen=True, kw_only=True):
    """Which host holds the workspace: in its own log, then in the run's.

    `baseline`: commit at the run's first attach, `instructions`: the project's own, as they were then. `root` names the
    folder that the host keeps workspaces in, `held` the one where the newest state of this workspace lies: when they
    differ, the host brings back `saved`. For the run's log: `changed` files and `lost` effects, which may be missing.
    """

    type = "workspace.attached"

    workspace_id: str
    host: str
    replica: str
    snapshot: str | None = None
    baseline: str | None = None
    changed: list[str] = msgspec.field(default_factory=list[str])
    instructions: ProjectInstructions | None = None
    root: str = ""
    held: str = ""
    saved: Saved | None = None
    lost: list[str] = msgspec.field(default_factory=list[str])


class WorkspaceSnapshotted(EventBody, frozen=True, kw_only=True):
    """The workspace was kept as `saved` says; `changed` paths differ from the snapshot before. With a `problem` it was
    not, and the run goes on without."""

    type = "workspace.snapshotted"

    commit: str
    changed: int
    saved: Saved | None = None
    problem: str | None = None


# In place of a folder (`held`): the newest state lies in none, it is brought back from what `saved` says, or is empty.
NOWHERE = "nowhere"


def objects_of(workspace_id: str, chain: Sequence[str]) -> list[str]:
    """The names of the objects in `<p>-workspaces` that a chain of snapshots needs, in order."""
    befores = [None, *chain[:-1]]
    return [
        f"{workspace_id}/{link}" if before is None else f"{workspace_id}/{before}..{link}"
        for before, link in zip(befores, chain, strict=True)
    ]


def workspace_of(name: str) -> str:
    """The workspace that an object is of, or the project."""
    return name.partition("/")[0]


def lane_workspace(workspace: str, lane: int) -> str:
    """The name of the workspace that a lane of a project has for itself."""
    return f"{workspace}-lane-{lane}"


def lane_of(name: str) -> tuple[str, int] | None:
    """The project and the lane whose workspace has this name, by its form; `None`: it is none of a lane's."""
    project, _, lane = name.rpartition("-lane-")
    # One spelling for each number, so that no two names are one lane's.
    if not is_id("project", project) or not lane.isascii() or not lane.isdigit() or lane != str(int(lane)):
        return None
    return project, int(lane)


def leavings_object(project_id: str, lane: int) -> str:
    """The name of the object that holds what was left in a lane's workspace, until the project's has it."""
    return f"{project_id}/lane/{lane}"


def branch_object(project_id: str) -> str:
    """The name of the object that brings a project's branch from its workspace into those of its lanes."""
    return f"{project_id}/branch"


def feature_object(project_id: str, feature_id: str) -> str:
    """The name of the object that holds what the latest session made of a feature, wherever that was held."""
    return f"{project_id}/feature/{feature_id}"
