"""What a workspace looked like before a change of several files, kept until the change is whole.

Invariant: while the list is there, the files that it names can be put back as they were, by whoever takes the workspace
next; a process that dies in the middle of a change therefore leaves all of it or, after `restore`, nothing. A file that
somebody else has written meanwhile is left alone. The log lies beside the hidden repository, where no tool reaches.
"""

import hashlib
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from services.toolhost.entries import FileKind
from services.toolhost.errors import FileMissing, ToolFailure, WorkspaceFault
from services.toolhost.guard import WorkspaceGuard

_LIST = "changed.json"
# The files of one change, before and after; a patch is bounded by what a model writes, the files by their own limit.
_BYTES_MAX = 256 << 20
# What a tool may hold in memory of one file that it changes; sources are far smaller, larger files are data.
FILE_BYTES_MAX = 16 << 20


class _Was(msgspec.Struct, frozen=True, kw_only=True):
    """A file before the change: its bytes are in the file `number` of the log, unless there was none."""

    path: str
    before_sha256: str | None
    after_sha256: str | None
    mode: int | None
    missing_folders: list[str]


class UndoLog:
    """See the module. `folder` is this log's own. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # There is one list: whoever changes several files holds this from the first look at them to the last write, or
        # another such change would take the first one's list for what a dead process left half done.
        self.alone = threading.Lock()

    def begin(self, guard: WorkspaceGuard, changes: Sequence[tuple[str, str | None, str | None]]) -> None:
        """Keep what the files (path, digest before, digest after) are now. Raises `ToolFailure`, and then nothing is
        kept."""
        self.restore(guard)
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            kept: list[_Was] = []
            total = 0
            for number, (path, before, after) in enumerate(changes):
                mode = None
                if before is not None:
                    data = guard.read(path, bytes_max=FILE_BYTES_MAX)
                    mode, total = guard.stat(path).mode, total + len(data)
                    if total > _BYTES_MAX:
                        raise WorkspaceFault(
                            f"the files of this change hold more than {_BYTES_MAX >> 20} MiB; split it"
                        )
                    _write(self._folder / str(number), data)
                kept.append(
                    _Was(
                        path=path,
                        before_sha256=before,
                        after_sha256=after,
                        mode=mode,
                        missing_folders=[] if before is not None else _missing_folders(guard, path),
                    )
                )
            _write(self._folder / "new", msgspec.json.encode(kept))
            (self._folder / "new").rename(self._folder / _LIST)
            _sync(self._folder)
            _sync(self._folder.parent)
        except OSError as error:
            raise WorkspaceFault(f"the change cannot be made safely: {error.strerror or error}") from None

    def forget(self) -> None:
        """The change is whole."""
        with suppress(FileNotFoundError):
            (self._folder / _LIST).unlink()
            _sync(self._folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def restore(self, guard: WorkspaceGuard) -> list[str]:
        """Put back what a change left half done; the paths. Without one there is nothing to do."""
        try:
            kept = msgspec.json.decode((self._folder / _LIST).read_bytes(), type=list[_Was])
        except (FileNotFoundError, msgspec.MsgspecError):
            return []
        restored: list[str] = []
        for number, was in reversed(list(enumerate(kept))):
            if _digest(guard, was.path) != was.after_sha256:
                continue  # Not changed yet, or by somebody else since.
            if was.before_sha256 is None:
                with suppress(FileMissing):
                    guard.unlink(was.path)
                for folder in was.missing_folders:
                    guard.remove_if_empty(folder)
            else:
                guard.replace(was.path, (self._folder / str(number)).read_bytes(), mode=was.mode)
            restored.append(was.path)
        self.forget()
        return restored


def _missing_folders(guard: WorkspaceGuard, path: str) -> list[str]:
    """The folders that writing the file will make, the deepest first."""
    parts = path.split("/")[:-1]
    found: list[str] = []
    for end in range(len(parts), 0, -1):
        folder = "/".join(parts[:end])
        try:
            if guard.stat(folder).kind is FileKind.DIRECTORY:
                break
        except FileMissing:
            found.append(folder)
    return found


def _digest(guard: WorkspaceGuard, path: str) -> str | None:
    try:
        return hashlib.sha256(guard.read(path, bytes_max=FILE_BYTES_MAX)).hexdigest()
    except FileMissing:
        return None
    except ToolFailure:
        return "something else"


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
