"""An object store without a server.

Invariant: none of its own: it holds what it was given.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from libs.bus.ports import Blobs
from libs.contracts.errors import BusUnavailable


class Objects(Blobs):
    """An object store in memory, whose objects a test may take away or change; it may be away itself."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.away = False

    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    async def get(self, name: str) -> bytes | None:
        if self.away:
            raise BusUnavailable("the store is away")
        return self.objects.get(name)

    async def put_file(self, name: str, path: Path) -> None:
        await self.put(name, path.read_bytes())

    async def get_file(self, name: str, path: Path) -> bool:
        data = await self.get(name)
        if data is not None:
            path.write_bytes(data)
        return data is not None

    async def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.objects if name.startswith(prefix)]

    async def remove(self, name: str) -> None:
        self.objects.pop(name, None)

    async def remove_older(self, name: str, before: datetime) -> bool:
        del before
        return self.objects.pop(name, None) is not None

    async def remove_unnamed(self, before: datetime, most: int) -> int:
        del before, most
        return 0
