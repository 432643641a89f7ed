"""Which tool hosts live and what they offer, kept warm by watching the catalog and the leases.

Invariant: a host counts only while both its catalog entry and its liveness key are there; what is kept here is a
hint, a death is believed only from a leader read (`Liveness.is_dead`).
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from libs.bus.ports import Bus
from libs.chassis.logs import get_logger
from libs.contracts.errors import UNREADABLE
from libs.contracts.leases import LeaseValue
from libs.contracts.subjects import replica_key
from libs.contracts.tools import RUN_TOOLS, HostCatalog, ToolSpec

T = TypeVar("T")

# How long a run waits for a tool host before it settles what it offers its model, so that this is not without tools at
# start-up; for a tool that its task names, once there is a host; and for any host, before it lets go of its place.
HOSTS_WAIT_S = 30.0
_REPLICA_PREFIX = replica_key("")


class Hosts:
    """The hosts as last seen. `watch` keeps it warm until cancelled."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._catalogs: dict[str, HostCatalog] = {}
        self._alive: set[str] = set()
        self._changed = asyncio.Event()
        self._log = get_logger("hosts")
        self._decoder = msgspec.json.Decoder(HostCatalog)
        self._leases = msgspec.json.Decoder(LeaseValue)

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_catalog())
            group.create_task(self._watch_leases())

    def alive(self, boot: str) -> bool:
        """Whether the host's liveness key was there when last seen."""
        return boot in self._alive

    def ready(self) -> bool:
        """Whether some live host can hold workspaces."""
        return any(catalog.workspaces and boot in self._alive for boot, catalog in self._catalogs.items())

    def tools(self, tenant: str) -> dict[str, ToolSpec]:
        """Every tool that some live workspace host or other unshared host offers this tenant, by name. Of two with one
        name that of the workspace counts: nobody else's `read_file` is taken for it."""
        catalogs = sorted(self._catalogs.items(), key=lambda one: (one[1].workspaces, one[0]))
        return {
            spec.name: spec
            for boot, catalog in catalogs
            if boot in self._alive and not catalog.shared
            for spec in catalog.tools
            if spec.is_for(tenant) and spec.name not in RUN_TOOLS
        }

    def workspace_host(self, workspace_id: str, root: str = "") -> HostCatalog | None:
        """A live host for a workspace that has none, one that finds it in its own folder (`root`) before others: the
        same choice in every executor while the hosts are the same."""
        able = [catalog for catalog in self._catalogs.values() if catalog.workspaces]
        near = [catalog for catalog in able if catalog.root == root]
        return self._rendezvous(near, workspace_id) or self._rendezvous(able, workspace_id)

    def offering(self, name: str, tenant: str, spread: str) -> HostCatalog | None:
        """A live host that offers the tenant the tool, spread over hosts by `spread` (a run id)."""
        able = [
            catalog
            for catalog in self._catalogs.values()
            if any(spec.name == name and spec.is_for(tenant) for spec in catalog.tools)
        ]
        return self._rendezvous(able, spread)

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for the hosts to fulfil `condition`; whether they did within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until a host has come, gone or died."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _rendezvous(self, able: list[HostCatalog], key: str) -> HostCatalog | None:
        live = [catalog for catalog in able if catalog.boot in self._alive]
        return max(live, key=lambda host: hashlib.sha256(f"{host.boot}{key}".encode()).digest(), default=None)

    async def _watch_catalog(self) -> None:
        async with self._bus.bucket("catalog").watch() as changes:
            async for key, value in changes:
                # Hosts in other languages write here too: what does not decode offers nothing.
                catalog = self._decoded(self._decoder, key, value)
                if catalog == self._catalogs.get(key):
                    continue
                if catalog is not None:
                    self._catalogs[key] = catalog
                else:
                    self._catalogs.pop(key, None)
                self._changed.set()

    async def _watch_leases(self) -> None:
        async with self._bus.bucket("leases").watch() as changes:
            async for key, value in changes:
                if not key.startswith(_REPLICA_PREFIX):
                    continue
                boot = key.removeprefix(_REPLICA_PREFIX)
                # A written death keeps the key, so the value has to be read; a renewal changes nothing.
                lease = self._decoded(self._leases, key, value)
                if lease is not None and not lease.dead:
                    if boot in self._alive:
                        continue
                    self._alive.add(boot)
                else:
                    self._alive.discard(boot)
                self._changed.set()

    def _decoded(self, decoder: msgspec.json.Decoder[T], key: str, value: bytes | None) -> T | None:
        if value is None:
            return None
        try:
            return decoder.decode(value)
        except UNREADABLE as error:
            self._log.warning("hosts.unreadable", key=key, error=str(error))
            return None
