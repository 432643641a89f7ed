"""A receiver of webhooks: a real HTTP server that answers as it is told and remembers what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec


class Event(msgspec.Struct):
    sequence: int
    type: str
    run_id: str
    payload: dict[str, object]


class Sent(msgspec.Struct):
    type: str
    timestamp: str
    data: Event


class Received(NamedTuple):
    """One request, with the status that it was answered with."""

    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def sent(self) -> Sent:
        return msgspec.json.decode(self.body, type=Sent)


class Receiver:
    """Answers with the statuses of `answers` in their order, then with 204."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.requests: list[Received] = []

    @property
    def taken(self) -> list[str]:
        """The types of the events that were taken, in their order."""
        return [one.sent.type for one in self.requests if one.status < 300]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode("latin-1").split("\r\n")[1:]
                headers = {
                    name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name
                }
                body = await reader.readexactly(int(headers["content-length"]))
                status = self.answers.pop(0) if self.answers else 204
                self.requests.append(Received(headers, body, status))
                location = f"Location: {self.url}/elsewhere\r\n" if status == 302 else ""
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{location}\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def receiver() -> AsyncGenerator[Receiver]:
    """One on a free port of this machine."""
    made = Receiver()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield made
