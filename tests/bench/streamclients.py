"""Many clients of the stream in one process of their own, so that what they cost is nobody else's figure.

Invariant: every frame is seen by its `id:` line, with the time it was read at (CLOCK_MONOTONIC, the same for all processes
of a machine); what is written at the end is all that was seen.

`python -m tests.bench.streamclients PORT CLIENTS RUN...` prints `ready` once all are connected, and a JSON list of
`[client, sequence, seconds]` once every stream has ended.
"""

import asyncio
import json
import re
import sys
from typing import cast

import uvloop

_ID = re.compile(rb"\nid: (\d+)\n")
# The longest that a frame's head can be cut in two.
_KEPT_BYTES = 64


class _Client(asyncio.Protocol):
    """One connection. A frozen one reads nothing at all, for ever."""

    def __init__(self, request: bytes, *, frozen: bool) -> None:
        self._request, self._frozen = request, frozen
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.seen: list[tuple[int, float]] = []
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What the loop of uvloop hands over is one in all but its class.
        line = cast("asyncio.Transport", transport)
        line.write(self._request)
        if self._frozen:
            line.pause_reading()
            self.begun.set_result(None)
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done():
            self.begun.set_result(None)
        now, data = self._now(), self._rest + data
        end = 0
        for found in _ID.finditer(data):
            self.seen.append((int(found[1]), now))
            end = found.end()
        self._rest = data[max(end, len(data) - _KEPT_BYTES) :]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.ended.done():
            self.ended.set_result(None)


async def _main(port: int, clients: int, runs: list[str]) -> None:
    loop = asyncio.get_running_loop()
    made: list[_Client] = []
    for run_id in runs:
        head = f"GET /api/runs/{run_id}/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        for number in range(clients + 1 if run_id == runs[0] else clients):
            client = _Client(head, frozen=number == clients)
            await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
            made.append(client)
    for client in made:
        await client.begun
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for client in made:
        await client.ended
    seen = [[number, *one] for number, client in enumerate(made) for one in client.seen]
    sys.stdout.write(json.dumps(seen) + "\n")


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
