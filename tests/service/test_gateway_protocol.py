"""What a server meets that speaks HTTP to anybody: old clients, eager ones, half-closed ones, and those that mean harm."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from libs.bus.ports import Bus
from services.gateway.protocol import PIPELINED_MAX
from tests.fakes.waiting import eventually
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
from tests.service.test_gateway_connections import SHORT, TASK, Line, get, line, post

WHOLE = post("/api/tasks", f"Content-Length: {len(TASK)}") + TASK
CHUNK = b"%x\r\n%b\r\n" % (len(TASK), TASK)
READY = "/api/health/ready"
# Java's client asks this with the first request on every connection.
HTTP_2 = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")


@pytest.fixture
async def served(bus: Bus, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway(bus, tmp_path, patience=SHORT) as running:
        yield running


async def status_of(served: Served, sent: bytes) -> int:
    """The status of the first answer to these bytes on a connection of their own."""
    async with line(served) as one:
        one.send(sent)
        return (await one.answer()).status


async def flooded(one: Line) -> None:
    """Send for as long as it is taken. Raises `ConnectionError` when it no longer is."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            one.send(b"a" * 65_536)
            await one.writer.drain()


async def test_a_head_says_everything_once_and_spaces_around_it_mean_nothing(served: Served) -> None:
    async with http_client(served) as client:
        path = f"/api/runs/{await created(client)}/stream"
        key = {"Idempotency-Key": "k", "Content-Type": "application/json"}
        first = await client.post("/api/tasks", content=TASK, headers=key)
    spaced = post("/api/tasks", f"Content-Length: {len(TASK)}", "Idempotency-Key:  k \t") + TASK
    async with line(served) as again:
        again.send(spaced)
        assert json.loads((await again.answer()).body)["run_id"] == first.json()["run_id"]
    assert await status_of(served, get(path, "Last-Event-ID: 0 ")) == 200
    for field in ("Last-Event-ID: 0", "Idempotency-Key: k", "Host: localhost", "Authorization: Bearer x"):
        assert await status_of(served, get(path, field, field)) == 400, field
    assert await status_of(served, b"GET /api/health/ready HTTP/1.1\r\n\r\n") == 400
    assert await status_of(served, b"GET /api/health/ready HTTP/1.0\r\n\r\n") == 200
    # However it is cut into pieces, a head has the same bound.
    assert await status_of(served, get(READY, *(f"X-{number}: {'a' * 20}" for number in range(3_000)))) == 400


async def test_an_encoded_body_is_refused_for_what_it_is(served: Served) -> None:
    async with http_client(served) as client:
        for coding, body in (("gzip", gzip.compress(TASK)), ("gzip", TASK), ("br", b"x"), ("identity", TASK)):
            headers = {"Content-Type": "application/json", "Content-Encoding": coding}
            answer = await client.post("/api/tasks", content=body, headers=headers)
            assert answer.status_code == (201 if coding == "identity" else 415), answer.text
    assert (
        await status_of(served, post("/api/tasks", "Transfer-Encoding: gzip, chunked") + CHUNK + b"0\r\n\r\n")
        == 415
    )


async def test_what_follows_a_body_is_no_head_and_comes_to_an_end(served: Served) -> None:
    trailed = post("/api/tasks", "Transfer-Encoding: chunked") + CHUNK + b"0\r\nIdempotency-Key: k\r\n\r\n"
    async with line(served) as trailing:
        made: set[str] = set()
        for _ in range(2):
            trailing.send(trailed)
            made.add(json.loads((await trailing.answer()).body)["run_id"])
        assert len(made) == 2
    for begun in (b"0\r\nX: ", b"5;"):
        async with line(served) as endless:
            endless.send(post("/api/tasks", "Transfer-Encoding: chunked") + begun)
            with pytest.raises(ConnectionError):
                await flooded(endless)
    assert await status_of(served, get(READY)) == 200


