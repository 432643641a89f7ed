"""Text for people: colour where there is a terminal, one status line that is redrawn, and nothing that bites.

Invariant: text of a model, a tool or a file is shown through `printable`, so it can neither steer the terminal nor
look like something it is not; without a terminal the output is plain lines.
"""

import asyncio
import os
import shutil
import sys
from typing import Literal, TextIO

from libs.contracts.visible import hides

Tone = Literal["plain", "dim", "good", "bad", "warn", "bold"]

_CODES: dict[Tone, str] = {"plain": "", "dim": "2", "good": "32", "bad": "31", "warn": "33", "bold": "1"}


def printable(text: str) -> str:
    """`text` with every control and hidden character escaped, except newlines and tabs."""
    return "".join(char if char in "\n\t" or not hides(char) else _escaped(char) for char in text)


def one_line(text: str, chars_max: int) -> str:
    """The beginning of `text` on one line, with an ellipsis when there is more."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= chars_max else flat[: max(0, chars_max - 1)] + "…"


class Screen:
    """Lines on a stream, and on a terminal one status line below them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = self.live and not os.environ.get("NO_COLOR")
        self._status = ""

    @property
    def width(self) -> int:
        """Columns for one line; generous where nobody looks at columns."""
        return shutil.get_terminal_size().columns if self.live else 160

    def paint(self, text: str, tone: Tone) -> str:
        """`text` in a tone, when there is colour."""
        code = _CODES[tone]
        return f"\x1b[{code}m{text}\x1b[0m" if code and self._coloured else text

    def line(self, text: str = "") -> None:
        """One line above the status line. `text` is already harmless."""
        self._clear()
        self._write(text + "\n" + (self._status if self.live else ""))

    def aside(self, text: str) -> None:
        """A remark that is no part of the output: on standard error, except where that would tear the status line."""
        if self.live:
            self.line(self.paint(text, "dim"))
        else:
            sys.stderr.write(text + "\n")

    def status(self, text: str) -> None:
        """Replace the status line; nothing without a terminal."""
        if self.live:
            self._clear()
            self._status = self.paint(one_line(text, self.width - 1), "dim") if text else ""
            self._write(self._status)

    def _clear(self) -> None:
        if self.live and self._status:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


async def read_line(prompt: str) -> str | None:
    """Ask on the terminal without stopping the loop; `None` at the end of the input."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    sys.stderr.write(prompt)
    sys.stderr.flush()
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        await ready.wait()
        line = sys.stdin.readline()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return line.rstrip("\n") if line else None


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
