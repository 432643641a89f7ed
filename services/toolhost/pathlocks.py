"""One effect at a time for each file.

Invariant: between the plan of a change (whose digests are journaled) and its end, no other change of one of its files is
planned; waiters go in the order in which they came.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class PathLocks:
    """Locks by workspace and path; a lock exists only while somebody holds or awaits it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def holding(self, workspace_id: str, paths: Iterable[str]) -> AsyncGenerator[None]:
        """While the context lasts, nobody else holds one of the paths."""
        async with AsyncExitStack() as stack:
            # In one order for everybody, so that no two wait for each other.
            for path in sorted(set(paths)):
                await stack.enter_async_context(self._holding((workspace_id, path)))
            yield

    @asynccontextmanager
    async def _holding(self, key: tuple[str, str]) -> AsyncGenerator[None]:
        lock, users = self._held.get(key, (asyncio.Lock(), 0))
        self._held[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held.pop(key)
            if users > 1:
                self._held[key] = (lock, users - 1)
