"""How much a workspace may hold, and whether there is room for more.

Invariant: a change that would go beyond the quota is refused before it begins, and only after the workspace has been
measured anew. What commands write is seen at the next measuring; making something smaller is always allowed.
"""

import threading
from typing import NamedTuple

from services.toolhost.beneath import everything
from services.toolhost.errors import WorkspaceFull

# A checkout with its dependencies stays far below both; beyond them something writes in a loop.
BYTES_MAX = 10 << 30
FILES_MAX = 500_000
_BLOCK_BYTES = 512


class Quota(NamedTuple):
    """Of one workspace, everything in it counted (`.git` and dependencies, too)."""

    bytes_max: int = BYTES_MAX
    files_max: int = FILES_MAX


class Usage(NamedTuple):
    bytes: int
    files: int


class Room:
    """The room of one workspace. Blocking; thread-safe."""

    def __init__(self, root_fd: int, quota: Quota) -> None:
        self._root_fd, self._quota = root_fd, quota
        self._lock = threading.Lock()
        self._known: Usage | None = None

    def forget(self) -> None:
        """Something that was not measured may have changed the workspace."""
        self._known = None

    def take(self, added: Usage) -> None:
        """Room for a change by so many bytes and files, negative ones for what goes. Raises `WorkspaceFull`."""
        with self._lock:
            measured = self._known is None
            known = self._known or self.measure()
            if not self._fits(known, added) and not measured:
                known = self.measure()
            if not self._fits(known, added):
                self._known = known
                raise WorkspaceFull(_said(known, added, self._quota))
            self._known = Usage(known.bytes + added.bytes, known.files + added.files)

    def measure(self) -> Usage:
        """What is there now; ends as soon as the quota is passed. Files with holes count for what they take."""
        size = files = 0
        for _, item in everything(self._root_fd):
            try:
                status = item.stat(follow_symlinks=False)
            except OSError:
                continue
            files += 1
            if item.is_file(follow_symlinks=False):
                size += min(status.st_size, status.st_blocks * _BLOCK_BYTES)
            if files > self._quota.files_max or size > self._quota.bytes_max:
                break
        return Usage(size, files)

    def _fits(self, known: Usage, added: Usage) -> bool:
        return (added.bytes <= 0 or known.bytes + added.bytes <= self._quota.bytes_max) and (
            added.files <= 0 or known.files + added.files <= self._quota.files_max
        )


def _said(known: Usage, added: Usage, quota: Quota) -> str:
    if added.bytes > 0 and known.bytes + added.bytes > quota.bytes_max:
        what = f"{known.bytes} of {quota.bytes_max} bytes, and {added.bytes} more do not fit"
        name = "PERDURE_WORKSPACE_BYTES_MAX"
    else:
        what = f"{known.files} of {quota.files_max} files and folders, and {added.files} more do not fit"
        name = "PERDURE_WORKSPACE_FILES_MAX"
    return f"the workspace holds {what}; remove what is not needed, or ask the operator to raise {name}"
