"""The disk below the embedded server: told when it is full, and the server started again once there is room.

Invariant: nothing is deleted and nothing but the server is touched. nats-server needs the new start: a stream that met
a full disk stores nothing more until then, and what it may store in all is settled at its start, from the room there is.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from deploy.dev.mergedlog import MergedLog
from libs.bus.monitor import ailment
from libs.contracts.errors import ConfigurationError

_LOOK_S = 2.0
# Room that is worth a start: some thousand records. The server may fill three quarters of what it finds.
ROOM_BYTES = 16 * 1024 * 1024
# A server that started with less than this is started again whenever the room has doubled.
PLENTY_BYTES = 1024 * 1024 * 1024


def start_helps(free: int, *, ill: bool, at_start: int) -> bool:
    """Whether a server would be better off if it were started now, with `free` bytes instead of those `at_start`."""
    if free < ROOM_BYTES:
        return False
    return ill or (at_start < PLENTY_BYTES and free >= 2 * max(at_start, ROOM_BYTES // 2))


class ServerDisk:
    """`pid` is the server's, `None` while there is none; `restart` starts it again in good order."""

    def __init__(
        self,
        store: Path,
        monitor_url: str,
        log: MergedLog,
        *,
        pid: Callable[[], int | None],
        restart: Callable[[], None],
    ) -> None:
        self._store, self._monitor_url, self._log = store, monitor_url, log
        self._pid, self._restart = pid, restart

    async def watch(self) -> None:
        """Look after the server until cancelled."""
        known, at_start, ill, before = None, 0, "", self._free()
        while True:
            pid, free = self._pid(), self._free()
            if pid is not None and pid != known:
                # It started at some time since the last look.
                known, at_start, ill = pid, min(before, free), ""
                if at_start < ROOM_BYTES:
                    self._tell(at_start)
            elif pid is not None:
                if not ill and (ill := await self._ailment()):
                    self._tell(free, server_said=ill)
                if start_helps(free, ill=bool(ill), at_start=at_start):
                    self._log.say("disk.has_room", folder=str(self._store), free_bytes=free)
                    self._restart()
            before = free
            await asyncio.sleep(_LOOK_S)

    def _free(self) -> int:
        # The server makes its folder when it starts.
        return shutil.disk_usage(self._store if self._store.exists() else self._store.parent).free

    def _tell(self, free: int, **more: str) -> None:
        hint = f"make room ({ROOM_BYTES >> 20} MB at least); the server is then started again"
        self._log.say("disk.full", level="error", folder=str(self._store), free_bytes=free, hint=hint, **more)

    async def _ailment(self) -> str:
        try:
            return await ailment(self._monitor_url)
        except ConfigurationError:
            # It is frozen, or between two lives.
            return ""
