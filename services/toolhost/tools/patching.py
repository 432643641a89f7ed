"""Puts the hunks of a patch into the bytes of one file. PURE.

Invariant: all hunks fit or nothing comes back. A hunk fits only where all of its context is (see `CLOSENESSES` for what
is overlooked), behind the hunks before it; where it would fit several places and says nothing to choose by, it fits
nowhere. Context keeps the file's own bytes, a new line gets the end of the line that it replaces or follows.
"""

from collections.abc import Sequence

import msgspec

from libs.contracts.patches.files import Hunk
from services.toolhost.errors import PatchAmbiguous, PatchNoMatch
from services.toolhost.tools.encodings import encoded
from services.toolhost.tools.lines import (
    BOM,
    CLOSENESSES,
    Closeness,
    TextLine,
    closest,
    joined,
    lines_of,
    shown,
    usual_end,
)

_LINES_NAMED_MAX = 10


class Patched(msgspec.Struct, frozen=True, kw_only=True):
    """The new bytes, the lines (1-based, of the old text) at which hunks were put in, and what had to be overlooked."""

    after: bytes
    lines: list[int]
    overlooked: list[str]


def content_of(hunks: Sequence[Hunk]) -> bytes:
    """The content of a file that a patch adds."""
    lines = [encoded(text, "the patch") for hunk in hunks for text in hunk.new]
    open_end = bool(hunks) and not hunks[-1].new_ends
    return b"\n".join(lines) + (b"" if open_end or not lines else b"\n")


def patched(data: bytes, hunks: Sequence[Hunk]) -> Patched:
    """`data` with the hunks put in. Raises `PatchNoMatch` or `PatchAmbiguous`, which name the hunk."""
    bom = BOM if data.startswith(BOM) else b""
    text = _Text(data[len(bom) :])
    for number, hunk in enumerate(hunks, 1):
        text.put(hunk, number)
    return Patched(after=bom + text.finished(), lines=text.places, overlooked=sorted(text.overlooked))


def _own_end(text: str) -> bytes:
    """Where the file has no line that ends, the patch's own line says how."""
    return b"\r\n" if text.endswith("\r") else b"\n"


