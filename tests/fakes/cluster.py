"""Three servers that form one cluster, as a deployment of one, so that a test need not know which it has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from deploy.dev.nats_server import Address, NatsServer, ServerSettings, free_port
from libs.bus.connection import BusSettings
from libs.chassis.clock import SystemClock

USER = "perdure"


class Deployment:
    """One server or several: their common address, and what can happen to them."""

    def __init__(self, servers: list[NatsServer]) -> None:
        self.servers = servers

    @property
    def replicas(self) -> int:
        return len(self.servers)

    @property
    def address(self) -> Address:
        """All servers in one address, as settings take them."""
        addresses = [server.address for server in self.servers]
        urls, monitors = (
            ",".join(part) for part in zip(*((a.url, a.monitor_url) for a in addresses), strict=True)
        )
        return Address(urls, addresses[0].user, addresses[0].password, monitors)

    def settings(self, prefix: str, *, url: str | None = None, shards: int = 1) -> BusSettings:
        address = self.address
        return BusSettings(
            url=url or address.url,
            user=address.user,
            password=address.password,
            creds=None,
            prefix=prefix,
            replicas=self.replicas,
            shards=shards,
            monitor_url=address.monitor_url,
            name="test",
        )

    async def crash(self) -> None:
        """Kill one server and start it again: the only one, or one of three, which may have led."""
        await self.servers[0].kill()
        await self.servers[0].start()

    async def restart(self) -> None:
        """The same in good order: a leader hands over first, which takes milliseconds instead of seconds."""
        await self.servers[0].stop()
        await self.servers[0].start()


@asynccontextmanager
async def one_node(folder: Path) -> AsyncGenerator[Deployment]:
    server = NatsServer(ServerSettings(folder))
    try:
        await server.start()
        yield Deployment([server])
    finally:
        await server.kill()


@asynccontextmanager
async def three_nodes(folder: Path) -> AsyncGenerator[Deployment]:
    """Three servers with their routes. Their first leader is elected within about two seconds."""
    routes = [free_port() for _ in range(3)]
    password = SystemClock().entropy(16).hex()
    servers = [
        NatsServer(
            ServerSettings(
                folder / f"n{number}",
                user=USER,
                password=password,
                name=f"n{number}",
                cluster=("perdure", route, routes),
            )
        )
        for number, route in enumerate(routes)
    ]
    try:
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(server.start)
        yield Deployment(servers)
    finally:
        for server in servers:
            await server.kill()
