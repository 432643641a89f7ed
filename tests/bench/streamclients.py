"""Many clients of the stream, and one listener on the feed, in a process of their own: what they cost is nobody's figure.

Invariant: when something arrived is the kernel's word, stamped as it came to the socket, so it does not matter how soon
this process gets to read it; all times are seconds of CLOCK_MONOTONIC, the same for all processes of a machine.

`python -m tests.bench.streamclients` reads a `Task` as a line of JSON, prints `ready` once everybody is connected, and
a `Heard` as a line of JSON once every stream has ended. One more client of the first run is frozen: it reads nothing at
all, for ever.
"""

import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

# Linux: `struct timespec` of CLOCK_REALTIME comes along with what is read. Python has no name for it.
_SO_TIMESTAMPNS = 35
_STAMP = struct.Struct("qq")
_STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size)
_READ_BYTES = 256 * 1024
_FROZEN_BYTES = 4096
_ID = re.compile(rb"\nid: (\d+)\n")
# The longest that a frame's head can be cut in two.
_KEPT_BYTES = 64
_RECORD = re.compile(rb"HMSG (\S+) \S+ (\d+) (\d+)\r\n")
_FIRST = re.compile(rb"\r\nPerdure-First: (\d+)\r\n")
_COUNT = re.compile(rb"\r\nPerdure-Count: (\d+)\r\n")


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and how to get in. `subject` is a wildcard over the feeds of the runs."""

    host: str
    port: int
    user: str | None
    password: str | None
    subject: str


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """`clients` watch each of the runs through the gateway at `port`."""

    port: int
    clients: int
    runs: list[str]
    feed: Feed


class Frame(NamedTuple):
    """One event as client `client` (counted over all runs) got it: at its socket, and read."""

    client: int
    sequence: int
    arrived_s: float
    read_s: float


class Fed(NamedTuple):
    """One record as the feed brought it to a socket: the run's place in the list, and the events in it."""

    run: int
    first: int
    events: int
    arrived_s: float


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    frames: list[Frame]
    fed: list[Fed]


class _Line:
    """A connection whose bytes are stamped as they arrive."""

    def __init__(self, host: str, port: int, *, frozen: bool = False) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        if frozen:
            # Else the kernel would read a short stream in its stead.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _FROZEN_BYTES)
        self.socket.connect((host, port))

    def read(self) -> tuple[bytes, float, float]:
        """What came, when the last of it arrived, and now; no bytes at the end."""
        data, notes, _, _ = self.socket.recvmsg(_READ_BYTES, _STAMP_SPACE)
        now = time.monotonic()
        if not notes:
            return data, now, now
        seconds, nanoseconds = _STAMP.unpack(notes[0][2])
        return data, seconds + nanoseconds / 1e9 - (time.time() - now), now


class _Client(_Line):
    """One client of a run's stream."""

    def __init__(self, port: int, number: int, run_id: str, *, frozen: bool = False) -> None:
        super().__init__("127.0.0.1", port, frozen=frozen)
        head = f"GET /api/runs/{run_id}/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self.socket.sendall(head.encode())
        self._number, self._rest = number, b""
        self.frames: list[Frame] = []

    def take(self) -> bool:
        """Read once; whether there will be more."""
        data, arrived_s, read_s = self.read()
        whole, end = self._rest + data, 0
        for found in _ID.finditer(whole):
            self.frames.append(Frame(self._number, int(found[1]), arrived_s, read_s))
            end = found.end()
        self._rest = whole[max(end, len(whole) - _KEPT_BYTES) :]
        return bool(data)


class _Listener(_Line):
    """Hears the feed as a gateway does, by the bare protocol of the server."""

    def __init__(self, feed: Feed, runs: Sequence[str]) -> None:
        super().__init__(feed.host, feed.port)
        options = {"verbose": False, "headers": True, "user": feed.user, "pass": feed.password}
        self.socket.sendall(
            b"CONNECT %s\r\nSUB %s 1\r\n" % (msgspec.json.encode(options), feed.subject.encode())
        )
        self._places = {run_id.encode(): place for place, run_id in enumerate(runs)}
        self._rest = b""
        self.fed: list[Fed] = []

    def take(self) -> bool:
        data, arrived_s, _ = self.read()
        self._rest += data
        while (line := self._rest.find(b"\r\n")) >= 0:
            found = _RECORD.match(self._rest)
            size = int(found[3]) + 2 if found else 0
            if len(self._rest) < line + 2 + size:
                break
            if found:
                self._record(found, self._rest[line : line + 2 + int(found[2])], arrived_s)
            elif self._rest.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            self._rest = self._rest[line + 2 + size :]
        return bool(data)

    def _record(self, found: re.Match[bytes], headers: bytes, arrived_s: float) -> None:
        run = self._places.get(found[1].rpartition(b".")[2])
        first, count = _FIRST.search(headers), _COUNT.search(headers)
        if run is not None and first and count:
            self.fed.append(Fed(run, int(first[1]), int(count[1]), arrived_s))


def _main() -> None:
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    listener = _Listener(task.feed, task.runs)
    clients = [
        _Client(task.port, place * task.clients + number, run_id)
        for place, run_id in enumerate(task.runs)
        for number in range(task.clients)
    ]
    frozen = _Client(task.port, len(clients), task.runs[0], frozen=True)
    with selectors.DefaultSelector() as selector:
        selector.register(listener.socket, selectors.EVENT_READ, listener)
        for client in clients:
            # What the gateway says at once means that it has joined this client to its run.
            client.take()
            selector.register(client.socket, selectors.EVENT_READ, client)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        left = len(clients)
        while left:
            for key, _ in selector.select():
                line: _Client | _Listener = key.data
                if not line.take():
                    selector.unregister(line.socket)
                    left -= 1
    frozen.socket.close()
    heard = Heard(frames=[frame for client in clients for frame in client.frames], fed=listener.fed)
    sys.stdout.write(msgspec.json.encode(heard).decode() + "\n")


if __name__ == "__main__":
    _main()
