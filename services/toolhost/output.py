"""Bounds what tools say: streams while they run, texts when they are done.

Invariant: what is left out is counted and marked, never silently missing; a cut never splits a character.
"""

import re
from collections import deque

# What terminals take for orders and questions (ECMA-48): strings up to their end, sequences with parameters, short ones;
# and the controls that are no text, of which tab, new line and carriage return are left.
_CONTROLS = re.compile(
    r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


class OutputRing:
    """Keeps the head and the tail of a stream and counts the rest exactly. Memory: twice `bytes_max` at most."""

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
        room = self._head_max - len(self._head)
        self._head += block[:room]
        if rest := block[room:]:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._tail_max:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def dropped_bytes(self) -> int:
        return max(0, self.total_bytes - len(self._head) - self._tail_max)

    def text(self) -> str:
        """What was kept, with a marker where bytes are missing. Bytes that are not UTF-8 become U+FFFD."""
        tail = b"".join(self._tail)
        if not self.dropped_bytes:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head = bytes(self._head).decode("utf-8", "replace")
        kept = tail[len(tail) - self._tail_max :].decode("utf-8", "replace")
        return f"{head}\n… [{self.dropped_bytes} bytes left out] …\n{kept}"


def plain(text: str) -> str:
    """`text` without what is meant for a terminal: colours, titles, questions, bells."""
    return _CONTROLS.sub("", text)


def clip(text: str, chars_max: int) -> str:
    """`text`, or its head and tail with a marker between them that says how many characters are left out."""
    if len(text) <= chars_max:
        return text
    head = chars_max * 2 // 5
    tail = chars_max - head
    return f"{text[:head]}\n… [{len(text) - chars_max} characters left out] …\n{text[len(text) - tail :]}"