async def test_a_wish_for_another_protocol_is_passed_over(served: Served) -> None:
    asking = post("/api/tasks", f"Content-Length: {len(TASK)}", *HTTP_2) + TASK
    async with line(served) as hopeful:
        for pieces in ([asking], [asking[at : at + 7] for at in range(0, len(asking), 7)], [asking + asking]):
            for piece in pieces:
                hopeful.send(piece)
                await hopeful.writer.drain()
            assert (await hopeful.answer()).status == 201
        assert (await hopeful.answer()).status == 201
        hopeful.send(get(READY, "Connection: Upgrade", "Upgrade: websocket") + get(READY))
        assert [(await hopeful.answer()).status for _ in range(2)] == [200, 200]
    assert await status_of(served, b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n\r\n") == 400


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_its_connection(
    served: Served, bus: Bus
) -> None:
    async with http_client(served) as client:
        owner = await Owner.of(bus, await created(client))
    async with line(served) as old:
        old.send(f"GET /api/runs/{owner.run_id}/stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
        head = (await old.reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert "transfer-encoding" not in head
        assert "connection: close" in head
        await owner.complete()
        found = frames((await old.ended()).decode())
        assert sequences(found) == list(range(1, owner.folded.state.sequence + 1))
    async with line(served) as old:
        old.send(b"HEAD /api/runs HTTP/1.0\r\n\r\n" + b"GET /api/runs HTTP/1.0\r\n\r\n")
        assert b"Transfer-Encoding" not in await old.ended()


async def test_who_asks_and_shuts_its_side_is_answered(served: Served) -> None:
    for sent in (WHOLE, get(READY) + WHOLE):
        async with line(served) as half:
            half.send(sent)
            half.writer.write_eof()
            assert b'"run_id":' in await half.ended()
    async with line(served) as half:
        half.send(WHOLE[:-1])
        half.writer.write_eof()
        assert await half.ended() == b""


async def test_nonsense_behind_requests_is_refused_behind_their_answers(served: Served) -> None:
    async with line(served) as eager:
        eager.send(WHOLE + get(READY) + b"NONSENSE\r\n\r\n" + get(READY))
        assert [(await eager.answer()).status for _ in range(3)] == [201, 200, 400]
        assert await eager.ended() == b""
    async with line(served) as greedy:
        # The first one is being answered, and as many wait as may.
        greedy.send(get(READY) * (PIPELINED_MAX * 3))
        statuses = [(await greedy.answer()).status for _ in range(PIPELINED_MAX + 2)]
        assert statuses == [200] * (PIPELINED_MAX + 1) + [400]
        assert await greedy.ended() == b""
    async with line(served) as idle:
        # Empty lines keep no connection.
        idle.send(get(READY))
        assert (await idle.answer()).status == 200
        idle.send(b"\r\n")
        assert (await idle.answer()).status == 408


async def test_what_waits_behind_a_stream_neither_disturbs_it_nor_keeps_it(served: Served, bus: Bus) -> None:
    async with http_client(served) as client, httpx.AsyncClient(base_url=served.url) as plain:
        owner = await Owner.of(bus, await created(client))
        stream = get(f"/api/runs/{owner.run_id}/stream")

        async def open_streams() -> str:
            lines = (await plain.get("/api/metrics")).text.splitlines()
            return next(line for line in lines if line.startswith("agent_stream_clients "))

        async with line(served) as begun, line(served) as gone, line(served) as late:
            begun.send(stream + post("/api/tasks", f"Content-Length: {len(TASK)}"))
            gone.send(stream + get(READY))
            for one in (begun, gone):
                await one.reader.readuntil(b"run.claimed")
            gone.writer.close()

            late.send(b"GET")
            assert (await late.answer()).status == 408
            await owner.turn(1)
            await owner.turn(2)
            await eventually(open_streams, "one stream is left", fits=lambda seen: seen.endswith(" 1.0"))
            await owner.complete()
            begun.send(TASK)
            seen = await begun.reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"HTTP/1.1" not in seen
            assert b"event: run.completed" in seen
            assert (await begun.answer()).status == 201
