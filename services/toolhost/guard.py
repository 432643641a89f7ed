"""Every access of a tool to its workspace: by descriptors relative to the root, never by joined paths.

Invariant: nothing outside the root is opened, made, replaced or removed, and nothing that is not a regular file is
read, even while somebody swaps files for links. Directories are opened beneath the root without following links
(`beneath.py`); the last component is always used with "no follow" relative to its parent's descriptor. Writes also
refuse files with a second hard link (its other name may lie outside) and everything inside `.git` folders, because
hooks and filters there would run outside the sandbox. Reads through a hard link are allowed: only who could already
read the other name could make it.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from services.toolhost import beneath
from services.toolhost.atomic import TEMPORARY_PREFIX, AtomicWriter
from services.toolhost.errors import (
    FileMissing,
    FileTooLarge,
    PathRefused,
    ToolFailure,
    WorkspaceFault,
    WrongKind,
)
from services.toolhost.workspace import HIDDEN_FOLDER

# Linux's own limits: a longer path or name cannot exist, so refusing it early only gives the clearer message.
PATH_BYTES_MAX = 4095
NAME_BYTES_MAX = 255
# A walk is for a model or a snapshot; trees beyond these are caches or loops made of bind mounts.
WALK_ENTRIES_MAX = 200_000
WALK_DEPTH_MAX = 64
# Folders that hold what a tool can make again: listed by name, not entered unless the walk starts inside.
BULK_FOLDERS = frozenset(
    {"node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
)
_NEVER_SHOWN = frozenset({".git", HIDDEN_FOLDER})
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    SPECIAL = "special"


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    """What a path is. `mode` holds the permission bits, `links` the number of hard links."""

    kind: FileKind
    size_bytes: int
    mode: int
    links: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One find of a walk. `path` is relative to the root, with `/`; bytes that are not UTF-8 are surrogate-escaped."""

    path: str
    kind: FileKind
    size_bytes: int = 0


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk found, shallow first; `complete` is false when a bound ended it, `unreadable` counts closed folders."""

    entries: list[Entry]
    complete: bool
    unreadable: int


class WorkspaceGuard:
    """The one way into a workspace. Blocking: call it from a thread for anything long. Thread-safe."""

    def __init__(self, root: Path, *, openat2: bool = True) -> None:
        """Opens the trusted directory `root`. `openat2=False` forces the way of older kernels."""
        self.root = root
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._one_call = openat2 and beneath.has_openat2(self._root_fd)
        self._writer = AtomicWriter()

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
            raise _translated(error, path) from None

    def open_read(self, path: str) -> int:
        """A descriptor of the regular file; the caller closes it. Never blocks on a pipe."""
        try:
            with _Parent(self, path) as (parent_fd, name):
                _require_regular(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
                fd = os.open(name, _READ_FLAGS, dir_fd=parent_fd)
        except OSError as error:
            raise _translated(error, path) from None
        try:
            # What was looked at and what was opened may differ: only the second look counts.
            _require_regular(os.fstat(fd), path)
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
                raise _translated(error, path) from None
        if len(data) > bytes_max:
            raise FileTooLarge(f"{path!r} is larger than the {bytes_max} bytes that this tool handles")
        return bytes(data)

    def stat(self, path: str) -> FileStat:
        """What is there; a link is an answer (`SYMLINK`), not an error, when it is the last component."""
        try:
            if not (parts := components(path)):
                return _stat_of(os.fstat(self._root_fd))
            with _Parent(self, "/".join(parts)) as (parent_fd, name):
                return _stat_of(os.stat(name, dir_fd=parent_fd, follow_symlinks=False))
        except OSError as error:
            raise _translated(error, path) from None

    def require_writable(self, path: str) -> None:
        """Raises what `replace` would raise for this path, as far as it can be known before."""
        _require_writable_name(components(path), path)
        try:
            with _Parent(self, path) as (parent_fd, name):
                _require_replaceable(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _translated(error, path) from None

    def replace(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Writes the file whole or not at all, durably; missing parents are made. An existing file keeps its owner,
        extended attributes and (unless `mode` says otherwise) permission bits; a new one gets 0644."""
        parts = components(path)
        _require_writable_name(parts, path)
        try:
            with closing(_Fd(beneath.open_step_by_step(self._root_fd, parts[:-1], create=True))) as parent:
                existing: os.stat_result | None = None
                with suppress(FileNotFoundError):
                    existing = os.stat(parts[-1], dir_fd=parent.fd, follow_symlinks=False)
                    _require_replaceable(existing, path)
                self._writer.replace(parent.fd, parts[-1], data, existing=existing, mode=mode)
        except OSError as error:
            raise _translated(error, path) from None

    def unlink(self, path: str) -> None:
        """Removes a regular file."""
        _require_writable_name(components(path), path)
        try:
            with _Parent(self, path) as (parent_fd, name):
                _require_replaceable(os.stat(name, dir_fd=parent_fd, follow_symlinks=False), path)
                os.unlink(name, dir_fd=parent_fd)
                os.fsync(parent_fd)
        except OSError as error:
            raise _translated(error, path) from None

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
                if item.name in _NEVER_SHOWN or item.name.startswith(TEMPORARY_PREFIX):
                    continue
                with suppress(FileNotFoundError):
                    status = item.stat(follow_symlinks=False)
                    kind = _kind(status.st_mode)
                    size = status.st_size if kind is FileKind.FILE else 0
                    entry = Entry(path="/".join((*parts, item.name)), kind=kind, size_bytes=size)
                    found.append((item.name, entry))
        return sorted(found, key=lambda pair: pair[0])

    def _directory(self, parts: Sequence[str]) -> int:
        if self._one_call:
            return beneath.open_in_one_call(self._root_fd, parts)
        return beneath.open_step_by_step(self._root_fd, parts)


