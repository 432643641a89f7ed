"""What the runtime does in a project's workspace, in memory: its commits, and what is set aside.

Invariant: as `services/toolhost/errands.py`: done again after a crash, each step finds what it did; a commit is found by
its trailers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from libs.contracts.workspaces import (
    WORKSPACE_COMMAND,
    WORKSPACE_COMMIT,
    WORKSPACE_PREPARE,
    WORKSPACE_RESTORE,
    WORKSPACE_SET_ASIDE,
)

Files = dict[str, str]
Metadata = dict[str, object]

# The file that makes the check of a task pass.
WANTED = "fixed"


class Repository:
    """The history of one workspace: each commit's trailers, and the tree of the newest."""

    def __init__(self) -> None:
        self.commits: list[dict[str, str]] = []
        self.tree: Files = {}

    def perform(self, name: str, arguments: Mapping[str, object], files: Files) -> Metadata:
        """Do a step with what lies in the workspace; what it answers with."""
        return _STEPS[name](self, arguments, files)

    def prepare(self, arguments: Mapping[str, object], files: Files) -> Metadata:
        del arguments
        began = not files
        files.setdefault(WANTED, "")
        return {"began": began}

    def command(self, arguments: Mapping[str, object], files: Files) -> Metadata:
        del self, files
        return {"argv": arguments["argv"]}

    def commit(self, arguments: Mapping[str, object], files: Files) -> Metadata:
        trailers = cast("dict[str, str]", arguments["trailers"])
        found = trailers in self.commits
        if not found:
            files |= cast("Files", arguments.get("files", {}))
            self.commits.append(trailers)
            self.tree = dict(files)
        return {"commit": f"{self.commits.index(trailers):040x}", "found": found, **self._head()}

    def set_aside(self, arguments: Mapping[str, object], files: Files) -> Metadata:
        left = files != self.tree
        files.clear()
        files |= self.tree
        return {"side_ref": arguments["ref"] if left else None, **self._head()}

    def restore(self, arguments: Mapping[str, object], files: Files) -> Metadata:
        del self, arguments, files
        return {"restored": False}

    def _head(self) -> Metadata:
        return {"head": f"{len(self.commits) - 1:040x}", "baseline": "base"}


_STEPS: dict[str, Callable[[Repository, Mapping[str, object], Files], Metadata]] = {
    WORKSPACE_PREPARE: Repository.prepare,
    WORKSPACE_COMMAND: Repository.command,
    WORKSPACE_COMMIT: Repository.commit,
    WORKSPACE_SET_ASIDE: Repository.set_aside,
    WORKSPACE_RESTORE: Repository.restore,
}
ERRANDS = frozenset(_STEPS)
