"""All MCP servers of this host, as tools among its others.

Invariant: a server that is slow, away or broken costs its own tools and nothing else; its tools stay on offer once they
were listed, because runs that were promised them go on; all of them together stay below a bound.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import msgspec

from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.declarations import Offered
from services.toolhost.mcp.ending import Ending
from services.toolhost.mcp.http import address
from services.toolhost.mcp.joining import Surroundings
from services.toolhost.mcp.results import answer_of
from services.toolhost.mcp.server import Open, Server
from services.toolhost.mcp.session import Session, opened
from services.toolhost.mcp.stdio import program
from services.toolhost.mcp.texts import cleaned
from services.toolhost.tools import Arguments, Outcome, ToolContext
from services.toolhost.tools.catalog import Tool

# The catalog of a host is one message, 1 MiB at most, and its own tools are in it as well.
CATALOG_BYTES_MAX = 600 * 1024
# A host waits for its servers before it says what it offers, because a run keeps the tools that it began with; but not for
# long, because its other tools are waited for as well.
READY_S = 5.0
# What a record keeps of the server's own name for a tool.
_TOOL_CHARS_MAX = 128
# What health shows of all of them.
_NOTE_CHARS_MAX = 400

Publish = Callable[[Mapping[str, Tool]], None]


class Servers:
    """`publish` is called with all tools whenever some server has others."""

    def __init__(
        self, configs: Sequence[McpServer], around: Surroundings, clock: Clock, publish: Publish
    ) -> None:
        self._publish = publish
        self._servers = [
            Server(config, session_of(config, around, clock), clock, self._changed) for config in configs
        ]
        self._log = get_logger("mcp")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connected while the context lasts."""
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(server.run())
            try:
                yield
            finally:
                for server in self._servers:
                    server.close()

    def tools(self) -> dict[str, Tool]:
        """By name, in the order of the servers; what goes beyond the bound is left out."""
        found: dict[str, Tool] = {}
        held = 0
        for server in self._servers:
            left_out = 0
            for one in server.offered:
                size = len(msgspec.json.encode(one.spec))
                if held + size > CATALOG_BYTES_MAX:
                    left_out += 1
                    continue
                held += size
                found[one.spec.name] = Tool(spec=one.spec, run=partial(_run, server, one))
            if left_out:
                self._log.warning(
                    "mcp.tools_left_out",
                    server=server.config.name,
                    tools=left_out,
                    hint=f"all take more than {CATALOG_BYTES_MAX >> 10} KiB: name those that matter in `tools`",
                )
        return found

    def notes(self) -> dict[str, str]:
        """For health, which everybody sees: nothing of servers that are for some tenants only."""
        open_to_all = [server for server in self._servers if not server.config.tenants]
        said = "; ".join(f"{server.config.name}: {server.state}" for server in open_to_all)
        return {"mcp": said[:_NOTE_CHARS_MAX]} if said else {}

    async def ready(self) -> None:
        """Wait, a little, until each server has been tried."""
        try:
            async with asyncio.timeout(READY_S):
                for server in self._servers:
                    await server.tried.wait()
        except TimeoutError:
            late = [server.config.name for server in self._servers if not server.tried.is_set()]
            hint = "their tools are added when they come"
            self._log.warning("mcp.not_ready", servers=", ".join(late), hint=hint)

    def _changed(self) -> None:
        self._publish(self.tools())


@asynccontextmanager
async def served(
    configs: Sequence[McpServer], around: Surroundings, clock: Clock, publish: Publish
) -> AsyncGenerator[Servers]:
    """Connected to the servers while the context lasts."""
    # What the library logs holds what strangers have sent; what matters of it is said here.
    for chatty in ("mcp", "client"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    servers = Servers(configs, around, clock, publish)
    async with servers.running():
        yield servers


def session_of(config: McpServer, around: Surroundings, clock: Clock) -> Open:
    """How to connect to a server, by what it is."""

    def opening(ending: Ending) -> AbstractAsyncContextManager[Session]:
        if config.url:
            return opened(config, address(config, ending), ending)
        log = get_logger("mcp").bind(server=config.name)
        return opened(config, program(around, config, ending, clock.entropy(6).hex(), log), ending)

    return opening


async def _run(server: Server, one: Offered, context: ToolContext, arguments: Arguments) -> Outcome:
    result = await server.call(
        one.tool, arguments, timeout_s=context.timeout_s, stop=context.stop or asyncio.Event()
    )
    ok, output, metadata = answer_of(result, server.config.secrets, context.output_chars_max)
    facts = {"server": server.config.name, "tool": cleaned(one.tool, _TOOL_CHARS_MAX)}
    return Outcome(ok=ok, output=output, metadata={**facts, **metadata})
