"""Replacing a piece of text in the bytes of a file. PURE.

Invariant: only the matched bytes change. Line ends follow the place of the edit (an all-CRLF file stays one, and
CR CR LF never appears), a byte order mark stays, bytes that are not UTF-8 stay, and the replacement is literal.
"""

import difflib
import re

import msgspec

from services.toolhost.errors import EditAmbiguous, EditEmpty, EditIdentical, EditNoMatch, InvalidArguments

BOM = b"\xef\xbb\xbf"
# More finds than these are not an edit but a transformation, and a list of them would fill the memory.
_FINDS_MAX = 100_000
_LINES_NAMED_MAX = 10
# How far the search for a similar line goes when nothing matches: it is a hint, not a diff tool.
_SIMILAR_LINES_MAX = 5_000
_SIMILAR_CHARS_MAX = 300
_BARE_LF = re.compile(rb"(?<!\r)\n")
_LINE_END = re.compile(rb"\r?\n")


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes after the edit, and the lines (1-based) at which the replaced pieces began."""

    after: bytes
    lines: list[int]


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
    wanted, replacement = _encoded(old, "old_str"), _encoded(new, "new_str")
    spans, exact = _finds(body, wanted)
    if not spans:
        raise EditNoMatch(f"old_str was not found{_hint(body, old)}")
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


def _encoded(text: str, name: str) -> bytes:
    try:
        # A surrogate escape stands for one byte that is not UTF-8, as in the names and texts that Python reads.
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArguments(f"{name} contains half a surrogate pair and is not valid text") from None


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


def _replaced(
    body: bytes, spans: list[tuple[int, int]], replacement: bytes, *, exact: bool
) -> tuple[bytes, int]:
    file_is_crlf = b"\r\n" in body and not _BARE_LF.search(body)
    with_crlf = _BARE_LF.sub(b"\r\n", replacement)
    with_lf = replacement if exact else replacement.replace(b"\r\n", b"\n")
    pieces: list[bytes] = []
    end, count = 0, 0
    for start, stop in spans:
        if start < end:
            continue
        matched = body[start:stop]
        crlf = b"\r\n" in matched and not _BARE_LF.search(matched) if b"\n" in matched else file_is_crlf
        pieces += [body[end:start], with_crlf if crlf else with_lf]
        end, count = stop, count + 1
    return b"".join([*pieces, body[end:]]), count


def _hint(body: bytes, old: str) -> str:
    """The nearest thing to what was looked for."""
    lines = body.decode("utf-8", "replace").split("\n", _SIMILAR_LINES_MAX)[:_SIMILAR_LINES_MAX]
    wanted = [line.strip() for line in old.removesuffix("\n").split("\n")]
    stripped = [line.strip() for line in lines]
    for index in range(len(stripped) - len(wanted) + 1):
        if wanted and stripped[index : index + len(wanted)] == wanted:
            return f"; lines {index + 1}-{index + len(wanted)} are the same but for blanks: copy them exactly"
    first = next((line for line in wanted if line), "")[:_SIMILAR_CHARS_MAX]
    candidates = [line for line in stripped if line and len(line) <= _SIMILAR_CHARS_MAX]
    if first and (close := difflib.get_close_matches(first, candidates, n=1, cutoff=0.7)):
        return f"; the closest line is {stripped.index(close[0]) + 1}: {close[0]}"
    return "; read the file and copy the lines exactly"
