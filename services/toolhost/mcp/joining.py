"""How MCP servers join the tools of this host.

Invariant: where no server is configured, nothing of the protocol's package is loaded: that takes a second of every start,
and tens of megabytes.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from libs.contracts.clock import Clock
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.processes import Processes
from services.toolhost.registry import Registry
from services.toolhost.sandbox import Sandbox
from services.toolhost.tools.catalog import Tool


class Surroundings(NamedTuple):
    """What servers that are programs are run with. `folder` is theirs: each has one of its own in it, which stays."""

    processes: Processes
    sandbox: Sandbox
    folder: Path


class Guests(NamedTuple):
    """`changed` is set when the registry has other tools. `ready` returns when it is time to say what there is."""

    changed: asyncio.Event
    notes: Callable[[], dict[str, str]]
    ready: Callable[[], Awaitable[None]]


@asynccontextmanager
async def joined(
    servers: Sequence[McpServer], around: Surroundings, registry: Registry, clock: Clock
) -> AsyncGenerator[Guests]:
    """While the context lasts, the tools of the servers are in the registry, as they come and go."""
    changed = asyncio.Event()
    if not servers:
        yield Guests(changed, dict, _at_once)
        return
    from services.toolhost.mcp.servers import served  # noqa: PLC0415 - see the invariant

    def renew(tools: Mapping[str, Tool]) -> None:
        registry.renew(tools)
        changed.set()

    async with served(servers, around, clock, renew) as running:
        yield Guests(changed, running.notes, running.ready)


async def _at_once() -> None:
    return
