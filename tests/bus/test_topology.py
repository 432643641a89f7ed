"""Streams and buckets: made once by however many, verified, never made worse; unfit servers are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from deploy.dev.nats_server import NatsServer, ServerSettings, free_port, nats_server
from libs.bus.connection import BusSettings, connect
from libs.bus.jetstream import JetStream
from libs.bus.link import Credentials, Link
from libs.bus.topology import stream_config
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable, ConfigurationError
from libs.contracts.streams import streams
from libs.contracts.subjects import Subjects
from tests.bus.writing import fresh_key
from tests.fakes.bus import bus_settings
from tests.fakes.cluster import Deployment


async def test_five_processes_may_start_at_the_same_time(deployment: Deployment) -> None:
    async def start() -> None:
        async with connect(deployment.settings("five"), SystemClock()) as bus:
            await bus.ensure_topology()
            assert await bus.usable()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(start)
    await start()


async def test_what_may_change_is_changed_in_place(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address)
    name = f"{settings.prefix}-work"
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await bus.ensure_topology()
        before = await config_of(js, name)
        await js.api(f"STREAM.UPDATE.{name}", before | {"max_msgs": 7})
        await bus.ensure_topology()
        assert await config_of(js, name) == before


@pytest.mark.parametrize("change", [{"retention": "limits"}, {"storage": "memory"}])
async def test_what_cannot_be_changed_is_refused_with_its_name(
    nats_node: NatsServer, change: dict[str, object]
) -> None:
    settings = bus_settings(nats_node.address)
    spec = next(s for s in streams(Subjects(settings.prefix)) if s.name == f"{settings.prefix}-work")
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await js.api(f"STREAM.CREATE.{spec.name}", stream_config(spec, 1) | change)
        with pytest.raises(ConfigurationError, match=f"{spec.name} exists with {next(iter(change))}="):
            await bus.ensure_topology()


async def test_streams_are_never_made_less_replicated(deployment: Deployment) -> None:
    if deployment.replicas == 1:
        pytest.skip("one node has nothing to lose")
    settings = deployment.settings("shared")._replace(replicas=1)
    async with connect(settings, SystemClock()) as bus:
        with pytest.raises(ConfigurationError, match="PERDURE_REPLICAS"):
            await bus.ensure_topology()


async def test_more_replicas_than_servers_are_refused(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address, replicas=3)
    async with connect(settings, SystemClock()) as bus:
        with pytest.raises(ConfigurationError, match="replicas"):
            await bus.ensure_topology()


async def test_a_server_that_acknowledges_too_early_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    async with nats_server(ServerSettings(tmp_path, lazy_sync=True)) as server:
        settings = bus_settings(server.address)
        async with connect(settings, SystemClock()) as bus:
            with pytest.raises(ConfigurationError, match="sync_interval"):
                await bus.ensure_topology()
        async with connect(settings._replace(allow_lazy_sync=True), SystemClock()) as bus:
            await bus.ensure_topology()
        async with connect(settings._replace(monitor_url=None), SystemClock()) as bus:
            await bus.ensure_topology()


async def test_a_monitor_that_does_not_answer_is_named(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address)._replace(monitor_url="http://127.0.0.1:1")
    async with connect(settings, SystemClock()) as bus:
        with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:1"):
            await bus.ensure_topology()


async def test_a_monitor_that_is_away_does_not_keep_a_service_out_of_a_cluster(nats_node: NatsServer) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    settings = bus_settings(nats_node.address)._replace(
        monitor_url=f"{nats_node.address.monitor_url},{away}", allow_lazy_sync=False
    )
    async with connect(settings, SystemClock()) as bus:
        await bus.ensure_topology()


async def test_an_older_server_is_refused() -> None:
    async with old_server() as url, connect(BusSettings(url, None, None, None), SystemClock()) as bus:
        with pytest.raises(ConfigurationError, match=r"2\.10\.18.*2\.15\.1"):
            await bus.ensure_topology()


async def test_a_stream_that_was_deleted_is_made_again_by_whoever_needs_it(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address)
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await bus.ensure_topology()
        for name in (
            f"{settings.prefix}-work",
            f"KV_{settings.prefix}-leases",
            f"KV_{settings.prefix}-journal",
        ):
            await js.api(f"STREAM.DELETE.{name}")
        with anyio.fail_after(20):
            await bus.queue.publish(bus.subjects.work("normal"), b"ticket")
            assert await bus.bucket("leases").get("a") is None
            assert await bus.bucket("journal").create("a", b"1") == 1


async def test_a_log_that_was_deleted_is_not_made_again(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address)
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await bus.ensure_topology()
        await js.api(f"STREAM.DELETE.{settings.prefix}-log-0")
        assert not await bus.usable()
        with pytest.raises(BusUnavailable):
            await bus.log.tail(fresh_key())


@asynccontextmanager
async def operator(server: NatsServer) -> AsyncGenerator[JetStream]:
    address = server.address
    link = Link(Credentials(address.url, address.user, address.password, None, "operator"), SystemClock())
    await link.open()
    try:
        yield JetStream(link, SystemClock())
    finally:
        await link.close()


class Info(msgspec.Struct):
    config: dict[str, object]


async def config_of(js: JetStream, stream: str) -> dict[str, object]:
    info = msgspec.json.decode(await js.api(f"STREAM.INFO.{stream}"), type=Info)
    return {field: value for field, value in info.config.items() if field != "metadata"}


@asynccontextmanager
async def old_server() -> AsyncGenerator[str]:
    """Speaks just enough of the protocol to be connected to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.10.18","max_payload":1048576,"headers":true}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
