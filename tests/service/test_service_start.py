"""The start and the end of a service as a process: also while it waits for its bus, and once that is silent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from deploy.dev.nats_server import NatsServer, free_port
from deploy.dev.plan import SERVICES
from libs.bus.ports import Bus
from libs.contracts.subjects import LEADERS, replica_key
from tests.fakes.proxy import proxied
from tests.fakes.waiting import eventually

_ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 30.0


@asynccontextmanager
async def service(name: str, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"services.{name}"),
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=_ROOT,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def test_a_service_says_that_it_waits_for_its_bus_and_stops_when_told(tmp_path: Path) -> None:
    url = "nats://me:secret@127.0.0.1:1"
    async with (
        asyncio.timeout(_DEADLINE_S),
        service(
            "executor",
            NATS_URL=url,
            PERDURE_DATA=str(tmp_path),
            LANGFUSE_BASE_URL="http://127.0.0.1:1",
        ) as process,
    ):
        assert process.stdout is not None
        ignored, waiting = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        rest, _ = await process.communicate()
        assert (ignored["event"], ignored["variable"]) == ("setting.ignored", "LANGFUSE_BASE_URL")
        assert (waiting["event"], waiting["url"]) == ("bus.waiting", "nats://127.0.0.1:1")
        assert b"service.stopped" in rest
        assert process.returncode == 0


async def test_with_tenants_a_tool_host_without_a_sandbox_does_not_start(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(_DEADLINE_S),
        service(
            "toolhost",
            **on_the_bus(bus, nats_node),
            PERDURE_DATA=str(tmp_path),
            RUNTIME_API_KEYS_JSON='{"acme": "a-secret-of-acme-0123456789"}',
            SANDBOX="none",
        ) as process,
    ):
        told, _ = await process.communicate()
        assert process.returncode == 2, told
        assert b"no sandbox works here" in told
        assert b"Traceback" not in told
        assert b"a-secret-of-acme" not in told


def on_the_bus(bus: Bus, node: NatsServer) -> dict[str, str]:
    """The variables by which a process finds its bus."""
    return {
        "NATS_URL": node.address.url,
        "NATS_USER": node.address.user or "",
        "NATS_PASSWORD": node.address.password or "",
        "NATS_MONITOR_URL": node.address.monitor_url or "",
        "PERDURE_PREFIX": bus.subjects.prefix,
    }


async def test_a_root_of_workspaces_that_cannot_be_used_is_a_bad_setting(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    async with (
        asyncio.timeout(_DEADLINE_S),
        service(
            "toolhost",
            **on_the_bus(bus, nats_node),
            PERDURE_DATA=str(tmp_path),
            WORKSPACE_DIR=str(blocked / "workspaces"),
        ) as process,
    ):
        told, _ = await process.communicate()
        assert process.returncode == 2, told
        assert b"set WORKSPACE_DIR" in told
        assert b"Traceback" not in told


async def test_every_service_stops_in_its_time_when_the_server_is_silent(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    async def all_work() -> bool:
        living = len(await bus.bucket("leases").keys(replica_key("")))
        led, hosts = await bus.bucket("leases").keys(LEADERS), await bus.bucket("catalog").keys()
        return living == len(SERVICES) and bool(led) and len(hosts) == 2

    async with proxied(nats_node.address.url) as proxy, AsyncExitStack() as stack:
        environment = on_the_bus(bus, nats_node) | {
            "NATS_URL": proxy.url,
            "PERDURE_DATA": str(tmp_path),
            "PERDURE_PORT": str(free_port()),
        }
        processes = [await stack.enter_async_context(service(one.name, **environment)) for one in SERVICES]
        await eventually(all_work, "five services at work")
        proxy.mute = True
        for process in processes:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_DEADLINE_S):
            said = [(await process.communicate())[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * len(SERVICES)
        # It would have been torn down in the middle of what it does.
        assert not [words for words in said if b"service.drain_overran" in words]
