"""The deployments that every promise of the bus is tested on: one real node, three that replicate, and the twin."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.bus.twin.network import QuietNetwork
from libs.bus.twin.server import TwinServer
from libs.chassis.clock import SystemClock
from tests.fakes.cluster import Deployment, one_node, three_nodes

PREFIX = "shared"


class Site:
    """Somewhere a bus is. `servers` is `None` for the twin."""

    def __init__(self, servers: Deployment | None) -> None:
        self.servers = servers
        self._twins: dict[str, TwinServer] = {}

    def connection(self, prefix: str = PREFIX, *, shards: int = 1) -> AbstractAsyncContextManager[Bus]:
        """Another process's connection."""
        if self.servers is None:
            return self._on_the_twin(prefix, shards)
        return connect(self.servers.settings(prefix, shards=shards), SystemClock())

    @asynccontextmanager
    async def _on_the_twin(self, prefix: str, shards: int) -> AsyncGenerator[Bus]:
        if prefix not in self._twins:
            self._twins[prefix] = TwinServer(SystemClock(), prefix=prefix, shards=shards)
        server = self._twins[prefix]
        bus = server.connect("test", QuietNetwork())
        try:
            yield bus
        finally:
            server.disconnect(bus.link)


@pytest.fixture(scope="session", params=["one_node", "three_nodes", "twin"])
async def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Site]:
    """A deployment with the streams of `PREFIX`; tests keep apart by the ids, keys and subjects that they use."""
    if request.param == "twin":
        yield Site(None)
        return
    start = one_node if request.param == "one_node" else three_nodes
    async with start(tmp_path_factory.mktemp("bus")) as deployment:
        async with connect(deployment.settings(PREFIX), SystemClock()) as bus:
            await bus.ensure_topology()
        yield Site(deployment)


@pytest.fixture
def deployment(site: Site) -> Deployment:
    """The real servers, for what only they do: they are killed, cut off, and asked by an operator."""
    if site.servers is None:
        pytest.skip("the twin has no servers")
    return site.servers


@pytest.fixture
async def bus(site: Site) -> AsyncGenerator[Bus]:
    """A connection of the test's own."""
    async with site.connection() as bus:
        yield bus
