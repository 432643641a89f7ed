"""`read_file`: lines of a text file, with their numbers and always the total.

Invariant: memory is bounded whatever the file is (a gigabyte, one endless line), and the answer says what was left
out: further lines, the rest of a long line, bytes that are not UTF-8.
"""

import asyncio
import hashlib
import os
from typing import NamedTuple

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.redaction import AROUND_BYTES, Redaction
from services.toolhost.errors import BeyondEnd, BinaryFile, FileTooLarge, InvalidArguments
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.encodings import UTF_16_MARKS, Utf8, as_utf8
from services.toolhost.tools.lines import BOM
from services.toolhost.tools.names import shown
from services.toolhost.undo import FILE_BYTES_MAX

_LINES_DEFAULT = 2_000
_LINE_BYTES_MAX = 8_000
_LINE_CHARS_MAX = 2_000
# A line's number, the tab behind it and the end of the line.
_NUMBER_CHARS = 8
_BLOCK_BYTES = 1 << 20
_SNIFF_BYTES = 8_192
# Counting and digesting take about a second a gigabyte; above this the file is data, not text.
_FILE_BYTES_MAX = 4 << 30
_MAGIC = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"\x7fELF")

SPEC = ToolSpec(
    name="read_file",
    description=(
        "Reads a text file of the workspace. Each line comes as its number, a tab and the text; the first line of the "
        f"answer states the total number of lines. Gives at most {_LINES_DEFAULT} lines unless max_lines says "
        "otherwise; continue with offset."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File relative to the workspace."},
            "offset": {
                "type": "integer",
                "minimum": 1,
                "description": "First line to read, counted from 1. Default 1.",
            },
            "max_lines": {"type": "integer", "minimum": 1, "description": f"Default {_LINES_DEFAULT}."},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
    timeout_s=60.0,
)


class ReadFileArguments(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    offset: int | None = None
    max_lines: int | None = None


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, ReadFileArguments)
    offset, max_lines = wanted.offset or 1, wanted.max_lines or _LINES_DEFAULT
    if offset < 1 or max_lines < 1:
        raise InvalidArguments("offset and max_lines count from 1")
    path = await asyncio.to_thread(context.guard.spelled, wanted.path)
    return await asyncio.to_thread(_read, context, path, offset, max_lines)


def _read(context: ToolContext, path: str, offset: int, max_lines: int) -> Outcome:
    fd = context.guard.open_read(path)
    with os.fdopen(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        if size > _FILE_BYTES_MAX:
            raise FileTooLarge(f"{path!r} has {size} bytes; search_text finds lines in files up to 32 MiB")
        scan = _Scan(offset, max_lines, context.output_chars_max)
        block = file.read(_BLOCK_BYTES)
        if block.startswith(UTF_16_MARKS) and size <= FILE_BYTES_MAX:
            block += file.read(FILE_BYTES_MAX)
            scan.take_whole(block, as_utf8(block))
        if not scan.encoding and (kind := _binary_kind(block[:_SNIFF_BYTES])):
            raise BinaryFile(f"{path!r} is not text ({kind}, {size} bytes) and is not shown")
        while block and not scan.encoding:
            scan.take(block)
            block = file.read(_BLOCK_BYTES)
        scan.finish()
    if offset > max(1, scan.total_lines):
        raise BeyondEnd(f"{path!r} has {scan.total_lines} lines; offset {offset} is beyond the end")
    lines = scan.shown(context.redaction)
    last = offset + len(lines) - 1
    metadata: dict[str, object] = {
        "path": path,
        "sha256": scan.digest.hexdigest(),
        "size_bytes": scan.size,
        "total_lines": scan.total_lines,
        "first_line": offset if lines else 0,
        "last_line": last if lines else 0,
    }
    if not scan.total_lines:
        return Outcome(ok=True, output=f"{shown(path)}: empty, 0 lines", metadata=metadata)
    head = f"{shown(path)}: lines {offset}-{last} of {scan.total_lines}{scan.notes()}"
    more = scan.total_lines - last
    rest = [f"… {more} more lines; continue with offset={last + 1}"] if more else []
    return Outcome(ok=True, output="\n".join([head, *lines, *rest]), metadata=metadata)


def _binary_kind(head: bytes) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text"
    if head.startswith(_MAGIC):
        return "PDF" if head.startswith(b"%PDF-") else "binary"
    return "binary" if b"\0" in head else ""


class _Line(NamedTuple):
    """`text` is all of the line that is known; `size` is how many bytes it has."""

    number: int
    text: str
    size: int

    @property
    def is_cut(self) -> bool:
        return len(self.text) > _LINE_CHARS_MAX or self.size > _LINE_BYTES_MAX


class _Scan:
    """One pass: digest and line count of everything, text of the wanted lines."""

    def __init__(self, offset: int, max_lines: int, chars_max: int) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.total_lines = 0
        self._lines: list[_Line] = []
        # What stands before the wanted lines, as far as a secret may reach out of it into them.
        self._before = bytearray()
        self._offset = offset
        self._max_lines = max_lines
        self._room = chars_max
        self._full = False
        # The line in the making: its beginning, and how long it is in all.
        self._line = bytearray()
        self._line_bytes = 0
        self.encoding = ""
        self._is_crlf = self._has_bom = self._has_bad_bytes = self._ends_open = False

    def take_whole(self, raw: bytes, text: Utf8) -> None:
        """A file in another encoding, if it is one."""
        if text.said:
            self.take(text.data)
            self.digest, self.size, self.encoding = hashlib.sha256(raw), len(raw), text.said

    def take(self, block: bytes) -> None:
        if not self.size and block.startswith(BOM):
            self._has_bom = True
        self.digest.update(block)
        self.size += len(block)
        ends = block.count(b"\n")
        if self._full or self.total_lines + ends + 1 < self._offset:
            self.total_lines += ends
            if not self._full:
                self._note_before(block)
            self._line_bytes = len(block) - block.rfind(b"\n") - 1 + (0 if ends else self._line_bytes)
            return
        *whole, rest = block.split(b"\n")
        for piece in whole:
            self._extend(piece)
            self._end_line()
        self._extend(rest)

    def finish(self) -> None:
        if self._line_bytes:
            self._ends_open = True
            self._end_line()

    def shown(self, redaction: Redaction) -> list[str]:
        """The wanted lines, without secrets and cut to what can be read."""
        if not self._lines:
            return []
        around = bytes(self._before).decode("utf-8", "replace")
        whole = around + "\n".join(line.text for line in self._lines)
        texts = redaction.part(whole, len(around), len(whole)).split("\n")
        return [
            f"{line.number:6d}\t{_cut(text, line.size) if line.is_cut else text}"
            for line, text in zip(self._lines, texts, strict=True)
        ]

    def notes(self) -> str:
        notes = [
            *([self.encoding] if self.encoding else []),
            *(["CRLF line ends"] if self._is_crlf else []),
            *(["byte order mark"] if self._has_bom else []),
            *(["not all UTF-8: such bytes are shown as �"] if self._has_bad_bytes else []),
            *(["no line end at the end of the file"] if self._ends_open else []),
        ]
        return f" ({'; '.join(notes)})" if notes else ""

    def _extend(self, piece: bytes) -> None:
        self._line_bytes += len(piece)
        self._line += piece[: max(0, _LINE_BYTES_MAX - len(self._line))]

    def _end_line(self) -> None:
        self.total_lines += 1
        if not self._full and self._offset <= self.total_lines < self._offset + self._max_lines:
            self._keep()
        elif self.total_lines < self._offset:
            self._note_before(bytes(self._line) + b"\n")
        else:
            self._full = self._full or self.total_lines >= self._offset + self._max_lines
        self._line.clear()
        self._line_bytes = 0

    def _note_before(self, data: bytes) -> None:
        self._before += data[-AROUND_BYTES:]
        if len(self._before) > 2 * AROUND_BYTES:
            del self._before[:-AROUND_BYTES]

    def _keep(self) -> None:
        raw = bytes(self._line)
        if raw.endswith(b"\r") and self._line_bytes == len(raw):
            self._is_crlf = True
            raw = raw[:-1]
        if self.total_lines == 1:
            raw = raw.removeprefix(BOM)
        text, bad = _decoded(raw, cut=self._line_bytes > _LINE_BYTES_MAX)
        self._has_bad_bytes = self._has_bad_bytes or bad
        line = _Line(self.total_lines, text, self._line_bytes)
        self._room -= len(_cut(text, line.size) if line.is_cut else text) + _NUMBER_CHARS
        # The first wanted line is shown however small the room is, so that reading always gets on.
        if self._room < 0 and self._lines:
            self._full = True
        else:
            self._lines.append(line)


def _cut(text: str, size: int) -> str:
    return f"{text[:_LINE_CHARS_MAX]} … [cut: the line has {size} bytes]"


def _decoded(raw: bytes, *, cut: bool) -> tuple[str, bool]:
    """The text, and whether something in it was not UTF-8; a character split by the cut is dropped."""
    try:
        return raw.decode("utf-8"), False
    except UnicodeDecodeError as error:
        if cut and error.start >= len(raw) - 3:
            return raw[: error.start].decode("utf-8"), False
        return raw.decode("utf-8", "replace"), True
