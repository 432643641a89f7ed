"""What git has no place for: empty folders, permissions, and what lies in `.git` of the user's own repositories.

Invariant: what `found_extras` finds, `put_extras` makes again; an existing `.git` is moved aside and never overwritten,
and nothing is written through a link. Nothing of a workspace runs while its extras are put back.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from services.toolhost.entries import BULK_FOLDERS
from services.toolhost.errors import RepositoryFault
from services.toolhost.workspace import HIDDEN_FOLDER

# A large project's own repositories; beyond that somebody keeps a store of objects in the workspace.
GIT_FILES_MAX = 100_000
# Packed already: more would not fit a bundle, and is not worth the time of hashing it.
GIT_BYTES_MAX = 256 << 20
_FILE_MODE, _PROGRAM_MODE, _FOLDER_MODE = 0o644, 0o755, 0o755
_ESCAPE = "@"


class Extras(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Paths as JSON can hold them (`_text`). `modes` are those that git would not give by itself."""

    empty: list[str] = []
    modes: dict[str, int] = {}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """`files` are those for the tree of extras; `print` changes whenever something of it all may have changed."""

    extras: Extras
    files: list[str]
    print: str


def hidden(path: str) -> str:
    """The path under names that git takes into a tree."""
    escaped = (".git", _ESCAPE)
    return "/".join(
        _ESCAPE + part if part.casefold().startswith(escaped) else part for part in path.split("/")
    )


def shown(path: str) -> str:
    """The path that `hidden` was given."""
    return "/".join(part.removeprefix(_ESCAPE) for part in path.split("/"))


def found_extras(worktree: Path) -> Found:
    """Walks the workspace. Blocking."""
    empty: list[str] = []
    modes: dict[str, int] = {}
    files: list[str] = []
    seen = hashlib.sha256()
    gits_bytes = 0
    for folder, folders, names in _walk(worktree):
        status = folder.lstat()
        name = "" if folder == worktree else str(folder.relative_to(worktree))
        if name and stat.S_IMODE(status.st_mode) != _FOLDER_MODE:
            modes[_text(name)] = stat.S_IMODE(status.st_mode)
        content = bool(folders)
        for each in sorted(names):
            path = f"{name}/{each}" if name else each
            with suppress(FileNotFoundError):
                found = (folder / each).lstat()
                if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                    continue
                content = True
                mode = stat.S_IMODE(found.st_mode)
                if stat.S_ISREG(found.st_mode) and mode != (
                    _PROGRAM_MODE if mode & stat.S_IXUSR else _FILE_MODE
                ):
                    modes[_text(path)] = mode
                linked = stat.S_ISLNK(found.st_mode) and each.casefold() == ".gitmodules"
                if linked or any(_is_gits(part) for part in path.split("/")):
                    files.append(path)
                    gits_bytes += found.st_size
                    seen.update(f"{path!r} {found.st_size} {found.st_mtime_ns} {found.st_ino};".encode())
        if name and not content:
            empty.append(_text(name))
    if gits_bytes > GIT_BYTES_MAX:
        raise RepositoryFault(
            f"the workspace's own repositories hold more than {GIT_BYTES_MAX >> 20} MiB; what is there is not kept"
        )
    if len(files) > GIT_FILES_MAX:
        raise RepositoryFault(
            f"the workspace's own repositories hold more than {GIT_FILES_MAX} files: git gc helps"
        )
    extras = Extras(empty=sorted(empty), modes=dict(sorted(modes.items())))
    seen.update(msgspec.json.encode(extras))
    return Found(extras=extras, files=files, print=seen.hexdigest())


def put_extras(worktree: Path, kept: Path, extras: Extras, aside: Path) -> None:
    """Makes them again: the files below `kept` (under hidden names), the folders and the permissions. What `.git` there
    is goes to `aside`. Blocking."""
    for folder, folders, names in _walk(worktree):
        for each in [*folders, *names]:
            if each.casefold() == ".git":
                there = aside / (folder / each).relative_to(worktree)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(folder / each, there)
    _prune(worktree, {_path(name) for name in extras.empty})
    for folder, _, names in os.walk(kept) if kept.is_dir() else ():
        for each in names:
            source = Path(folder) / each
            target = worktree / shown(str(source.relative_to(kept)))
            if not _through_a_link(worktree, target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(source, target)
    for name in extras.empty:
        folder = worktree / _path(name)
        if not _through_a_link(worktree, folder):
            folder.mkdir(parents=True, exist_ok=True)
    # Deep ones first: a folder may be closed by its own permissions.
    for name, mode in sorted(extras.modes.items(), reverse=True):
        path = worktree / _path(name)
        if not _through_a_link(worktree, path) and path.exists() and not path.is_symlink():
            path.chmod(mode)


def _walk(worktree: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folder by folder, without what can be made again; a link to a folder counts as a file."""
    for folder, folders, names in os.walk(worktree):
        here = Path(folder)
        linked = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in linked and name not in BULK_FOLDERS and name != HIDDEN_FOLDER
        )
        yield here, folders, [*names, *linked]


def _prune(worktree: Path, wanted: set[str]) -> None:
    """Remove the folders that are empty and were not."""
    for folder, _, _ in os.walk(worktree, topdown=False):
        here = Path(folder)
        if here != worktree and str(here.relative_to(worktree)) not in wanted:
            with suppress(OSError):  # It holds something.
                here.rmdir()


def _through_a_link(worktree: Path, path: Path) -> bool:
    above = [parent for parent in path.parents if parent != worktree and parent.is_relative_to(worktree)]
    return any(parent.is_symlink() for parent in above)


def _is_gits(part: str) -> bool:
    return part.casefold() == ".git"


def _text(path: str) -> str:
    return os.fsencode(path).decode("latin-1")


def _path(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))
