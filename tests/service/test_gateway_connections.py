"""Connections as they are in the world: slow, idle, shared, cut into pieces; bytes on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from libs.bus.ports import Bus
from services.gateway.protocol import Patience
from tests.service.gateway_served import (
    DEADLINE_S,
    Owner,
    Served,
    created,
    frames,
    gateway,
    http_client,
    sequences,
)

# Far above what a request takes to come here, and short enough to be waited for.
SHORT = Patience(head_s=1.0, body_s=1.0)
TASK = json.dumps({"goal": "Mend the shop."}).encode()
FOREIGN = (
    "x",
    "run_0_short",
    "run_00_01kc9qk3v9gswdvw5dh1cg05xs",
    "run_999_01kc9qk3v9gswdvw5dh1cg05xs",
    "task_0_01kc9qk3v9gswdvw5dh1cg05xs",
    "run_0_01kc9qk3v9gswdvw5dh1cg05xs",
    "run_0_01KC9QK3V9GSWDVW5DH1CG05XS",
    "%2e%2e",
    "run_0_01kc9qk3v9gswdvw5dh1cg05xs%00",
    "*",
    "%3E",
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Line:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        """The next answer, its body by its declared length."""
        async with asyncio.timeout(DEADLINE_S):
            status, *fields = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status.split()[1]), headers, body)

    async def ended(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()


@asynccontextmanager
async def line(served: Served) -> AsyncGenerator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def served(bus: Bus, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway(bus, tmp_path, patience=SHORT) as running:
        yield running


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def post(path: str, *headers: str) -> bytes:
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    ).encode()


INCOMPLETE = (
    b"",
    b"GET /api/he",
    get("/api/health") + b"GET /api/health HTTP/1.1\r\nX-Slow: ",
    post("/api/tasks", f"Content-Length: {len(TASK)}") + TASK[:5],
    post("/api/tasks", "Transfer-Encoding: chunked") + b"5\r\n{goa",
)


async def test_a_request_that_does_not_come_whole_is_told_so_and_holds_nothing(served: Served) -> None:
    async def begin(begun: bytes) -> None:
        async with line(served) as slow:
            slow.send(begun)
            if begun.startswith(b"GET /api/health"):
                assert (await slow.answer()).status == 200
            late = await slow.answer()
            assert late.status == 408
            assert json.loads(late.body)["error_code"] == "REQUEST_TIMEOUT"
            assert late.headers["connection"] == "close"
            assert await slow.ended() == b""

    await asyncio.gather(*map(begin, INCOMPLETE))
    async with http_client(served) as client:
        assert (await client.get("/api/runs")).json()["runs"] == []


async def test_a_client_that_sends_a_byte_now_and_then_gains_nothing_by_it(served: Served) -> None:
    async with line(served) as slow:
        drops = iter(get("/api/health", "X-A: b"))

        async def drip() -> None:
            for byte in drops:
                slow.send(bytes([byte]))
                await asyncio.sleep(SHORT.head_s / 4)

        dripping = asyncio.create_task(drip())
        assert (await slow.answer()).status == 408
        dripping.cancel()
    # A head without an end is no request either, however fast it comes.
    async with line(served) as endless:
        endless.send(b"GET /api/health HTTP/1.1\r\n")
        for number in range(200):
            endless.send(f"X-{number}: {'a' * 1000}\r\n".encode())
        refused = await endless.answer()
        assert (refused.status, json.loads(refused.body)["error_code"]) == (400, "BAD_REQUEST")


async def test_a_body_in_many_pieces_is_one_body(served: Served) -> None:
    pieces = [TASK[at : at + 3] for at in range(0, len(TASK), 3)]
    async with line(served) as chunked:
        chunked.send(post("/api/tasks", "Transfer-Encoding: chunked"))
        for piece in pieces:
            for part in (f"{len(piece):x}\r\n".encode(), piece, b"\r\n"):
                chunked.send(part)
                await chunked.writer.drain()
        chunked.send(b"0\r\n\r\n")
        assert (await chunked.answer()).status == 201
        # The same connection goes on, and a server that is asked first says that it may be sent.
        chunked.send(post("/api/tasks", f"Content-Length: {len(TASK)}", "Expect: 100-continue"))
        assert (await chunked.answer()).status == 100
        chunked.send(TASK)
        assert (await chunked.answer()).status == 201


async def test_requests_that_come_at_once_on_one_connection_are_answered_in_order(served: Served) -> None:
    paths = ("/api/health/ready", "/api/runs", "/api/nothing", "/api/runs?limit=x", "/api/health/ready")
    async with line(served) as pipelined:
        pipelined.send(b"".join(get(path) for path in paths))
        assert [(await pipelined.answer()).status for _ in paths] == [200, 200, 404, 422, 200]
        pipelined.send(get("/api/health/ready", "Connection: close"))
        assert (await pipelined.answer()).status == 200
        assert await pipelined.ended() == b""


async def test_a_stream_is_chunked_and_its_connection_serves_the_next_request(
    served: Served, bus: Bus
) -> None:
    async with http_client(served) as client:
        owner = await Owner.of(bus, await created(client))
    await owner.complete()
    path = f"/api/runs/{owner.run_id}/stream"
    async with line(served) as kept:
        for _ in range(2):
            kept.send(get(path))
            head = (await kept.reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert "transfer-encoding: chunked" in head
            assert "content-length" not in head
            body = b""
            async with asyncio.timeout(DEADLINE_S):
                while size := int(await kept.reader.readuntil(b"\r\n"), 16):
                    body += await kept.reader.readexactly(size)
                    assert await kept.reader.readexactly(2) == b"\r\n"
                assert await kept.reader.readexactly(2) == b"\r\n"
            assert sequences(frames(body.decode())) == list(range(1, owner.folded.state.sequence + 1))
        kept.send(get(f"{path}?after_sequence={owner.folded.state.sequence}"))
        assert (await kept.answer()).status == 204


async def test_every_other_method_of_the_stream_is_refused_with_what_is_allowed(served: Served) -> None:
    async with http_client(served) as client:
        path = f"/api/runs/{await created(client)}/stream"
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            refused = await client.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD"), method
            assert refused.json()["error_code"] == "METHOD_NOT_ALLOWED"
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        for bad, status in (("?after_sequence=99", 400), ("?deltas=maybe", 422)):
            refused = await client.head(path + bad)
            assert (refused.status_code, refused.content) == (status, b"")


async def test_what_is_no_run_of_this_deployment_has_no_stream(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=DEADLINE_S) as client:
        for identifier in FOREIGN:
            for part in ("", "/stream", "/events"):
                missing = await client.get(f"/api/runs/{identifier}{part}")
                assert (missing.status_code, missing.json()["error_code"]) == (404, "NOT_FOUND"), (
                    identifier,
                    part,
                )