def components(path: str) -> tuple[str, ...]:
    """The components of a relative path (none for the root). Raises `PathRefused` for everything that could lead out."""
    if not path:
        raise PathRefused("the path is empty; give one relative to the workspace, such as src/app.py")
    if "\0" in path:
        raise PathRefused("the path contains a NUL character")
    if path.startswith("/"):
        raise PathRefused(f"{path!r} is absolute; give it relative to the workspace")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PathRefused(f"{path!r} contains '..'; give a path inside the workspace")
    try:
        sizes = [len(os.fsencode(part)) for part in parts]
    except UnicodeEncodeError:
        raise PathRefused(f"{path!r} is not valid text") from None
    if any(size > NAME_BYTES_MAX for size in sizes) or sum(sizes) + len(sizes) > PATH_BYTES_MAX:
        raise PathRefused(
            f"the path is too long: at most {NAME_BYTES_MAX} bytes a name, {PATH_BYTES_MAX} in all"
        )
    return parts


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


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.SPECIAL


def _stat_of(status: os.stat_result) -> FileStat:
    return FileStat(
        kind=_kind(status.st_mode),
        size_bytes=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        links=status.st_nlink,
    )


def _require_regular(status: os.stat_result, path: str) -> None:
    match _kind(status.st_mode):
        case FileKind.FILE:
            return
        case FileKind.SYMLINK:
            raise PathRefused(
                f"{path!r} is a symbolic link, and links are not followed; name the file itself"
            )
        case FileKind.DIRECTORY:
            raise WrongKind(f"{path!r} is a directory; list it, or name a file in it")
        case FileKind.SPECIAL:
            raise WrongKind(f"{path!r} is a pipe, a socket or a device, not a file")


def _require_replaceable(status: os.stat_result, path: str) -> None:
    _require_regular(status, path)
    if status.st_nlink > 1:
        raise PathRefused(
            f"{path!r} has a second hard link, which may lie outside the workspace; write a new file"
        )


def _require_writable_name(parts: tuple[str, ...], path: str) -> None:
    if not parts:
        raise WrongKind(f"{path!r} is the workspace itself; name a file in it")
    if any(part.casefold() in _NEVER_SHOWN for part in parts):
        raise PathRefused(f"{path!r} belongs to git and is not written by tools")


def _translated(error: OSError, path: str) -> ToolFailure:
    """The one place where the kernel's answers become ours."""
    match error.errno:
        case errno.ELOOP | errno.EXDEV:
            return PathRefused(f"{path!r} passes over a symbolic link, and links are not followed")
        case errno.ENAMETOOLONG:
            return PathRefused(f"{path!r} is too long for this file system")
        case errno.ENOENT:
            return FileMissing(f"{path!r} does not exist; list the folder to see what does")
        case errno.ENOTDIR:
            return WrongKind(f"{path!r} goes through something that is not a directory, or is not one itself")
        case errno.EISDIR:
            return WrongKind(f"{path!r} is a directory")
        case errno.ENXIO:
            return WrongKind(f"{path!r} is a pipe, a socket or a device, not a file")
        case _:
            return WorkspaceFault(f"{path!r}: {error.strerror or error}")
