"""Whether the services that run are healthy: their liveness keys on the bus, and the gateway's own answer.

Invariant: only the process that runs now counts; the key that a killed predecessor left behind does not.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec

from libs.bus.connection import BusSettings, connect
from libs.bus.ports import Bucket
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable

_HTTP_S = 2.0
_HEAD_BYTES_MAX = 16_384


class ServiceHealth:
    """Ask with the pids of the services; the answer is what is missing, by service. Use as a context.

    The connection is made in the background, so that the launcher sees a server that does not start at once.
    """

    def __init__(self, url: str, bus: BusSettings) -> None:
        self._url, self._settings = url, bus
        self._leases: Bucket | None = None
        self._closing = asyncio.Event()
        self._connection: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._connection = asyncio.create_task(self._hold(), name="launcher-health")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        assert self._connection is not None
        self._connection.cancel()
        await asyncio.gather(self._connection, return_exceptions=True)

    async def __call__(self, pids: Mapping[str, int]) -> Mapping[str, str]:
        """Raises what the connection raised for good (`ConfigurationError`, `BusUnavailable`)."""
        assert self._connection is not None
        if self._connection.done():
            self._connection.result()
        if self._leases is None:
            return {"bus": "no connection"}
        try:
            keys = [
                msgspec.json.decode(entry.value, type=_Key)
                for entry in await self._leases.entries("replica.")
            ]
        except BusUnavailable:
            return {"bus": "no answer"}
        living = {key.pid for key in keys if not key.dead}
        missing = {name: "not on the bus" for name, pid in pids.items() if pid not in living}
        if not missing and not await _is_ready(self._url):
            missing = {"gateway": f"{self._url}/api/health/ready does not answer 200"}
        return missing

    async def _hold(self) -> None:
        async with connect(self._settings, SystemClock()) as bus:
            self._leases = bus.bucket("leases")
            await self._closing.wait()


class _Key(msgspec.Struct, frozen=True):
    """What of a liveness key counts here."""

    pid: int
    dead: bool = False


async def _is_ready(url: str) -> bool:
    """Whether the gateway answers 200 to the readiness question."""
    place = urlsplit(url)
    assert place.hostname is not None
    # A listener on every address is asked on the loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.hostname, place.hostname)
    try:
        async with asyncio.timeout(_HTTP_S):
            reader, writer = await asyncio.open_connection(host, place.port, limit=_HEAD_BYTES_MAX)
            try:
                writer.write(
                    f"GET /api/health/ready HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode()
                )
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return b" 200 " in status
