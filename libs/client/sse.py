"""Server-sent events from bytes, as WHATWG HTML section 9.2.6 reads them.

Invariant: any way of cutting the same bytes into pieces gives the same events; an event that its blank line has not
ended yet is never given.
"""

from typing import NamedTuple

# An event's data is bounded by a record of the log (512 KiB); what is longer is no stream of ours.
LINE_BYTES_MAX = 4 * 1024 * 1024

# What one event's lines of data may take together, for the same reason.
EVENT_BYTES_MAX = LINE_BYTES_MAX
# Digits of a `retry`: some days in milliseconds; what is longer is a mistake and ignored like one.
_RETRY_DIGITS_MAX = 9

_BOM = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """One dispatched event. `last_event_id` is what a reconnect would send."""

    event: str
    data: str
    last_event_id: str


class EventParser:
    """Feed it bytes as they come; it gives the events that are complete."""

    def __init__(self) -> None:
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self._rest = b""
        self._at_start = True
        self._skip_newline = False
        self._event = ""
        self._data: list[str] = []
        self._size = 0
        self._id = ""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that `chunk` completes. Raises `ValueError` on a line beyond every bound."""
        data = self._rest + chunk
        if self._at_start:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            data = data.removeprefix(_BOM)
            self._at_start = False
        if self._skip_newline and data:
            # The previous chunk ended in a carriage return: a line feed here belongs to it.
            data = data.removeprefix(b"\n")
            self._skip_newline = False
        if data.endswith(b"\r"):
            self._skip_newline = True
        *lines, self._rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            raise ValueError(f"a line of the stream is longer than {LINE_BYTES_MAX} bytes")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._event = value
            case "data":
                self._size += len(line)
                if self._size > EVENT_BYTES_MAX:
                    raise ValueError(f"an event of the stream has more than {EVENT_BYTES_MAX} bytes of data")
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit() and len(value) <= _RETRY_DIGITS_MAX:
                self.retry_ms = int(value)
            case _:
                pass  # A comment (empty name) or a field that the standard does not know.
        return None

    def _dispatch(self) -> ServerEvent | None:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        self.last_event_id = self._id
        if not data:
            return None
        return ServerEvent(event or "message", "\n".join(data), self.last_event_id)
