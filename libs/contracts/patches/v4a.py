"""Reads patches between `*** Begin Patch` and `*** End Patch`: sections of files, hunks without line numbers.

Invariant: no end mark, no patch.
"""

import re
from collections.abc import Sequence

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches.files import FilePatch, Hunk, HunkLines, Line

_BEGIN, _END = "*** Begin Patch", "*** End Patch"
_SECTION = re.compile(r"\*\*\* (Add|Update|Delete) File: *(.*)")
_MOVE = "*** Move to:"
_END_OF_FILE = "*** End of File"
# What is left around a patch: the end of a fence or of a shell's here-document.
_WRAPPING = re.compile(r"```|~~~|EOF|PATCH")


def is_mark(line: str) -> bool:
    """Whether the line can only be of this form."""
    return line.rstrip() == _BEGIN or _SECTION.match(line) is not None


def parse(lines: Sequence[str]) -> list[FilePatch]:
    """The files of the patch; what stands before the first mark is not looked at."""
    found: list[FilePatch] = []
    at = next(index for index, line in enumerate(lines) if is_mark(line))
    while at < len(lines):
        line = lines[at]
        if line.rstrip() == _END:
            _nothing_behind(lines, at + 1)
            return found
        if section := _SECTION.match(line):
            end = _end_of_section(lines, at + 1)
            found.append(_section(lines, at, end, section[1], _path(section[2], at)))
            at = end
        elif line.strip() in ("", _BEGIN):
            at += 1
        else:
            raise PatchUnreadable(
                f"line {at + 1} of the patch, {line[:80]!r}, belongs to no file; a file begins with "
                "'*** Update File: PATH', '*** Add File: PATH' or '*** Delete File: PATH'"
            )
    raise PatchUnreadable(f"the patch has no '{_END}' and may be cut off; send it whole")


def _end_of_section(lines: Sequence[str], at: int) -> int:
    while at < len(lines) and not is_mark(lines[at]) and lines[at].rstrip() != _END:
        at += 1
    return at


def _section(lines: Sequence[str], at: int, end: int, kind: str, path: str) -> FilePatch:
    body = at + 1
    match kind:
        case "Add":
            return FilePatch(kind="add", path=path, hunks=_added(lines, body, end, path))
        case "Delete":
            if stray := next((line for line in lines[body:end] if line.strip()), None):
                raise PatchUnreadable(f"'*** Delete File: {path}' is followed by {stray[:80]!r}")
            return FilePatch(kind="delete", path=path)
        case _:
            move = None
            if body < end and lines[body].startswith(_MOVE):
                move, body = _path(lines[body].removeprefix(_MOVE), body), body + 1
            return FilePatch(kind="update", path=path, move=move, hunks=tuple(_hunks(lines, body, end)))


def _added(lines: Sequence[str], body: int, end: int, path: str) -> tuple[Hunk, ...]:
    content: list[Line] = []
    for number, line in enumerate(lines[body:end], body + 1):
        if line.startswith("+"):
            content.append(Line(sign="+", text=line[1:]))
        elif line.strip() and line.strip() != _END_OF_FILE:
            raise PatchUnreadable(
                f"line {number} of the patch: every line of '*** Add File: {path}' begins with '+'"
            )
    return (Hunk(lines=tuple(content)),) if content else ()


def _hunks(lines: Sequence[str], body: int, end: int) -> list[Hunk]:
    found: list[Hunk] = []
    anchors: list[str] = []
    current = HunkLines()

    def close(*, at_end: bool) -> None:
        nonlocal current
        if (hunk := current.hunk(anchors=tuple(anchors), at_end=at_end)) is not None:
            found.append(hunk)
            anchors.clear()
        current = HunkLines()

    for number, line in enumerate(lines[body:end], body + 1):
        if line.startswith("@@"):
            close(at_end=False)
            # `@@ -1,2 +3,4 @@` is a habit from the other form; there are no line numbers in this one.
            anchor = re.sub(r"^-\d+(,\d+)? \+\d+(,\d+)? @@", "", line[2:].strip()).removesuffix("@@").strip()
            anchors.extend([anchor] if anchor else [])
        elif line.rstrip() == _END_OF_FILE:
            close(at_end=True)
        elif not current.take(line):
            raise PatchUnreadable(
                f"line {number} of the patch, {line[:80]!r}: each line of a hunk begins with a blank, '-' or '+'"
            )
    close(at_end=False)
    return found


def _nothing_behind(lines: Sequence[str], at: int) -> None:
    for number, line in enumerate(lines[at:], at + 1):
        if line.strip() and not _WRAPPING.fullmatch(line.strip()):
            raise PatchUnreadable(f"line {number} stands behind '{_END}'; send one patch at a time")


def _path(text: str, at: int) -> str:
    if not (path := text.strip()):
        raise PatchUnreadable(f"line {at + 1} of the patch names no file")
    return path
