"""The client against a real gateway: typed answers, typed failures, and a stream that resumes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.bus.ports import Bus
from libs.client import GatewayUnreachable, PerdureClient
from libs.contracts.errors import (
    IdempotencyConflict,
    InvalidCursor,
    InvalidState,
    NotFound,
    Unauthorized,
    ValidationFailed,
)
from libs.contracts.http import TaskCreate
from libs.contracts.views import EventView
from tests.service.gateway_served import DEADLINE_S, Owner, gateway

NOBODY = "run_0_00000000000000000000000000"


@pytest.fixture
async def client(bus: Bus, tmp_path: Path) -> AsyncIterator[PerdureClient]:
    async with gateway(bus, tmp_path) as served, PerdureClient(served.url) as made:
        yield made


async def collected(client: PerdureClient, run_id: str, *, follow_suspended: bool = False) -> list[EventView]:
    async with asyncio.timeout(DEADLINE_S):
        stream = client.stream(run_id, deltas=False, follow_suspended=follow_suspended)
        return [event async for event in stream]


async def test_a_run_is_driven_from_its_task_to_its_end(client: PerdureClient, bus: Bus) -> None:
    task = TaskCreate(goal="Mend the shop.", workspace="shop", auto_start=True)
    made = await client.create_task(task, idempotency_key="k")
    assert await client.create_task(task, idempotency_key="k") == made
    with pytest.raises(IdempotencyConflict):
        await client.create_task(TaskCreate(goal="Another."), idempotency_key="k")
    owner = await Owner.of(bus, made.run_id)
    await owner.ask()
    events = await collected(client, made.run_id)
    assert events[-1].type == "input.requested"
    run = await client.run(made.run_id)
    assert run.pending_question is not None
    assert (await client.reply(made.run_id, "This one.")).status == "QUEUED"
    assert (await client.questions(made.run_id)).questions[0].answer == "This one."
    await client.message(made.run_id, "Hurry.")
    await owner.refresh()
    await owner.claim()
    await owner.complete()
    events = await collected(client, made.run_id)
    assert [event.sequence for event in events] == list(range(1, owner.folded.state.sequence + 1))
    page = await client.events(made.run_id, after_sequence=2, limit=2)
    assert [event.sequence for event in page.events] == [3, 4]
    assert (await client.event(made.run_id, 1)).type == "run.created"
    assert [one.run_id for one in (await client.runs(status="COMPLETED")).runs] == [made.run_id]
    assert (await client.task(made.task_id)).run_id == made.run_id
    assert (await client.health()).bus
    assert await client.ready()


async def test_failures_are_raised_as_what_they_are(client: PerdureClient) -> None:
    with pytest.raises(NotFound):
        await client.run(NOBODY)
    with pytest.raises(NotFound):
        await collected(client, NOBODY)
    made = await client.create_task(TaskCreate(goal="g"))
    await client.cancel(made.run_id)
    with pytest.raises(InvalidState, match="CANCELLED"):
        await client.start(made.run_id)
    with pytest.raises(InvalidCursor):
        await client.events(made.run_id, after_sequence=99)
    with pytest.raises(ValidationFailed) as caught:
        await client.runs(limit=0)
    assert caught.value.details == [{"field": "limit", "message": "must be a whole number from 1 to 200"}]


async def test_a_wrong_token_is_unauthorized(bus: Bus, tmp_path: Path) -> None:
    keys = {"RUNTIME_API_KEYS_JSON": '{"alpha": "alpha-secret-0123456789"}'}
    async with gateway(bus, tmp_path, environment=keys) as served:
        async with PerdureClient(served.url, "wrong") as client:
            with pytest.raises(Unauthorized):
                await client.runs()
        async with PerdureClient(served.url, "alpha-secret-0123456789") as client:
            assert (await client.runs()).runs == []


async def test_an_absent_gateway_is_said_to_be_absent() -> None:
    async with PerdureClient("http://127.0.0.1:1") as client:
        assert not await client.ready()
        with pytest.raises(GatewayUnreachable, match="perdure up"):
            await client.runs()


async def test_a_gateway_that_was_never_there_is_not_waited_for() -> None:
    async def never(_: float) -> None:
        pytest.fail("it waits for nobody")

    async with PerdureClient("http://127.0.0.1:1", sleep=never) as client:
        with pytest.raises(GatewayUnreachable, match="perdure up"):
            await collected(client, NOBODY)


async def test_a_gateway_that_goes_away_is_waited_for_and_that_is_said_once(bus: Bus, tmp_path: Path) -> None:
    waits: list[float] = []
    told: list[str] = []

    async def wait(delay_s: float) -> None:
        waits.append(delay_s)

    async with gateway(bus, tmp_path) as served:
        client = PerdureClient(served.url, sleep=wait)
        made = await client.create_task(TaskCreate(goal="g"))
    async with client:
        stream = client.stream(made.run_id, reconnecting=lambda error: told.append(error.code))
        with pytest.raises(GatewayUnreachable):
            await anext(stream)
    assert len(waits) > 5
    assert told == ["GATEWAY_UNREACHABLE"]


class Flaky:
    """A proxy in front of the gateway that cuts every connection after some bytes."""

    def __init__(self, port: int, bytes_max: int) -> None:
        self._port, self._bytes_max = port, bytes_max
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        request = await reader.readuntil(b"\r\n\r\n")
        upstream, sender = await asyncio.open_connection("127.0.0.1", self._port)
        sender.write(request)
        left = self._bytes_max
        while left > 0 and (chunk := await upstream.read(left)):
            writer.write(chunk)
            left -= len(chunk)
        await writer.drain()
        for end in (sender, writer):
            end.close()
            await end.wait_closed()


async def test_a_stream_that_is_cut_anywhere_gives_every_event_once(bus: Bus, tmp_path: Path) -> None:
    async def no_wait(_: float) -> None:
        return

    async with gateway(bus, tmp_path) as served, PerdureClient(served.url) as direct:
        made = await direct.create_task(TaskCreate(goal="g"))
        owner = await Owner.of(bus, made.run_id)
        for turn in range(1, 8):
            await owner.turn(turn)
        await owner.complete()
        flaky = Flaky(served.port, 1500)
        proxy = await asyncio.start_server(flaky.serve, "127.0.0.1", 0)
        async with proxy:
            port = proxy.sockets[0].getsockname()[1]
            async with PerdureClient(f"http://127.0.0.1:{port}", sleep=no_wait) as client:
                events = await collected(client, made.run_id)
    assert [event.sequence for event in events] == list(range(1, owner.folded.state.sequence + 1))
    assert flaky.connections > 3