class _Text:
    """One text while hunks are put into it, from its beginning to its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._old = lines_of(body)
        self._usual_end = usual_end(self._old)
        self._new: list[TextLine] = []
        # What of the old text has been taken over; how far behind its number the last hunk was found.
        self._at = self._drift = 0
        self._open_end = bool(self._old) and not self._old[-1].end
        self._keys: dict[Closeness, list[str]] = {}
        self.places: list[int] = []
        self.overlooked: set[str] = set()

    def put(self, hunk: Hunk, number: int) -> None:
        start = self._place(hunk, number)
        self._new += self._old[self._at : start]
        self.places.append(start + 1)
        self._at = start
        literal = self._is_literal(hunk, start)
        gone: list[bytes] = []
        end = self._new[-1].end if self._new else b""
        for number_in_hunk, line in enumerate(hunk.lines, 1):
            if literal and line.sign == "+" and not hunk.new_ends and number_in_hunk == len(hunk.lines):
                # A last line without an end: a CR there belongs to the text.
                self._new.append(TextLine(encoded(line.text, "the patch"), b""))
                continue
            if line.sign == "+":
                # A new line takes the end of the one that it stands for, else of the one above it.
                own = b"" if literal else gone.pop(0) if gone else end or self._next_end()
                own = own or _own_end(line.text)
                text = encoded(line.text.removesuffix("\r"), "the patch")
                self._new.append(TextLine(text.removeprefix(BOM) if not self._new else text, own))
                continue
            kept = self._old[self._at]
            self._at += 1
            end = kept.end
            if line.sign == "-":
                gone.append(kept.end)
            else:
                gone.clear()
                self._new.append(kept)
        if self._at == len(self._old) and not (hunk.old_ends and hunk.new_ends):
            self._open_end = not hunk.new_ends

    def _is_literal(self, hunk: Hunk, start: int) -> bool:
        """Whether the hunk says CR where the file has it, as a program would: then it says how new lines end, too."""
        at = range(start, start + len(hunk.old))
        if not at:
            return any(text.endswith("\r") for text in hunk.new)
        return all(
            text.endswith("\r") == (self._old[index].end == b"\r\n")
            for index, text in zip(at, hunk.old, strict=True)
            if self._old[index].end
        )

    def finished(self) -> bytes:
        lines = [*self._new, *self._old[self._at :]]
        closed = [line if line.end else TextLine(line.text, self._usual_end or b"\n") for line in lines]
        if closed and self._open_end:
            closed[-1] = TextLine(closed[-1].text, b"")
        return joined(closed)

    def _next_end(self) -> bytes:
        following = self._old[self._at].end if self._at < len(self._old) else b""
        return following or self._usual_end

    def _place(self, hunk: Hunk, number: int) -> int:
        """The index of the line at which the hunk begins."""
        begin = self._behind_anchors(hunk, number)
        if not hunk.old:
            return self._insertion(hunk, begin)
        for closeness in CLOSENESSES:
            starts = self._starts(hunk, closeness, begin)
            if starts:
                if closeness.said:
                    self.overlooked.add(closeness.said)
                return self._chosen(hunk, starts, number)
        raise PatchNoMatch(f"hunk {number} was not found{self._why(hunk)}")

    def _behind_anchors(self, hunk: Hunk, number: int) -> int:
        """Where to look from. The anchor's own line may be part of the hunk."""
        begin = self._at
        for index, anchor in enumerate(hunk.anchors):
            wanted = CLOSENESSES[-1].key(anchor).strip()
            lines = [key.strip() for key in self._keyed(CLOSENESSES[-1])[begin:]]
            found = next((at for at, line in enumerate(lines) if line == wanted), None)
            if found is None:
                found = next((at for at, line in enumerate(lines) if line.startswith(wanted)), None)
            if found is None:
                raise PatchNoMatch(
                    f"hunk {number}: there is no line {anchor!r} (from '@@') behind line {begin}"
                    f"{closest(self._body, anchor)}"
                )
            last = index == len(hunk.anchors) - 1
            begin += found + (0 if last and hunk.old else 1)
        return begin

    def _insertion(self, hunk: Hunk, begin: int) -> int:
        """Nothing but new lines: behind the anchor, behind the line that a unified diff names, or at the end."""
        if hunk.old_start is not None:
            return max(begin, min(hunk.old_start + self._drift, len(self._old)))
        return begin if hunk.anchors and not hunk.at_end else len(self._old)

    def _starts(self, hunk: Hunk, closeness: Closeness, begin: int) -> list[int]:
        have = self._keyed(closeness)
        wanted = [closeness.key(text.removesuffix("\r")) for text in hunk.old]
        if begin == 0:
            wanted[0] = wanted[0].removeprefix("\ufeff")
        last = len(have) - len(wanted)
        return [
            start
            for start in range(last if hunk.at_end else begin, last + 1)
            if start >= begin and have[start] == wanted[0] and have[start : start + len(wanted)] == wanted
        ]

    def _chosen(self, hunk: Hunk, starts: list[int], number: int) -> int:
        if hunk.old_start is not None:
            expected = hunk.old_start - 1 + self._drift
            nearest = min(abs(start - expected) for start in starts)
            starts = [start for start in starts if abs(start - expected) == nearest]
            self._drift += starts[0] - expected
        if len(starts) == 1 or hunk.anchors:
            return starts[0]
        named = ", ".join(str(start + 1) for start in starts[:_LINES_NAMED_MAX])
        more = ", …" if len(starts) > _LINES_NAMED_MAX else ""
        raise PatchAmbiguous(
            f"hunk {number} fits {len(starts)} places (lines {named}{more}); add lines around it, or name the function "
            "before it with '@@ def name'"
        )

    def _keyed(self, closeness: Closeness) -> list[str]:
        if closeness not in self._keys:
            self._keys[closeness] = [closeness.key(shown(line.text)) for line in self._old]
        return self._keys[closeness]

    def _why(self, hunk: Hunk) -> str:
        if hunk.new and self._has_new(hunk):
            return "; what it would write is there: it seems to be applied already"
        return closest(self._body, "\n".join(hunk.old))

    def _has_new(self, hunk: Hunk) -> bool:
        have, wanted = self._keyed(CLOSENESSES[1]), [CLOSENESSES[1].key(text) for text in hunk.new]
        return any(
            have[start : start + len(wanted)] == wanted for start in range(len(have) - len(wanted) + 1)
        )
