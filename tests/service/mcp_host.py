"""A tool host with MCP servers, as its tests see it: the servers it has, calls of a run, and what is left of processes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.leases import LeaseValue
from libs.contracts.subjects import catalog_key, replica_key
from libs.contracts.tools import HostCatalog, Semantics, ToolCall, ToolResult, ToolSpec
from services.toolhost.workspace import HIDDEN_FOLDER
from tests.fakes.bus import bus_settings
from tests.fakes.waiting import eventually
from tests.service.hosting_owner import Owner, owned_run, toolhost

CHECKOUT = Path(__file__).parents[2]
_numbers = itertools.count(1)

# Without it somebody has to approve every call.
ALLOWED = json.dumps({"rules": [{"effect": "allow", "tool": "mcp_*"}]})

Entry = dict[str, object]


def official(**fields: object) -> Entry:
    """The server of the official package, over its standard streams."""
    entry: Entry = {
        "command": [sys.executable, "-m", "tests.fakes.mcp_server"],
        "environment": {"PYTHONPATH": str(CHECKOUT)},
        "readable": [str(CHECKOUT)],
        "start_timeout_s": 120,
    }
    return {**entry, **fields}


def rogue(*ways: str, **fields: object) -> Entry:
    """One that misbehaves in these ways."""
    entry: Entry = {
        "command": [sys.executable, "-S", str(CHECKOUT / "tests/fakes/mcp_rogue.py"), *ways],
        "readable": [str(CHECKOUT / "tests/fakes")],
        "start_timeout_s": 60,
    }
    return {**entry, **fields}


class Guest:
    """A run on a host with servers, whose folders are in `folder`."""

    def __init__(self, bus: Bus, boot: str, folder: Path, owner: Owner) -> None:
        self.bus, self.boot, self.folder, self.owner = bus, boot, folder, owner
        self._calls = 0

    def call(
        self, name: str, /, *, limits: Mapping[str, object] | None = None, **arguments: object
    ) -> ToolCall:
        self._calls += 1
        changes = {
            "semantics": Semantics.NON_IDEMPOTENT,
            "workspace": "",
            "workspace_id": "",
            **(limits or {}),
        }
        return self.owner.call(name, arguments, f"call_1_{self._calls}", **changes)

    async def begin(self, call: ToolCall) -> None:
        await self.owner.send(self.bus.subjects.tool_host(self.boot), call)

    async def do(
        self, name: str, /, *, limits: Mapping[str, object] | None = None, **arguments: object
    ) -> ToolResult:
        return await self.owner.effect(self.boot, self.call(name, limits=limits, **arguments))

    async def specs(self) -> dict[str, ToolSpec]:
        entry = await self.bus.bucket("catalog").get(catalog_key(self.boot))
        assert entry is not None
        return {spec.name: spec for spec in msgspec.json.decode(entry.value, type=HostCatalog).tools}

    async def offered(self, *names: str) -> dict[str, ToolSpec]:
        """The catalog, once it has these tools."""
        return await eventually(
            self.specs, f"{', '.join(names)} on offer", fits=lambda found: {*names} <= {*found}
        )

    async def note(self) -> str:
        """What health says of the servers."""
        entry = await self.bus.bucket("leases").get(replica_key(self.boot))
        assert entry is not None
        return msgspec.json.decode(entry.value, type=LeaseValue).info.get("mcp", "")

    def effects(self, server: str) -> list[str]:
        """What the server has done."""
        file = self.folder / server / "effects"
        return file.read_text().splitlines() if file.exists() else []


@asynccontextmanager
async def hosting(
    nats: NatsServer, root: Path, servers: Mapping[str, Entry], *, sandbox: str = "none", **more: str
) -> AsyncGenerator[Guest]:
    """A host with these servers, and a run on it."""
    async with connect(bus_settings(nats.address), SystemClock()) as bus:
        await bus.ensure_topology()
        variables = {"PERDURE_MCP": json.dumps(servers), "PERDURE_POLICY": ALLOWED, **more}
        async with toolhost(bus, root, sandbox=sandbox, more=variables) as boot:
            yield Guest(bus, boot, root / HIDDEN_FOLDER / "mcp", await owned_run(bus, f"p{next(_numbers)}"))


async def another_run(guest: Guest) -> Guest:
    return Guest(guest.bus, guest.boot, guest.folder, await owned_run(guest.bus, f"p{next(_numbers)}"))


def processes_of(server: str) -> list[int]:
    """The living processes of a server."""
    wanted = f"PERDURE_CALL=mcp.{server}.".encode()
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(one.startswith(wanted) for one in (folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return found
