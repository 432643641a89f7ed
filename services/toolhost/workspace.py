"""Where a workspace lives on this machine: a directory and a hidden git directory, named by a sanitised key.

Invariant: different names get different keys, and a key is one harmless path component (it never starts with a dot,
so the hidden folder beside the workspaces cannot collide with one).
"""

import hashlib
import os
import re
from pathlib import Path

import msgspec

HIDDEN_FOLDER = ".perdure-git"

# Long enough for a person's names, short enough that key, hash and suffix fit every file system's 255 bytes.
_KEY_CHARS_MAX = 100
_HASH_CHARS = 16
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LOOKS_HASHED = re.compile(rf"-[0-9a-f]{{{_HASH_CHARS}}}\Z")


class WorkspacePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that tools see, and the git directory outside of it that keeps its snapshots."""

    key: str
    directory: Path
    git_dir: Path


def workspace_key(name: str) -> str:
    """`name` as one safe path component. What had to be changed carries a hash of the original, and so does a name
    that looks as if it did: `a/b`, `a_b` and `a_b-<the hash of a/b>` are three keys."""
    safe = _UNSAFE.sub("_", name).lstrip(".")[:_KEY_CHARS_MAX]
    if safe == name and safe and not _LOOKS_HASHED.search(name):
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{safe or 'workspace'}-{digest}"


def place_of(root: Path, name: str, *, tenant: str | None = None) -> WorkspacePlace:
    """Where the workspace `name` lives below the root of all workspaces; `tenant` is given in secure mode only."""
    folder = root if tenant is None else root / workspace_key(tenant)
    key = workspace_key(name)
    return WorkspacePlace(key=key, directory=folder / key, git_dir=folder / HIDDEN_FOLDER / f"{key}.git")


def undo_folder(place: WorkspacePlace) -> Path:
    """Where a change of several files keeps what was there before."""
    return place.git_dir.with_name(f"{place.key}.undo")


def root_id(root: Path, fresh: str) -> str:
    """What names the folder of all workspaces, for ever: `fresh` if it has no name yet. Blocking."""
    file = root / HIDDEN_FOLDER / "root-id"
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{fresh}")
    temporary.write_text(fresh)
    try:
        # A link appears whole or not at all, and only one of several hosts that start at once makes it.
        os.link(temporary, file)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return file.read_text()
