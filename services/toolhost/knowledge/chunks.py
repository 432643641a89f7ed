"""Cuts a document into the pieces that are found: markdown by its headings, everything else by lines. PURE.

Invariant: a chunk is a run of whole lines (but for a line that is too long for one) of at most `CHUNK_CHARS_MAX`
characters; every line that is not blank is in at least one; a piece of text that stays has the same id, wherever in its
document it moves.
"""

import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

# One thought of a document, and what small embedding models can take in (some 400 tokens of English).
CHUNK_CHARS_MAX = 1_500
# What a chunk repeats of the one before it, so that no sentence is lost in the cut.
OVERLAP_CHARS = 200
_TITLE_CHARS_MAX = 200
_MARKDOWN = (".md", ".markdown", ".mdx")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a document. `path` is `<name>/<path below its root>`, `title` the headings above it; lines count from 1,
    the last one included."""

    id: str
    tenant: str
    path: str
    title: str
    first_line: int
    last_line: int
    text: str

    @property
    def meaning(self) -> str:
        """What is embedded: a paragraph without its place can be about anything."""
        return "\n".join(filter(None, (self.path, self.title, self.text)))


class _Line(NamedTuple):
    number: int
    text: str


class _Section(NamedTuple):
    title: str
    lines: list[_Line]


def chunks_of(tenant: str, path: str, text: str) -> Iterator[Chunk]:
    """The chunks of a document in their order."""
    lines = [_Line(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    markdown = path.lower().endswith(_MARKDOWN)
    seen: Counter[str] = Counter()
    for section in _sections(lines) if markdown else [_Section("", lines)]:
        for piece in _pieces(section.lines):
            body = "\n".join(line.text for line in piece)
            digest = hashlib.sha256(f"{section.title}\0{body}".encode()).hexdigest()
            seen[digest] += 1
            yield Chunk(
                id=_id(tenant, path, f"{digest}{seen[digest]}"),
                tenant=tenant,
                path=path,
                title=section.title,
                first_line=piece[0].number,
                last_line=piece[-1].number,
                text=body,
            )


def _id(tenant: str, path: str, digest: str) -> str:
    """In the form that all backends take."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"{tenant}\0{path}\0{digest}".encode()).digest()[:16]))


def _sections(lines: Sequence[_Line]) -> Iterator[_Section]:
    """The parts under one heading each, which is their first line; a heading that only has others below it is in their
    titles and not a part by itself."""
    trail: list[tuple[int, str]] = []
    section = _Section("", [])
    fence = ""
    for line in lines:
        fence = _fence(fence, line.text)
        heading = None if fence else _HEADING.match(line.text)
        if heading is None:
            section.lines.append(line)
            continue
        level = len(heading[1])
        if not (trail and trail[-1][0] < level and _is_bare(section)):
            yield section
        trail = [one for one in trail if one[0] < level] + [(level, (heading[2] or "").strip())]
        section = _Section(_title(trail), [line])
    yield section


def _fence(open_fence: str, text: str) -> str:
    """The fence that the next line stands in: a fence ends with one of its kind that is at least as long and bare."""
    match = _FENCE.match(text)
    if match is None:
        return open_fence
    if not open_fence:
        return match[1]
    closes = match[1].startswith(open_fence) and not text[match.end() :].strip()
    return "" if closes else open_fence


def _is_bare(section: _Section) -> bool:
    return bool(section.title) and not any(line.text.strip() for line in section.lines[1:])


def _title(trail: Sequence[tuple[int, str]]) -> str:
    title = " > ".join(text for _, text in trail if text)
    return title if len(title) <= _TITLE_CHARS_MAX else "…" + title[1 - _TITLE_CHARS_MAX :]


def _pieces(section: Sequence[_Line]) -> Iterator[list[_Line]]:
    """Runs of lines that fit, without blank lines at their ends, each overlapping the one before."""
    lines = list(_fitting(section))
    start = end = 0
    while end < len(lines):
        end = _end(lines, start, end)
        piece = _stripped(lines[start:end])
        if piece:
            yield piece
        start = end - _overlap(lines, start, end)


def _fitting(lines: Sequence[_Line]) -> Iterator[_Line]:
    """The lines; one that is too long for a chunk in parts."""
    for line in lines:
        for at in range(0, max(1, len(line.text)), CHUNK_CHARS_MAX):
            yield _Line(line.number, line.text[at : at + CHUNK_CHARS_MAX])


def _end(lines: Sequence[_Line], start: int, former: int) -> int:
    """Behind the last line of the piece that begins at `start`: as many as fit, but rather up to a blank line if there is
    one in the second half. `former` is where the piece before it ended: it goes beyond that."""
    end, chars = start, -1
    while end < len(lines) and chars + 1 + len(lines[end].text) <= CHUNK_CHARS_MAX:
        chars += 1 + len(lines[end].text)
        end += 1
    if end == len(lines):
        return end
    least = max(start + (end - start) // 2, former)
    return next((at for at in range(end - 1, least, -1) if not lines[at].text.strip()), end)


def _overlap(lines: Sequence[_Line], start: int, end: int) -> int:
    """How many lines before `end` are short enough together to be repeated before the line that follows them."""
    if end == len(lines):
        return 0
    room = min(OVERLAP_CHARS, CHUNK_CHARS_MAX - len(lines[end].text))
    count, chars = 0, 0
    while end - count - 1 > start and (chars := chars + len(lines[end - count - 1].text) + 1) <= room:
        count += 1
    return count


def _stripped(piece: Sequence[_Line]) -> list[_Line]:
    kept = [at for at, line in enumerate(piece) if line.text.strip()]
    return list(piece[kept[0] : kept[-1] + 1]) if kept else []
