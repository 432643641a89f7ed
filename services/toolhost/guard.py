"""Every access of a tool to its workspace: by descriptors relative to the root, never by joined paths.

Invariant: nothing outside the root is opened, made, replaced or removed, and nothing that is not a regular file is
read, even while somebody swaps files for links. Directories are opened beneath the root without following links
(`beneath.py`); the last component is always used with "no follow" relative to its parent's descriptor. Writes also
refuse files with a second hard link (its other name may lie outside) and everything inside `.git` folders, because
hooks and filters there would run outside the sandbox. Reads refuse a second hard link, too, except in the folders of
package managers, which link to their stores.
"""

import os
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

from services.toolhost import beneath
from services.toolhost.atomic import TEMPORARY_PREFIX, AtomicWriter, remove_temporaries
from services.toolhost.entries import (
    BULK_FOLDERS,
    Entry,
    FileKind,
    FileStat,
    Listing,
    kind_of,
    require_readable,
    require_replaceable,
    stat_of,
    translated,
)
from services.toolhost.errors import FileTooLarge, ToolFailure, WrongKind
from services.toolhost.paths import NEVER_SHOWN, components, require_writable_name
from services.toolhost.room import Quota, Room

# A walk is for a model or a snapshot; trees beyond these are caches or loops made of bind mounts.
WALK_ENTRIES_MAX = 200_000
WALK_DEPTH_MAX = 64
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class WorkspaceGuard:
    """The one way into a workspace. Blocking: call it from a thread for anything long. Thread-safe."""

    def __init__(self, root: Path, *, quota: Quota | None = None, openat2: bool = True) -> None:
        """Opens the trusted directory `root`. `openat2=False` forces the way of older kernels."""
        self.root = root
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._one_call = openat2 and beneath.has_openat2(self._root_fd)
        self._writer = AtomicWriter()
        self.room = Room(self._root_fd, quota or Quota())

    def close(self) -> None:
        os.close(self._root_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_dir(self, path: str) -> int:
        """A descriptor of the directory; the caller closes it. `.` is the root."""
        parts = components(path)
        try:
            return self._directory(parts)
        except OSError as error:
            raise translated(error, path) from None

    def open_read(self, path: str) -> int:
        """A descriptor of the regular file; the caller closes it. Never blocks on a pipe."""
        try:
            with _Parent(self, path) as (parent_fd, name):
                require_readable(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
                fd = os.open(name, _READ_FLAGS, dir_fd=parent_fd)
        except OSError as error:
            raise translated(error, path) from None
        try:
            # What was looked at and what was opened may differ: only the second look counts.
            require_readable(os.fstat(fd), path)
        except ToolFailure:
            os.close(fd)
            raise
        return fd

    def read(self, path: str, *, bytes_max: int) -> bytes:
        """The whole file. Raises `FileTooLarge` beyond `bytes_max`."""
        fd = self.open_read(path)
        with os.fdopen(fd, "rb", buffering=0) as file:
            try:
                data = bytearray()
                while len(data) <= bytes_max and (
                    block := file.read(min(1 << 20, bytes_max + 1 - len(data)))
                ):
                    data += block
            except OSError as error:
                raise translated(error, path) from None
        if len(data) > bytes_max:
            raise FileTooLarge(f"{path!r} is larger than the {bytes_max} bytes that this tool handles")
        return bytes(data)

    def stat(self, path: str) -> FileStat:
        """What is there; a link is an answer (`SYMLINK`), not an error, when it is the last component."""
        try:
            if not (parts := components(path)):
                return stat_of(os.fstat(self._root_fd))
            with _Parent(self, "/".join(parts)) as (parent_fd, name):
                return stat_of(os.stat(name, dir_fd=parent_fd, follow_symlinks=False))
        except OSError as error:
            raise translated(error, path) from None

    def require_writable(self, path: str) -> None:
        """Raises what `replace` would raise for this path, as far as it can be known before."""
        require_writable_name(components(path), path)
        try:
            with _Parent(self, path) as (parent_fd, name):
                require_replaceable(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translated(error, path) from None

    def replace(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Writes the file whole or not at all, durably; missing parents are made. An existing file keeps its owner,
        extended attributes and (unless `mode` says otherwise) permission bits; a new one gets 0644."""
        parts = components(path)
        require_writable_name(parts, path)
        try:
            with closing(_Fd(beneath.open_step_by_step(self._root_fd, parts[:-1], create=True))) as parent:
                existing: os.stat_result | None = None
                with suppress(FileNotFoundError):
                    existing = os.stat(parts[-1], dir_fd=parent.fd, follow_symlinks=False)
                    require_replaceable(existing, path)
                self._writer.replace(parent.fd, parts[-1], data, existing=existing, mode=mode)
        except OSError as error:
            raise translated(error, path) from None

    def unlink(self, path: str) -> None:
        """Removes a regular file."""
        require_writable_name(components(path), path)
        try:
            with _Parent(self, path) as (parent_fd, name):
                require_replaceable(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
                os.unlink(name, dir_fd=parent_fd)
                os.fsync(parent_fd)
        except OSError as error:
            raise translated(error, path) from None

    def remove_temporaries(self) -> int:
        """Removes what a killed process left of its replacements; returns how many. Only by the one holder."""
        return remove_temporaries(self._root_fd)

    def remove_if_empty(self, path: str) -> None:
        """Removes a directory; one that holds something, or is none, stays."""
        require_writable_name(components(path), path)
        with suppress(OSError), _Parent(self, path) as (parent_fd, name):
            os.rmdir(name, dir_fd=parent_fd)

    def spelled(self, path: str) -> str:
        """The path as it is spelled in the workspace. A name that is not there stands for the one that differs from it
        only in its Unicode form (é as one character or as two), if there is exactly one: models cannot see which."""
        parts = components(path)
        plain = "/".join(parts) or "."
        if plain.isascii():
            return plain
        found: list[str] = []
        for part in parts:
            try:
                names = {name for name, _ in self._scan(tuple(found))}
            except OSError:
                return plain
            if part not in names:
                alike = [name for name in names if _composed(name) == _composed(part)]
                if len(alike) != 1:
                    return plain
                part = alike[0]
            found.append(part)
        return "/".join(found)

    def parent_of(self, path: str) -> tuple[int, str]:
        """A descriptor of the directory that holds `path`, and the last component. Raises `OSError`."""
        parts = components(path)
        if not parts:
            raise WrongKind(f"{path!r} is the workspace itself; name a file in it")
        return self._directory(parts[:-1]), parts[-1]

    def walk(
        self,
        path: str = ".",
        *,
        keep: Callable[[str], bool] | None = None,
        entries_max: int = WALK_ENTRIES_MAX,
    ) -> Listing:
        """All that lies below `path` (a directory), shallow first and sorted within each folder. Links are named and
        never followed; `.git` is left out, `BULK_FOLDERS` are named and not entered. `keep` chooses by path."""
        os.close(self.open_dir(path))
        entries: list[Entry] = []
        seen = unreadable = 0
        waiting: deque[tuple[str, ...]] = deque([components(path)])
        while waiting:
            parts = waiting.popleft()
            try:
                found = self._scan(parts)
            except OSError:
                unreadable += 1
                continue
            for name, entry in found:
                seen += 1
                if seen > entries_max:
                    return Listing(entries=entries, complete=False, unreadable=unreadable)
                if keep is None or keep(entry.path):
                    entries.append(entry)
                if entry.kind is FileKind.DIRECTORY and name not in BULK_FOLDERS:
                    if len(parts) >= WALK_DEPTH_MAX:
                        unreadable += 1
                    else:
                        waiting.append((*parts, name))
        return Listing(entries=entries, complete=True, unreadable=unreadable)

    def _scan(self, parts: tuple[str, ...]) -> list[tuple[str, Entry]]:
        found: list[tuple[str, Entry]] = []
        with closing(_Fd(self._directory(parts))) as folder, os.scandir(folder.fd) as listing:
            for item in listing:
                if item.name in NEVER_SHOWN or item.name.startswith(TEMPORARY_PREFIX):
                    continue
                with suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    kind = kind_of(status.st_mode)
                    size = status.st_size if kind is FileKind.FILE else 0
                    entry = Entry(path="/".join((*parts, item.name)), kind=kind, size_bytes=size)
                    found.append((item.name, entry))
        return sorted(found, key=lambda pair: pair[0])

    def _directory(self, parts: Sequence[str]) -> int:
        if self._one_call:
            return beneath.open_in_one_call(self._root_fd, parts)
        return beneath.open_step_by_step(self._root_fd, parts)


class _Fd:
    """A descriptor that `contextlib.closing` can close."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        os.close(self.fd)


class _Parent:
    """`with _Parent(guard, path) as (parent_fd, name)`: closes the descriptor at the end."""

    def __init__(self, guard: WorkspaceGuard, path: str) -> None:
        self._fd, self._name = guard.parent_of(path)

    def __enter__(self) -> tuple[int, str]:
        return self._fd, self._name

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)
