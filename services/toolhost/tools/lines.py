"""A text as lines of bytes with their own ends, and how closely a line that somebody wrote has to match one. PURE.

Invariant: what is compared may be tolerant, what is kept is the file's own bytes.
"""

import difflib
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
BARE_LF = re.compile(rb"(?<!\r)\n")


# How far the search for a similar line goes when nothing matches: it is a hint, not a diff tool.
_SIMILAR_LINES_MAX = 5_000
_SIMILAR_CHARS_MAX = 300
_NUMBERED = re.compile(r"\s*\d+\t")


class TextLine(NamedTuple):
    """`end` is LF, CRLF, or nothing for a last line without one."""

    text: bytes
    end: bytes


class Closeness(NamedTuple):
    """One way to compare lines; `said` names what it overlooks."""

    said: str
    key: Callable[[str], str]


# What models and editors write for one another: quotes, dashes, blanks, an ellipsis, characters that are not seen.
_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff"),
        "\u2026": "...",
    }
)


def _as_it_stands(line: str) -> str:
    return line


def _without_blanks_at_its_end(line: str) -> str:
    return line.rstrip()


def _plainly_typed(line: str) -> str:
    return unicodedata.normalize("NFC", line).translate(_LOOK_ALIKES).rstrip()


# In this order, each only where the ones before found nothing. Indentation always counts: a line that was found with
# another one would be replaced by lines with the wrong one.
CLOSENESSES = (
    Closeness("", _as_it_stands),
    Closeness("blanks at line ends", _without_blanks_at_its_end),
    Closeness("typographic look-alikes", _plainly_typed),
)


def lines_of(body: bytes) -> list[TextLine]:
    """The lines of a text without its byte order mark."""
    found: list[TextLine] = []
    for raw in body.split(b"\n"):
        crlf = raw.endswith(b"\r")
        found.append(TextLine(raw[:-1], b"\r\n") if crlf else TextLine(raw, b"\n"))
    # Behind the last LF there is no line; a CR there belongs to the text.
    last = body.rpartition(b"\n")[2]
    found.pop()
    return [*found, TextLine(last, b"")] if last else found


def joined(lines: Sequence[TextLine]) -> bytes:
    return b"".join(part for line in lines for part in line)


def usual_end(lines: Sequence[TextLine]) -> bytes:
    """The end of lines where no neighbour says which: CRLF only in a text that has no other, nothing in one that has
    none."""
    ends = {line.end for line in lines if line.end}
    return b"\n" if b"\n" in ends else b"\r\n" if ends else b""


def shown(text: bytes) -> str:
    """As it is compared: a byte that is not UTF-8 is itself and like nothing else."""
    return text.decode("utf-8", "surrogateescape")


def closest(body: bytes, old: str) -> str:
    """What is nearest to a text that was not found, as the end of a sentence."""
    if all(map(_NUMBERED.match, old.removesuffix("\n").split("\n"))):
        return "; it carries the line numbers that read_file shows: leave them out"
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
