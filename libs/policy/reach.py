"""What a call touches of its workspace, from its recorded intent alone: for the order of a turn's calls, for locks, and
for rules about paths.

Invariant: two calls that `collide` never run at the same time, and whatever is not understood touches everything.
"""

import unicodedata
from collections.abc import Collection, Mapping
from typing import NamedTuple

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches import paths_of
from libs.contracts.tools import Semantics

EVERYTHING = frozenset({""})
_NOTHING = frozenset[str]()
_PATCH_TOOL = "apply_patch"


class Reach(NamedTuple):
    """`paths` are files or folders relative to the workspace; the empty one is the workspace. `alone`: nothing may go
    on beside it, whatever it touches."""

    paths: frozenset[str]
    writes: bool
    alone: bool


def reach_of(
    name: str, arguments: Mapping[str, object], semantics: Semantics, *, needs_workspace: bool
) -> Reach:
    """The reach of a call, by what its intent says."""
    paths = frozenset(paths_of_call(name, arguments)) or EVERYTHING if needs_workspace else _NOTHING
    return Reach(
        paths=paths,
        writes=semantics is not Semantics.READ_ONLY,
        alone=semantics is Semantics.NON_IDEMPOTENT,
    )


def paths_of_call(name: str, arguments: Mapping[str, object]) -> list[str]:
    """The paths that the arguments name, in one spelling, sorted; none when they name none (or cannot be read)."""
    if name == _PATCH_TOOL:
        try:
            return sorted({spelled(path) for path in paths_of(str(arguments.get("patch", "")))})
        except PatchUnreadable:
            return []
    path = arguments.get("path")
    return [spelled(path)] if isinstance(path, str) else []


def spelled(path: str) -> str:
    """One spelling for the ways to write a path: `./a//b` is `a/b`. What leads out is refused later, where it is opened."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def alike(files: Mapping[str, str], paths: Collection[str]) -> dict[str, str]:
    """Of what is known of files by their names those that the paths may mean: a host takes a name that is not there for the
    one that differs from it only in its Unicode form, and knows the file by its own."""
    if all(path.isascii() for path in paths):
        return {path: files[path] for path in paths if path in files}
    wanted = {_composed(path) for path in paths}
    return {name: known for name, known in files.items() if _composed(name) in wanted}


def collide(first: Reach, second: Reach) -> bool:
    """Whether the order of the two matters."""
    if first.alone or second.alone:
        return True
    if not (first.writes or second.writes):
        return False
    return any(_overlap(one, other) for one in first.paths for other in second.paths)


def _overlap(one: str, other: str) -> bool:
    """Whether one is the other, or lies in it. Two spellings that some file systems take for one are one."""
    one, other = (_composed(path).casefold() for path in (one, other))
    return one == other or not one or not other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _composed(path: str) -> str:
    return path if path.isascii() else unicodedata.normalize("NFC", path)
