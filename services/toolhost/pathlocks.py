"""One effect at a time for each file.

Invariant: between the plan of a change (whose digests are journaled) and its end, no other change of the same file is
planned; waiters go in the order in which they came.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class PathLocks:
    """Locks by workspace and path; a lock exists only while somebody holds or awaits it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def holding(self, workspace_id: str, path: str) -> AsyncGenerator[None]:
        key = (workspace_id, "/".join(part for part in path.split("/") if part not in ("", ".")))
        lock, users = self._held.get(key, (asyncio.Lock(), 0))
        self._held[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held.pop(key)
            if users > 1:
                self._held[key] = (lock, users - 1)
