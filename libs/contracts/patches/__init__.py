"""The text of `apply_patch` as data: which files it adds, changes, moves and deletes, and how.

Two forms are read, V4A (`*** Begin Patch`) and unified diffs. The policy, the executor and the host all look at a patch
through this one reader, so that nobody can show them different paths. Invariant: a text that may have been cut off on
its way is refused, never read as a shorter patch.
"""

import functools

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches import unified, v4a
from libs.contracts.patches.files import FilePatch

# A patch is written by a model in one turn; what is larger is generated.
CHARS_MAX = 2 << 20
FILES_MAX = 200


def parse(text: str) -> list[FilePatch]:
    """The files in the order in which they are written. Raises `PatchUnreadable`, which names the line."""
    if len(text) > CHARS_MAX:
        raise PatchUnreadable(f"the patch has more than {CHARS_MAX} characters; split it")
    lines = text.removeprefix("\ufeff").split("\n")
    if len(lines) > 1 and all(line.endswith("\r") for line in lines[:-1]):
        # The text itself came with CRLF ends: they say nothing about the files.
        lines = [line.removesuffix("\r") for line in lines]
    if not lines[-1]:
        lines.pop()  # Behind the last line break there is no line.
    found = v4a.parse(lines) if any(map(v4a.is_mark, lines)) else unified.parse(lines)
    if not found:
        raise PatchUnreadable(
            "the patch changes no file; write '*** Begin Patch', then '*** Update File: PATH' with its hunks, then "
            "'*** End Patch', or a unified diff"
        )
    if len(found) > FILES_MAX:
        raise PatchUnreadable(f"the patch touches more than {FILES_MAX} files; split it")
    return found


@functools.lru_cache(maxsize=64)  # The order of a turn's calls is asked for again and again while they run.
def paths_of(text: str) -> tuple[str, ...]:
    """Every path that the patch reads or writes, sorted. Raises `PatchUnreadable`."""
    return tuple(sorted({path for one in parse(text) for path in one.paths}))
