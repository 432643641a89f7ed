"""Reads unified diffs, plain or git's: `--- a/x`, `+++ b/x`, `@@ -1,2 +3,4 @@`.

Invariant: wrong line counts in a hunk's head are forgiven (models miscount), but not a last hunk that is shorter than
its head says (it may be cut off), nor a line behind a hunk that cannot be understood: nothing is left out silently.
"""

import re
from collections.abc import Sequence

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches.files import FilePatch, Hunk, HunkLines

_GIT = "diff --git "
_HEAD = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(r"(?:new|deleted) (?:file )?mode (\d{6})")
_BINARY = re.compile(r"GIT binary patch|Binary files .* differ")
# What may stand behind a hunk: git's lines about the next file, other programs' rulers, the end of a fence.
_BETWEEN = re.compile(
    r"\s*$|index |old mode |new mode |new file |deleted file |similarity |dissimilarity |rename |Index: |=+\s*$"
    r"|diff |Only in |```|~~~|EOF|PATCH"
)
_SIGNATURE = "--"
_NOTHING = "/dev/null"
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_QUOTED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)


class _File:
    """What is known of one file while its part of the diff is read."""

    def __init__(self) -> None:
        self.old: str | None = None
        self.new: str | None = None
        self.renamed_from: str | None = None
        self.renamed_to: str | None = None
        self.git_names = ""
        self.added = self.deleted = False
        self.executable: bool | None = None
        self.hunks: list[Hunk] = []

    def awaits(self, header: Sequence[str]) -> bool:
        """Whether git's own lines were read, and this pair of `---` and `+++` belongs to them."""
        names = {line[4:].split("\t", 1)[0].strip() for line in header} - {_NOTHING}
        return self.old is None and all(name in self.git_names for name in names)

    def patch(self) -> FilePatch:
        old, new = self._names()
        if self.deleted or new is None:
            if old is None:
                raise PatchUnreadable(
                    f"the patch deletes {str(new)[:80]!r}, and says that there is no such file"
                )
            return FilePatch(kind="delete", path=old, hunks=tuple(self.hunks))
        if self.added or old is None:
            return FilePatch(kind="add", path=new, hunks=tuple(self.hunks), executable=self.executable)
        move = new if new != old else None
        return FilePatch(
            kind="update", path=old, move=move, hunks=tuple(self.hunks), executable=self.executable
        )

    def _names(self) -> tuple[str | None, str | None]:
        if self.renamed_from is not None and self.renamed_to is not None:
            return self.renamed_from, self.renamed_to
        if self.old is not None and self.new is not None:
            return _stripped(self.old, self.new)
        # Without hunks git names the file only in its first line: twice the same name, behind a/ and b/.
        half = (len(self.git_names) - 1) // 2
        first, second = unquoted(self.git_names[:half]), unquoted(self.git_names[half + 1 :])
        if not first[2:] or (first[:2], second) != ("a/", f"b/{first[2:]}"):
            raise PatchUnreadable(f"'{_GIT}{self.git_names[:120]}' does not say which file it means")
        return first[2:], second[2:]


def parse(lines: Sequence[str]) -> list[FilePatch]:
    """The files of the diff; what stands before a file is not looked at."""
    found: list[FilePatch] = []
    current: _File | None = None
    at = 0
    while at < len(lines):
        line = lines[at]
        # Git's own lines come before the names; a second pair of names is another file.
        begins = line.startswith(_GIT) or (
            _is_header(lines, at) and not (current is not None and current.awaits(lines[at : at + 2]))
        )
        if begins:
            found += [current.patch()] if current is not None else []
            current = _File()
        if current is None:
            at += 1
        elif _is_header(lines, at):
            current.old, current.new = _name(line[4:]), _name(lines[at + 1][4:])
            at += 2
        elif head := _HEAD.match(line):
            hunk, at = _hunk(lines, at, head)
            current.hunks += [hunk] if hunk is not None else []
        elif line.startswith("@@"):
            raise PatchUnreadable(
                f"line {at + 1} of the patch, {line[:80]!r}: a hunk of a unified diff begins with '@@ -LINE,COUNT "
                "+LINE,COUNT @@'; without numbers use '*** Begin Patch' … '*** End Patch'"
            )
        elif line.rstrip() == _SIGNATURE:
            # A mail ends here; another one may follow.
            found, current, at = [*found, current.patch()], None, at + 1
        else:
            if current.hunks and not _BETWEEN.match(line):
                raise PatchUnreadable(
                    f"line {at + 1} of the patch, {line[:80]!r}, belongs to no hunk; each line of one begins with a "
                    "blank, '-' or '+'"
                )
            _take_git_line(current, line)
            at += 1
    return [*found, current.patch()] if current is not None else found


