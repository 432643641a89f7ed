"""A gateway without its bus says so, keeps its streams, and is itself again when the bus comes back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from deploy.dev.nats_server import ServerSettings, nats_server
from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from tests.fakes.bus import bus_settings
from tests.service.gateway_served import Owner, created, frames, gateway, http_client

# How long the bus may take to be back.
PATIENCE_S = 30.0


async def test_an_outage_of_the_bus_is_answered_with_503_and_ends_by_itself(tmp_path: Path) -> None:
    settings = ServerSettings(tmp_path / "nats", password="of this test only")
    async with AsyncExitStack() as second, AsyncExitStack() as stack:
        first = AsyncExitStack()
        server = await first.enter_async_context(nats_server(settings))
        bus = await stack.enter_async_context(connect(bus_settings(server.address), SystemClock()))
        await bus.ensure_topology()
        served = await stack.enter_async_context(gateway(bus, tmp_path))
        client = await stack.enter_async_context(http_client(served))
        client.timeout = httpx.Timeout(PATIENCE_S)
        owner = await Owner.of(bus, await created(client))
        response = await stack.enter_async_context(client.stream("GET", f"/api/runs/{owner.run_id}/stream"))
        chunks, text = response.aiter_text(), ""
        async with asyncio.timeout(PATIENCE_S):
            while "run.claimed" not in text:
                text += await anext(chunks)
            await first.aclose()
            answers = await asyncio.gather(
                client.get("/api/health/ready"),
                client.get("/api/health"),
            )
        ready, health = answers
        assert (health.status_code, health.json()["status"], health.json()["bus"]) == (200, "degraded", False)
        assert (ready.status_code, ready.json()["error_code"]) == (503, "BUS_UNAVAILABLE")
        assert int(ready.headers["Retry-After"]) > 0
        # What is a view of this gateway's own is still there.
        assert (await client.get("/api/runs")).status_code == 200
        again = settings._replace(port=int(server.address.url.rpartition(":")[2]))
        await second.enter_async_context(nats_server(again))
        async with asyncio.timeout(PATIENCE_S):
            while (await client.get("/api/health/ready")).status_code != 200:
                await asyncio.sleep(0.1)
            await owner.complete()
            async for chunk in chunks:
                text += chunk
        assert frames(text)[-1].event == "run.completed"
