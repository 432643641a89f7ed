"""Server-sent events, read incrementally as WHATWG HTML section 9.2.6 says, and a little more forgiving.

Invariant: how the bytes were split on their way never changes the payloads that come out.

Beyond the standard: an event that the end of the stream cuts off before its blank line is still given out by `close`
(many servers end with a bare `data: [DONE]`), and `[DONE]` does not wait for a blank line.
"""

_BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"


class EventParser:
    """Bytes in, the `data` of each event out. Linear in the bytes, however long a line is."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # The unfinished line, in the pieces that came.
        self._data: list[bytes] = []  # The data lines of the unfinished event.
        self._after_cr = False  # A line feed at the start of the next piece ends no further line.
        self._first = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the events that `piece` completes."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in piece:
            if piece:
                self._line.append(piece)
            return []
        lines = piece.split(b"\n")
        rest = lines.pop()
        if self._line:
            lines[0] = b"".join((*self._line, lines[0]))
        self._line = [rest] if rest else []
        return self._read(lines)

    def close(self) -> list[bytes]:
        """The payloads that the end of the stream leaves: of an unfinished line and an unfinished event."""
        line, self._line = b"".join(self._line), []
        return self._read([line, b""])

    def _read(self, lines: list[bytes]) -> list[bytes]:
        payloads: list[bytes] = []
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if not line:
                self._dispatch(payloads)
            elif line.startswith(b"data"):
                # `data`, `data:value` and `data: value`; any other name that begins so is another field.
                if line[4:6] == b": ":
                    value = line[6:]
                elif line[4:5] == b":":
                    value = line[5:]
                elif len(line) == 4:
                    value = b""
                else:
                    continue
                if value.startswith(DONE):
                    self._dispatch(payloads)
                    payloads.append(DONE)
                else:
                    self._data.append(value)
        return payloads

    def _dispatch(self, payloads: list[bytes]) -> None:
        if self._data:
            payloads.append(b"\n".join(self._data) if len(self._data) > 1 else self._data[0])
            self._data = []
