"""Take-over: makes deaths certain, and lets go of what the dead held.

Invariant: a run is given to another executor only after its owner's death is written; a suspect that answers keeps
everything. Only the leader asks; repeating any of this changes nothing (key: the boot).
"""

import asyncio

from libs.bus.ports import Bucket, Liveness, Queue
from libs.chassis.logs import get_logger
from libs.contracts.errors import Unavailable
from libs.contracts.leases import LeaseValue
from libs.contracts.streams import host_consumer
from libs.contracts.subjects import Subjects, catalog_key
from services.scheduler.leadership import Leadership
from services.scheduler.replicas import HARMLESS, Replicas

# Suspects asked at the same time: a whole rack is asked within a few rounds, and the leader is not busy with it.
ASKS_MAX = 16

_log = get_logger("takeover")


class Takeover:
    """Asks suspects, and clears up behind dead tool hosts."""

    def __init__(
        self, liveness: Liveness, replicas: Replicas, queue: Queue, subjects: Subjects, catalog: Bucket
    ) -> None:
        self._liveness, self._replicas = liveness, replicas
        self._queue, self._subjects, self._catalog = queue, subjects, catalog
        self._asked: set[str] = set()
        self._hosts: set[str] = set()

    def died(self, replica: LeaseValue) -> None:
        """A death is written: what the bus keeps for this process by name is to be removed.

        The value may not say what it was; where there is nothing to remove, nothing is.
        """
        if replica.service not in HARMLESS:
            self._hosts.add(replica.boot)
            self._replicas.suspected.set()

    async def attend(self, leadership: Leadership, *, again_s: float) -> None:
        """Ask every suspect, at once and then every `again_s` while it is one, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait(again_s)
                hosts, self._hosts = self._hosts, set()
                if not leadership.leads:
                    continue  # The leader sees the same suspects; what it leaves undone the sweep finds.
                for boot in hosts:
                    group.create_task(self._clear(boot))
                for boot in sorted(self._replicas.suspects - self._asked)[: ASKS_MAX - len(self._asked)]:
                    self._asked.add(boot)
                    group.create_task(self._ask(boot))

    async def find_hosts(self) -> None:
        """Have those cleared that left a catalog and are dead, and those asked of whom nobody knows."""
        for entry in await self._catalog.entries():
            if self._replicas.is_dead(entry.key):
                self._hosts.add(entry.key)
            elif not self._replicas.is_alive(entry.key):
                self._replicas.suspect(entry.key)
        self._replicas.suspected.set()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._replicas.suspected.wait()
        except TimeoutError:
            pass
        self._replicas.suspected.clear()

    async def _ask(self, boot: str) -> None:
        try:
            if await self._liveness.declare_dead_if_gone(boot):
                # The watch of the bucket brings the death back to every scheduler, this one included.
                _log.warning("replica.dead", boot=boot)
        except Unavailable as error:
            _log.warning("replica.unasked", boot=boot, message=error.message)
        finally:
            self._asked.discard(boot)

    async def _clear(self, boot: str) -> None:
        try:
            await self._queue.remove_consumer(host_consumer(self._subjects, boot))
            await self._catalog.delete(catalog_key(boot))
        except Unavailable as error:
            _log.warning("host.uncleared", boot=boot, message=error.message)
        else:
            _log.info("host.cleared", boot=boot)
