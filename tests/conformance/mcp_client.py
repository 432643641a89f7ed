"""Our MCP client as the public conformance suite starts it: it connects to the address, and calls every tool once, or makes
the calls that the suite asks for (`MCP_CONFORMANCE_CONTEXT`).

Run as `python -m tests.conformance.mcp_client URL`. Everything is what a tool host uses; only arguments are made up here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import cast

import msgspec

from libs.chassis.clock import SystemClock
from services.toolhost.errors import ToolFailure
from services.toolhost.mcp.configuration import parse_servers
from services.toolhost.mcp.joining import Surroundings
from services.toolhost.mcp.server import Server
from services.toolhost.mcp.servers import session_of
from services.toolhost.processes import Processes
from services.toolhost.sandbox.none import NoSandbox


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, object] = {}


class _Context(msgspec.Struct, rename="camel"):
    tool_calls: list[_Call] = []


_MADE_UP: dict[object, object] = {
    "number": 5,
    "integer": 5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


async def main(url: str) -> int:
    """0 when the server could be listed and every call came to something."""
    clock = SystemClock()
    around = Surroundings(Processes(clock=clock, inherited={}), NoSandbox(), Path.cwd())
    (config,) = parse_servers(json.dumps({"suite": {"url": url, "start_timeout_s": 20}}), {})
    server = Server(config, session_of(config, around, clock), clock, lambda: None)
    running = asyncio.create_task(server.run())
    await server.tried.wait()
    sys.stderr.write(f"{server.state}\n")
    for tool, arguments in wanted() or [(one.tool, made_up(one.spec.parameters)) for one in server.offered]:
        try:
            result = await server.call(tool, arguments, timeout_s=15, stop=asyncio.Event())
            sys.stderr.write(f"{tool}{arguments}: {result.content}\n")
        except ToolFailure as failure:
            sys.stderr.write(f"{tool}{arguments}: {failure.code} {failure.message}\n")
    listed = server.is_connected
    server.close()
    await running
    return 0 if listed else 1


def wanted() -> list[tuple[str, dict[str, object]]]:
    """The calls that the suite asks for, if it does."""
    context = msgspec.json.decode(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}", type=_Context)
    return [(call.name, call.arguments) for call in context.tool_calls]


def made_up(schema: dict[str, object]) -> dict[str, object]:
    """Arguments that fit a simple schema."""
    properties = cast("dict[str, dict[str, object]]", schema.get("properties", {}))
    return {name: _value(node) for name, node in properties.items()}


def _value(node: dict[str, object]) -> object:
    if "enum" in node:
        return cast("list[object]", node["enum"])[0]
    kind = node.get("type")
    return _MADE_UP.get(kind if isinstance(kind, str) else None, "text")


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
