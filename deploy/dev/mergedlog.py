"""The logs of all children as one: JSON lines as they came, or readable lines in colour on a terminal.

Invariant: a slow or stuck reader of the merged log never holds up a child or the launcher: lines wait in a bounded
queue, written by a thread of its own, and what does not fit is dropped and counted.
"""

import json
import queue
import re
import threading
import time
from collections.abc import Mapping
from typing import TextIO, cast

# A line longer than this is cut: a log line is for reading, not for data.
LINE_CHARS_MAX = 8_000
# Some seconds of five busy processes; at the longest line this is 80 MB, in practice well below 1 MB.
LINES_WAITING_MAX = 10_000
_CLOSE_S = 1.0

_COLOURS = {
    "gateway": "36",
    "scheduler": "35",
    "executor": "32",
    "toolhost": "33",
    "verifier": "34",
    "nats": "90",
    "launcher": "1",
}
_LEVELS = {"debug": "90", "warning": "33", "error": "31", "critical": "31"}
# What the server says in passing (its banner, each connection) is not worth a line; what it warns of is.
_SERVER_LINE = re.compile(r"^\[\d+\] (?P<day>[\d/]+) (?P<at>\S+) \[(?P<level>\w+)\] (?P<said>.*)")
_SERVER_LEVELS = {"WRN": "warning", "ERR": "error", "FTL": "error"}
# The server's file holds a generated password and is readable by its owner only; it warns of that at every start.
_SERVER_SAYS_IN_VAIN = "Plaintext passwords detected"
_SHOWN_APART = {"at", "level", "event", "service", "replica", "traceback"}


class MergedLog:
    """Takes lines of children and of the launcher itself, and writes them to one stream."""

    def __init__(self, stream: TextIO, *, readable: bool) -> None:
        self._stream, self._readable = stream, readable
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_WAITING_MAX)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="merged-log", daemon=True)
        self._writer.start()

    def line(self, service: str, text: str) -> None:
        """One line of a child."""
        if (server := _SERVER_LINE.match(text)) is not None:
            if server["level"] not in _SERVER_LEVELS or server["said"].startswith(_SERVER_SAYS_IN_VAIN):
                return
            text = _translated(service, server)
        shown = readable_line(service, text) if self._readable else json_line(service, text)
        if shown is not None:
            self._offer(shown)

    def say(self, event: str, **fields: object) -> None:
        """One line of the launcher itself."""
        level = fields.pop("level", "info")
        at = time.strftime("%Y-%m-%dT%H:%M:%S")
        line = {"at": at, "level": level, "event": event, "service": "launcher", **fields}
        self.line("launcher", json.dumps(line, ensure_ascii=False))

    def close(self) -> None:
        """Write what is waiting, for a moment at most."""
        try:
            self._lines.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._writer.join(_CLOSE_S)

    def _offer(self, shown: str) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait(f"({self._dropped} lines of log dropped: nobody read them)")
                self._dropped = 0
            self._lines.put_nowait(shown)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (shown := self._lines.get()) is not None:
            try:
                self._stream.write(shown + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # The reader is gone; the children must go on, so the lines are swallowed.
                continue


def json_line(service: str, text: str) -> str | None:
    """A JSON object as it came; anything else wrapped in one. `None` for an empty line."""
    text = text.rstrip()[:LINE_CHARS_MAX]
    if not text:
        return None
    if _parsed(text) is not None:
        return text
    return json.dumps(
        {"level": "info", "event": "output", "service": service, "text": text}, ensure_ascii=False
    )


def readable_line(service: str, text: str) -> str | None:
    """Time, service, event and fields, coloured by service and level. `None` for an empty line."""
    text = text.rstrip()[:LINE_CHARS_MAX]
    if not text:
        return None
    fields = _parsed(text)
    name = f"\x1b[{_COLOURS.get(service, '0')}m{service:<9}\x1b[0m"
    if fields is None:
        return f"{'':8} {name} {_harmless(text)}"
    level = str(fields.get("level", "info"))
    clock = str(fields.get("at", ""))[11:19]
    event = (
        f"\x1b[{_LEVELS[level]}m{fields.get('event', '')}\x1b[0m"
        if level in _LEVELS
        else fields.get("event", "")
    )
    rest = " ".join(
        f"{key}={_harmless(str(value))}" for key, value in fields.items() if key not in _SHOWN_APART
    )
    traceback = str(fields.get("traceback", ""))
    return f"{clock:8} {name} {event} {rest}".rstrip() + (f"\n{_harmless(traceback)}" if traceback else "")


def _translated(service: str, server: re.Match[str]) -> str:
    """A line of the server in the form of the services."""
    line = {
        "at": f"{server['day'].replace('/', '-')}T{server['at']}",
        "level": _SERVER_LEVELS[server["level"]],
        "event": "server.said",
        "service": service,
        "text": server["said"][: LINE_CHARS_MAX // 2],
    }
    return json.dumps(line, ensure_ascii=False)


def _parsed(text: str) -> Mapping[str, object] | None:
    if not text.startswith("{"):
        return None
    try:
        return cast("dict[str, object]", json.loads(text))
    except ValueError:
        return None


def _harmless(text: str) -> str:
    """No control character reaches the terminal, so that no log line can move its cursor."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
