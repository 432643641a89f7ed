"""Bounds what tools say, and takes secrets out of it: streams while they run, texts when they are done.

Invariant: what is left out is counted and marked, never silently missing; a cut never splits a character, and never shows
a part of a secret whose rest is cut off.
"""

import re
from collections import deque
from typing import NamedTuple

from libs.policy.redaction import AROUND_BYTES, Redaction

# What terminals take for orders and questions (ECMA-48): strings with their end, sequences with parameters, short ones;
# and the controls that are no text, of which tab, new line and carriage return are left. Of a string without an end, which
# is rather a few bytes of something else, only the beginning goes: what stands behind it may be all that there is to read.
_CONTROLS = re.compile(
    r"\x1b[\]PX^_][^\x07\x1b\r\n]{0,4096}(?:\x07|\x1b\\)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


class Kept(NamedTuple):
    """What was kept of a stream: its beginning and its end, of which `head_bytes` and `tail_bytes` are for showing. The
    rest stands around the gap, so that a secret is seen that reaches into it. Where no gap is, both are the whole."""

    head: bytes
    head_bytes: int
    tail: bytes
    tail_bytes: int
    dropped: int

    def text(self) -> str:
        """What is for showing, as it came, with a marker where bytes are missing. Bytes that are not UTF-8 become U+FFFD."""
        if not self.dropped:
            return self.head.decode("utf-8", "replace")
        head = self.head[: self.head_bytes].decode("utf-8", "replace")
        tail = self.tail[len(self.tail) - self.tail_bytes :].decode("utf-8", "replace")
        return f"{head}{_gap(self.dropped)}{tail}"

    def told(self, redaction: Redaction) -> str:
        """The same as a model reads it: plain, and without secrets."""
        if not self.dropped:
            return redaction.text(plain(self.head.decode("utf-8", "replace")))
        head = plain(self.head.decode("utf-8", "replace"))
        shown = len(plain(self.head[: self.head_bytes].decode("utf-8", "replace")))
        tail = plain(self.tail.decode("utf-8", "replace"))
        last = len(plain(self.tail[len(self.tail) - self.tail_bytes :].decode("utf-8", "replace")))
        before = redaction.part(head, 0, min(shown, len(head)))
        behind = redaction.part(tail, max(0, len(tail) - last), len(tail))
        return f"{before}{_gap(self.dropped)}{behind}"


class OutputRing:
    """Keeps the head and the tail of a stream and counts the rest exactly. Memory: twice `bytes_max` and what is kept
    around the gap, at most."""

    def __init__(self, bytes_max: int) -> None:
        # Beginnings say what ran, endings say how it ended; endings matter a little more.
        self._head_max = bytes_max * 2 // 5
        self._tail_max = bytes_max - self._head_max
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, block: bytes) -> None:
        self.total_bytes += len(block)
        room = self._head_max + AROUND_BYTES - len(self._head)
        self._head += block[:room]
        if rest := block[room:]:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_max + AROUND_BYTES:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def dropped_bytes(self) -> int:
        return max(0, self.total_bytes - self._head_max - self._tail_max)

    def kept(self) -> Kept:
        head, tail = bytes(self._head), b"".join(self._tail)
        if self.total_bytes == len(head) + len(tail):
            head = tail = head + tail
        return Kept(head, self._head_max, tail, self._tail_max, self.dropped_bytes)

    def text(self) -> str:
        return self.kept().text()


def _gap(dropped: int) -> str:
    return f"\n… [{dropped} bytes left out] …\n"


def plain(text: str) -> str:
    """`text` without what is meant for a terminal: colours, titles, questions, bells."""
    return _CONTROLS.sub("", text)


def shown(text: str, chars_max: int, redaction: Redaction) -> str:
    """`text` without secrets; if it is too long, its head and tail with a marker between them that says how many
    characters are left out."""
    if len(text) <= chars_max:
        return redaction.text(text)
    head = chars_max * 2 // 5
    tail = chars_max - head
    begins, ends = text[: head + AROUND_BYTES], text[-(tail + AROUND_BYTES) :]
    before = redaction.part(begins, 0, head)
    behind = redaction.part(ends, len(ends) - tail, len(ends))
    return f"{before}\n… [{len(text) - chars_max} characters left out] …\n{behind}"
