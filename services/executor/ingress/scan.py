"""Where a JSON object ends, found while its text still comes.

Invariant: linear: each character is looked at once. What is closed is not yet valid; what is not closed has no end yet,
or something stands behind its end.
"""

import re

# What matters outside of a string, and within one.
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')


class ObjectScan:
    """Feed it the pieces of one text."""

    def __init__(self) -> None:
        self._depth = 0
        self._begun = False
        self._in_string = False
        self._escaped = False
        self._ended = False
        self._spoiled = False

    @property
    def closed(self) -> bool:
        """The text is one object that has its end, and nothing behind it."""
        return self._ended and not self._spoiled

    def take(self, piece: str) -> None:
        """Look at the next piece."""
        at = 0
        if not self._begun:
            text = piece.lstrip()
            if not text:
                return
            self._begun = True
            self._spoiled = text[0] != "{"
        while not (self._ended or self._spoiled) and at < len(piece):
            at = self._step(piece, at)
        if self._ended and piece[at:].strip():
            self._spoiled = True

    def _step(self, piece: str, at: int) -> int:
        """Go behind the next character that matters."""
        if self._escaped:
            self._escaped = False
            return at + 1
        found = (_INSIDE if self._in_string else _OUTSIDE).search(piece, at)
        if found is None:
            return len(piece)
        mark = found[0]
        if mark == "\\":
            self._escaped = True
        elif mark == '"':
            self._in_string = not self._in_string
        elif mark in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            self._ended = self._depth <= 0
        return found.end()
