"""An MCP server with an address that misbehaves, one way for each path: as little of HTTP as that takes.

`/endless`: an answer without end. `/packed`: a compressed one. `/away`: a redirect to `elsewhere`. `/cut`: the connection
ends in the middle of the answer. `/silent`: no answer. `/refuses`: HTTP 403 for everything. All but the last shake hands
and list one tool, `look`. What was asked is kept.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

SESSION = "mcp-session-id: s1\r\n"


class Asked(NamedTuple):
    path: str
    headers: dict[str, str]
    method: str


class Address:
    """`url` of a path; `asked` in the order of arrival."""

    def __init__(self, elsewhere: str) -> None:
        self.asked: list[Asked] = []
        self.port = 0
        self._elsewhere = elsewhere
        self._writers: set[asyncio.StreamWriter] = set()
        self._over = asyncio.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head.decode().split("\r\n")
                verb, path, _ = line.split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)
                }
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                request = cast("dict[str, object]", json.loads(body)) if body else {}
                self.asked.append(Asked(path, headers, str(request.get("method", verb))))
                if not await self._answer(writer, path, request):
                    break
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    def close(self) -> None:
        """Cut all connections."""
        self._over.set()
        for writer in self._writers:
            writer.transport.abort()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, request: dict[str, object]) -> bool:
        """Whether the connection goes on."""
        if path == "/refuses":
            writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
        elif request.get("method") == "tools/call":
            return await self._misbehave(writer, path)
        elif "id" not in request:
            status = "202 Accepted" if request else "405 Method Not Allowed"
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
        else:
            _write_json(writer, _answer_to(request))
        return True

    async def _misbehave(self, writer: asyncio.StreamWriter, path: str) -> bool:
        if path == "/packed":
            packed = gzip.compress(b" " * 1_000_000)
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n"
            writer.write(head.encode() + packed)
            return True
        if path == "/away":
            writer.write(
                f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {self._elsewhere}\r\ncontent-length: 0\r\n\r\n".encode()
            )
            return True
        if path == "/cut":
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: message\r\ndata: {"
            )
            await writer.drain()
            return False
        if path == "/endless":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
            while True:
                writer.write(b" " * 1_000_000)
                await writer.drain()
        await self._over.wait()
        return False


@asynccontextmanager
async def listening(elsewhere: str = "http://127.0.0.1:9/") -> AsyncGenerator[Address]:
    address = Address(elsewhere)
    server = await asyncio.start_server(address.serve, "127.0.0.1", 0)
    address.port = server.sockets[0].getsockname()[1]
    try:
        yield address
    finally:
        server.close()
        address.close()


def _write_json(writer: asyncio.StreamWriter, message: object) -> None:
    body = json.dumps(message).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{SESSION}content-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)


def _answer_to(request: dict[str, object]) -> dict[str, object]:
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": request["id"]}
    match request["method"]:
        case "initialize":
            info = {"name": "address", "version": "0"}
            found: object = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": info,
            }
        case "tools/list":
            found = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
        case method:
            return {**answer, "error": {"code": -32601, "message": f"no method {method}"}}
    return {**answer, "result": found}
