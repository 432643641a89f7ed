"""What stands in a workspace: files, folders, links, and what is none of these.

Invariant: only regular files are read and replaced; everything else has its own answer, which says what to do instead.
"""

import errno
import os
import stat
from enum import StrEnum

import msgspec

from services.toolhost.errors import FileMissing, PathRefused, ToolFailure, WorkspaceFault, WrongKind

# Folders that hold what a tool can make again: listed by name, not entered unless the walk starts inside.
BULK_FOLDERS = frozenset(
    {"node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
)


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


def kind_of(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.SPECIAL


def stat_of(status: os.stat_result) -> FileStat:
    return FileStat(
        kind=kind_of(status.st_mode),
        size_bytes=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        links=status.st_nlink,
    )


def require_regular(status: os.stat_result, path: str) -> None:
    match kind_of(status.st_mode):
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


def require_replaceable(status: os.stat_result, path: str) -> None:
    require_regular(status, path)
    if status.st_nlink > 1:
        raise PathRefused(
            f"{path!r} has a second hard link, which may lie outside the workspace; write a new file"
        )


def require_readable(status: os.stat_result, path: str) -> None:
    """Raises unless it is a regular file with one name. A second one may lie outside, where the owner of the host can
    read and the workspace's user cannot; package managers make such links to their stores, so their folders may."""
    require_regular(status, path)
    if status.st_nlink > 1 and BULK_FOLDERS.isdisjoint(path.split("/")):
        raise PathRefused(
            f"{path!r} has a second hard link, which may lie outside the workspace; make a copy and read that"
        )


def translated(error: OSError, path: str) -> ToolFailure:
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
