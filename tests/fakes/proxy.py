"""A TCP proxy between a client and its server that loses, or keeps back, what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on. While `mute`, what the server sends is thrown away; what the client sends still arrives. Once it is
    `deafened`, nothing is read any more on the connections that there are. What the client sends from `held` on, once that
    comes, is kept back until `goes_on`; `holds` tells that it came."""

    def __init__(self, url: str) -> None:
        target = urlsplit(url.split(",", maxsplit=1)[0])
        assert target.hostname is not None
        assert target.port is not None
        self._host, self._port = target.hostname, target.port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._hearing: set[asyncio.StreamReader] = set()
        self._stopped = asyncio.Event()
        self.mute = False
        # Bytes that were thrown away so far.
        self.lost = 0
        self.connections = 0
        self.held: bytes | None = None
        self.holds, self.goes_on = asyncio.Event(), asyncio.Event()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        self._stopped.set()
        self.goes_on.set()
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def cut(self) -> None:
        """Close all connections; clients may come again."""
        for writer in self._open:
            writer.close()

    def deafen(self) -> None:
        """Read nothing more from the clients that are here; others are heard."""
        self._hearing.clear()

    def inject(self, data: bytes) -> None:
        """Send something to the clients as if the server had."""
        for writer in self._open:
            writer.write(data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._open.add(writer)
        self._hearing.update((reader, up_reader))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, up_writer, from_server=False))
                group.create_task(self._pass_on(up_reader, writer, from_server=True))
        finally:
            self._open.discard(writer)
            writer.close()
            up_writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, from_server: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if from_server and self.mute:
                    self.lost += len(data)
                    continue
                if reader not in self._hearing:
                    await self._stopped.wait()
                    break
                if not from_server and self.held is not None and self.held in data:
                    self.holds.set()
                    await self.goes_on.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            # One side is gone; so is the other, then.
            pass
        writer.close()


@asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[Proxy]:
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
