"""Replacing a piece of text in the bytes of a file. PURE.

Invariant: only the matched bytes change. Line ends follow the place of the edit (an all-CRLF file stays one, and
CR CR LF never appears), a byte order mark stays, bytes that are not UTF-8 stay, and the replacement is literal.

A text is looked for byte for byte, then with the other kind of line ends, then as whole lines like the hunk of a patch
(`CLOSENESSES`): blanks at line ends, then typographic look-alikes. The first of these that finds anything decides; the
last two have to find one place, and lines that the replacement repeats keep the file's own bytes.
"""

import difflib
import re

import msgspec

from libs.contracts.patches.files import Hunk, Line, Sign
from services.toolhost.errors import (
    EditAmbiguous,
    EditEmpty,
    EditIdentical,
    EditNoMatch,
    PatchAmbiguous,
    PatchNoMatch,
)
from services.toolhost.tools.encodings import encoded
from services.toolhost.tools.lines import BARE_LF, BOM, closest
from services.toolhost.tools.patching import Patched, patched

# More finds than these are not an edit but a transformation, and a list of them would fill the memory.
_FINDS_MAX = 100_000
_LINES_NAMED_MAX = 10
# Pairs of lines that are compared to keep those that a replacement repeats: a second of work at worst.
_COMPARED_MAX = 4_000_000
_LINE_END = re.compile(rb"\r?\n")


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes after the edit, the lines (1-based) at which the replaced pieces began, and what was overlooked."""

    after: bytes
    lines: list[int]
    overlooked: list[str] = []


def edit(data: bytes, old: str, new: str, *, replace_all: bool = False) -> Edit:
    """`data` with `old` replaced by `new`. Raises one of the `Edit…` failures and then nothing has changed."""
    if not old:
        raise EditEmpty(
            "old_str is empty; to make a file use write_file, to insert text repeat the lines around it"
        )
    if old == new:
        raise EditIdentical("old_str and new_str are the same; nothing would change")
    bom = BOM if data.startswith(BOM) else b""
    body = data[len(bom) :]
    if bom and old.startswith("\ufeff"):
        old, new = old[1:], new.removeprefix("\ufeff")
    wanted, replacement = encoded(old, "old_str"), encoded(new, "new_str")
    spans, exact = _finds(body, wanted)
    if not spans:
        found = _as_lines(body, old, new)
        return Edit(after=bom + found.after, lines=found.lines, overlooked=found.overlooked)
    lines = [body.count(b"\n", 0, start) + 1 for start, _ in spans[: _LINES_NAMED_MAX + 1]]
    if len(spans) > 1 and not replace_all:
        named = ", ".join(map(str, lines[:_LINES_NAMED_MAX])) + (
            ", …" if len(lines) > _LINES_NAMED_MAX else ""
        )
        raise EditAmbiguous(
            f"old_str was found {len(spans)} times (lines {named}); add lines around the one you mean, or set replace_all"
        )
    if len(spans) >= _FINDS_MAX:
        raise EditAmbiguous(f"old_str was found more than {_FINDS_MAX} times; give a longer one")
    after, count = _replaced(body, spans, replacement, exact=exact)
    if after == body:
        raise EditIdentical(
            "old_str and new_str differ only in line ends, which follow the file; nothing would change"
        )
    return Edit(after=bom + after, lines=[body.count(b"\n", 0, start) + 1 for start, _ in spans[:count]])


def _finds(body: bytes, wanted: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Where the piece stands, overlaps included, and whether byte for byte; else with the other kind of line ends."""
    spans: list[tuple[int, int]] = []
    at = body.find(wanted)
    while at >= 0 and len(spans) < _FINDS_MAX:
        # A leading LF that is half of a CRLF stands for the whole line end.
        half = wanted.startswith(b"\n") and at > 0 and body[at - 1] == ord("\r")
        spans.append((at - half, at + len(wanted)))
        at = body.find(wanted, at + 1)
    parts = _LINE_END.split(wanted)
    if spans or len(parts) == 1:
        return spans, True
    pattern = re.compile(rb"\r?\n".join(map(re.escape, parts)))
    found = pattern.search(body)
    while found and len(spans) < _FINDS_MAX:
        spans.append(found.span())
        found = pattern.search(body, found.start() + 1)
    # `\r?` lets the same place be found with and without its CR: keep the longer one.
    kept = [span for index, span in enumerate(spans) if index == 0 or span[1] != spans[index - 1][1]]
    return kept, False


def _as_lines(body: bytes, old: str, new: str) -> Patched:
    """The edit as a hunk of whole lines, which overlooks what a hunk may."""
    was, is_now = (text.removesuffix("\n").split("\n") if text else [] for text in (old, new))
    try:
        found = patched(body, [Hunk(lines=tuple(_difference(was, is_now)))])
    except PatchNoMatch:
        raise EditNoMatch(f"old_str was not found{closest(body, old)}") from None
    except PatchAmbiguous:
        raise EditAmbiguous(
            "old_str was not found as it stands, and in several places but for blanks at line ends or look-alike "
            "characters; copy it exactly"
        ) from None
    if found.after == body:
        raise EditIdentical("old_str and new_str differ only in what the file has not; nothing would change")
    return found


def _difference(was: list[str], is_now: list[str]) -> list[Line]:
    """The lines of a hunk that makes one of the other. Lines in both stay context, unless there are so many that finding
    them would take long."""
    if len(was) * len(is_now) > _COMPARED_MAX:
        return [Line(sign="-", text=text) for text in was] + [Line(sign="+", text=text) for text in is_now]
    lines: list[Line] = []
    matcher = difflib.SequenceMatcher(a=was, b=is_now, autojunk=False)
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        sign: Sign = " " if kind == "equal" else "-"
        lines += [Line(sign=sign, text=text) for text in was[old_from:old_to]]
        if kind != "equal":
            lines += [Line(sign="+", text=text) for text in is_now[new_from:new_to]]
    return lines


def _replaced(
    body: bytes, spans: list[tuple[int, int]], replacement: bytes, *, exact: bool
) -> tuple[bytes, int]:
    file_is_crlf = b"\r\n" in body and not BARE_LF.search(body)
    with_crlf = BARE_LF.sub(b"\r\n", replacement)
    with_lf = replacement if exact else replacement.replace(b"\r\n", b"\n")
    pieces: list[bytes] = []
    end, count = 0, 0
    for start, stop in spans:
        if start < end:
            continue
        matched = body[start:stop]
        crlf = b"\r\n" in matched and not BARE_LF.search(matched) if b"\n" in matched else file_is_crlf
        pieces += [body[end:start], with_crlf if crlf else with_lf]
        end, count = stop, count + 1
    return b"".join([*pieces, body[end:]]), count