def _is_header(lines: Sequence[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _take_git_line(file: _File, line: str) -> None:
    if line.startswith(_GIT):
        file.git_names = line.removeprefix(_GIT).rstrip("\r")
    elif line.startswith("rename from "):
        file.renamed_from = unquoted(line.removeprefix("rename from ").rstrip("\r"))
    elif line.startswith("rename to "):
        file.renamed_to = unquoted(line.removeprefix("rename to ").rstrip("\r"))
    elif mode := _MODE.match(line):
        if mode[1] not in ("100644", "100755", "100664"):
            raise PatchUnreadable(f"mode {mode[1]} is not a regular file; patches change regular files only")
        file.executable = mode[1] == "100755"
        file.added = file.added or line.startswith("new file")
        file.deleted = file.deleted or line.startswith("deleted file")
    elif _BINARY.match(line):
        raise PatchUnreadable("the patch changes a binary file, which a text cannot describe")
    elif line.startswith("copy "):
        raise PatchUnreadable("the patch copies a file; add the copy with its content instead")


def _hunk(lines: Sequence[str], at: int, head: re.Match[str]) -> tuple[Hunk | None, int]:
    """The hunk that begins at its head, and the line behind it."""
    old_wanted, new_wanted = int(head[2] or 1), int(head[4] or 1)
    collected = HunkLines()
    first, at = at, at + 1
    while at < len(lines) and not _ends_here(lines, at, collected, old_wanted, new_wanted):
        if not collected.take(lines[at]):
            break
        at += 1
    short = collected.old_count < old_wanted or collected.new_count < new_wanted
    if short and not any(line.strip() for line in lines[at:]):
        raise PatchUnreadable(
            f"the hunk at line {first + 1} of the patch is shorter than its head says, and the last one: "
            "it may be cut off; send it whole"
        )
    return collected.hunk(old_start=int(head[1]), old_lines=old_wanted), at


def _ends_here(lines: Sequence[str], at: int, taken: HunkLines, old_wanted: int, new_wanted: int) -> bool:
    """Whether the next thing begins at this line. `--- x` may also be a line `-- x` that is gone: the counts decide."""
    if lines[at].startswith(("@@", _GIT)):
        return True
    old_left, new_left = old_wanted - taken.old_count, new_wanted - taken.new_count
    if lines[at].rstrip() == _SIGNATURE and old_left <= 0 and new_left <= 0:
        return True
    if not _is_header(lines, at):
        return False
    behind = lines[at + 2] if at + 2 < len(lines) else ""
    return not (old_left > 0 and new_left > 0) or (_HEAD.match(behind) is not None and old_left > 1)


def _name(text: str) -> str:
    """The file of a `---` or `+++` line, without the time that some programs write behind a tab."""
    name = unquoted(text.rstrip("\r").split("\t", 1)[0].strip())
    if not name:
        raise PatchUnreadable("a '---' or '+++' line names no file")
    return name


def _stripped(old: str, new: str) -> tuple[str | None, str | None]:
    """Both names without git's `a/` and `b/`, which stand on both or on neither."""
    marked = (old == _NOTHING or old.startswith("a/")) and (new == _NOTHING or new.startswith("b/"))
    if old == new == _NOTHING:
        raise PatchUnreadable("a file of the patch is /dev/null on both sides")
    names = [
        None if name == _NOTHING else name[2:] if marked else name.removeprefix("./") for name in (old, new)
    ]
    return names[0], names[1]


def unquoted(name: str) -> str:
    r"""A name as git quotes it (`"caf\303\251"`), or as it stands."""
    if len(name) < 2 or not (name.startswith('"') and name.endswith('"')):
        return name
    raw = _QUOTED.sub(_unescaped, name[1:-1].encode("utf-8", "surrogateescape"))
    return raw.decode("utf-8", "surrogateescape")


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _ESCAPES.get(code, code)
