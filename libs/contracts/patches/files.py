"""What a patch says, whatever form it was written in: files, and the lines that change in them.

Invariant: these are the writer's words only; whether they fit a file is found out where the file is.
"""

from typing import Literal

import msgspec

Sign = Literal[" ", "-", "+"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a hunk, without its end: context, gone, or new."""

    sign: Sign
    text: str


class Hunk(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that stand together. `anchors` are lines to be found before them, in order; `old_start` is where a unified
    diff expects them (1-based); `at_end` says that they are the last of the file. `old_ends` and `new_ends` say, where
    the patch does, whether the last line of the old and of the new file has an end."""

    lines: tuple[Line, ...]
    anchors: tuple[str, ...] = ()
    old_start: int | None = None
    at_end: bool = False
    old_ends: bool = True
    new_ends: bool = True

    @property
    def old(self) -> list[str]:
        return [line.text for line in self.lines if line.sign != "+"]

    @property
    def new(self) -> list[str]:
        return [line.text for line in self.lines if line.sign != "-"]


class FilePatch(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one file. `add` has its content as the `+` lines of at most one hunk; an `update` with a `move`
    writes to another path. `executable` gives or takes the permission."""

    kind: Literal["add", "update", "delete"]
    path: str
    move: str | None = None
    hunks: tuple[Hunk, ...] = ()
    executable: bool | None = None

    @property
    def paths(self) -> list[str]:
        return [self.path] if self.move is None else [self.path, self.move]


class HunkLines:
    """Collects the lines of one hunk as they are read."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        # Behind the last line that was written with its sign.
        self._firm = 0
        self._old_ends = self._new_ends = True

    @property
    def old_count(self) -> int:
        return sum(line.sign != "+" for line in self._lines)

    @property
    def new_count(self) -> int:
        return sum(line.sign != "-" for line in self._lines)

    def take(self, line: str) -> bool:
        """Whether it was a line of a hunk. A blank whose sign was lost on the way is one, too."""
        match line[:1]:
            case "" | "\r":
                self._lines.append(Line(sign=" ", text=line))
                return True
            case " " | "-" | "+" as sign:
                self._lines.append(Line(sign=sign, text=line[1:]))
                self._firm = len(self._lines)
                return True
            case "\\":
                self._note_missing_end()
                return True
            case _:
                return False

    def hunk(
        self,
        *,
        anchors: tuple[str, ...] = (),
        old_start: int | None = None,
        old_lines: int = 0,
        at_end: bool = False,
    ) -> Hunk | None:
        """What was collected. Blank lines without a sign at the end are the writer's, not the file's, unless they are
        needed to come to `old_lines`."""
        end = self._firm
        count = sum(line.sign != "+" for line in self._lines[:end])
        if count < old_lines:
            end = min(len(self._lines), end + old_lines - count)
        if not end:
            return None
        return Hunk(
            lines=tuple(self._lines[:end]),
            anchors=anchors,
            old_start=old_start,
            at_end=at_end,
            old_ends=self._old_ends,
            new_ends=self._new_ends,
        )

    def _note_missing_end(self) -> None:
        sign = self._lines[-1].sign if self._lines else " "
        if sign != "+":
            self._old_ends = False
        if sign != "-":
            self._new_ends = False
