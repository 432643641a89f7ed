"""Fixtures: one real embedded server for the whole session, and a bus on it with a prefix of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from deploy.dev.nats_server import Address, NatsServer, ServerSettings, nats_server
from libs.bus.connection import BusSettings, ServerBus, connect
from libs.chassis.clock import SystemClock

_numbers = itertools.count(1)


def bus_settings(
    address: Address, *, prefix: str | None = None, replicas: int = 1, shards: int = 1
) -> BusSettings:
    """Settings for a server; without a prefix, with one that no other test of this session has."""
    return BusSettings(
        url=address.url,
        user=address.user,
        password=address.password,
        creds=None,
        prefix=prefix or f"t{next(_numbers)}",
        replicas=replicas,
        shards=shards,
        monitor_url=address.monitor_url,
        name="test",
    )


@pytest.fixture(scope="session")
async def nats_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsServer]:
    """A running server, shared by all tests of the session."""
    async with nats_server(ServerSettings(tmp_path_factory.mktemp("nats"))) as server:
        yield server


@pytest.fixture
async def bus(nats_node: NatsServer) -> AsyncIterator[ServerBus]:
    """A connected bus whose streams are there and empty."""
    async with connect(bus_settings(nats_node.address), SystemClock()) as bus:
        await bus.ensure_topology()
        yield bus
