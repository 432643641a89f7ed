"""Paths as tools give them: relative to a workspace, with `/`, never leading out.

Invariant: what passes here cannot name anything outside of a folder, as far as its text goes; links are the guard's part.
"""

import os

from services.toolhost.errors import PathRefused, WrongKind
from services.toolhost.workspace import HIDDEN_FOLDER

# Linux's own limits: a longer path or name cannot exist, so refusing it early only gives the clearer message.
PATH_BYTES_MAX = 4095
NAME_BYTES_MAX = 255
NEVER_SHOWN = frozenset({".git", HIDDEN_FOLDER})


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


def require_writable_name(parts: tuple[str, ...], path: str) -> None:
    """Raises for the workspace itself, and for what git would execute outside of the sandbox."""
    if not parts:
        raise WrongKind(f"{path!r} is the workspace itself; name a file in it")
    if any(part.casefold() in NEVER_SHOWN for part in parts):
        raise PathRefused(f"{path!r} belongs to git and is not written by tools")
