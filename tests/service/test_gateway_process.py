"""The gateway as a process of its own: a clear word when its port is taken, a drain that leaves nobody hanging."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import httpx

from deploy.dev.nats_server import NatsServer, ServerSettings, nats_server
from libs.bus.connection import connect
from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.events import RunCreated
from libs.contracts.tasks import Limits, TaskSpec
from services.gateway.app import Gateway
from services.gateway.frames import PING, RETRY
from services.gateway.server import listen, serve_until
from services.gateway.settings import GatewaySettings
from services.gateway.stream import Reader, Wanted
from tests.fakes.bus import bus_settings
from tests.service.gateway_served import (
    DEADLINE_S,
    Owner,
    Served,
    created,
    frames,
    free_port,
    http_client,
    process,
    registered,
    runs_of,
    until_ready,
)

START_S = 30.0
RUN = "run_0_00000000000000000000000000"


async def test_sigterm_ends_streams_cleanly_and_exits_with_zero(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", asyncio.Event(), port)
    async with process(bus, nats_node, tmp_path, port) as gateway:
        await until_ready(served)
        async with http_client(served) as client:
            owner = await Owner.of(bus, await created(client))
            async with client.stream("GET", f"/api/runs/{owner.run_id}/stream") as response:
                chunks = response.aiter_text()
                text = ""
                async with asyncio.timeout(DEADLINE_S):
                    while "run.claimed" not in text:
                        text += await anext(chunks)
                    gateway.send_signal(signal.SIGTERM)
                    async for chunk in chunks:
                        text += chunk
        async with asyncio.timeout(DEADLINE_S):
            assert await gateway.wait() == 0
    assert frames(text)[-1].event == "run.claimed"


async def test_a_gateway_that_stops_while_the_bus_is_away_answers_what_it_was_asked(tmp_path: Path) -> None:
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", asyncio.Event(), port)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(nats_server(ServerSettings(tmp_path / "nats")))
        bus = await stack.enter_async_context(connect(bus_settings(node.address), SystemClock()))
        gateway = await stack.enter_async_context(process(bus, node, tmp_path, port))
        await until_ready(served)
        client = await stack.enter_async_context(http_client(served))
        client.timeout = httpx.Timeout(START_S)
        async with asyncio.timeout(START_S):
            run_id = await created(client)
            async with client.stream("GET", f"/api/runs/{run_id}/stream") as response:
                chunks = response.aiter_text()
                await anext(chunks)
                await node.kill()
                starting = asyncio.create_task(client.post(f"/api/runs/{run_id}/start"))
                # Once the gateway says that it cannot reach the bus, the command is waiting for it.
                while (await client.get("/api/health/ready")).status_code != 503:
                    await asyncio.sleep(0.05)
                gateway.send_signal(signal.SIGTERM)
                async for _ in chunks:
                    pass
            answer = await starting
            assert (answer.status_code, answer.json()["error_code"]) == (503, "BUS_UNAVAILABLE")
            assert int(answer.headers["Retry-After"]) > 0
            _, said = await gateway.communicate()
        assert gateway.returncode == 0
        assert b"service.stopped" in said
        assert b"drain_overran" not in said
        assert b"Traceback" not in said


async def test_a_taken_port_is_a_clear_error(bus: Bus, nats_node: NatsServer, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        async with process(bus, nats_node, tmp_path, port) as gateway, asyncio.timeout(START_S):
            _, said = await gateway.communicate()
    assert gateway.returncode == 2
    assert f"port {port} of 127.0.0.1 is in use" in said.decode()
    assert "Traceback" not in said.decode()


async def test_a_client_that_leaves_frees_what_was_held_for_it(bus: Bus, tmp_path: Path) -> None:
    settings = GatewaySettings.load("gateway", {"PERDURE_DATA": str(tmp_path)})
    stop = asyncio.Event()
    async with registered(bus, "gateway", "gateway-1") as liveness:
        made = Gateway(bus, runs_of(bus), SystemClock(), liveness, settings)
        async with made.parts() as (rows, watches), asyncio.TaskGroup() as group:
            bound = listen("127.0.0.1", 0)
            port = int(bound.getsockname()[1])
            served = Served(f"http://127.0.0.1:{port}", stop, port)
            group.create_task(serve_until(stop, made.app(rows, watches), bound, SystemClock()))
            async with http_client(served) as client:
                owner = await Owner.of(bus, await created(client))
                path = f"/api/runs/{owner.run_id}/stream"
                async with client.stream("GET", path) as one, client.stream("GET", path) as two:
                    await anext(one.aiter_text())
                    await anext(two.aiter_text())
                    assert watches.clients == 2
                    async with watches.watch(LogKey("local", owner.run_id)) as watch:
                        assert not watch.closed
                async with asyncio.timeout(DEADLINE_S):
                    while watches.clients or not watch.closed:
                        await asyncio.sleep(0.01)
            stop.set()


async def test_a_client_without_deltas_is_pinged_while_deltas_go_by(bus: Bus, tmp_path: Path) -> None:
    settings = GatewaySettings.load("gateway", {"PERDURE_DATA": str(tmp_path)})
    async with registered(bus, "gateway", "gateway-1") as liveness:
        runs = runs_of(bus)
        made = await runs.create("local", RUN, [new_run()])
        owner = Owner(bus, runs, made)
        gateway = Gateway(bus, runs, SystemClock(), liveness, settings)
        async with gateway.parts() as (_, watches), watches.watch(LogKey("local", RUN)) as watch:
            wanted = Wanted(after=0, deltas=False, follow_suspended=False)
            blocks = Reader(watch, 0, wanted, ping_s=0.2).blocks()
            async with asyncio.timeout(DEADLINE_S), aclosing(blocks), asyncio.TaskGroup() as group:
                chatter = group.create_task(chatting(owner))
                written = [await anext(blocks) for _ in range(4)]
                chatter.cancel()
    assert (written[0], written[2:]) == (RETRY, [PING, PING])
    assert written[1].startswith(b"event: run.created\nid: 1\n")


async def chatting(owner: Owner) -> None:
    while True:
        await owner.delta(1, "a word ")
        await asyncio.sleep(0.01)


def new_run() -> RunCreated:
    return RunCreated(
        tenant="local",
        task_id="task_0_00000000000000000000000000",
        task=TaskSpec(goal="g"),
        limits=Limits(),
        workspace="w",
        body_hash="h",
    )
