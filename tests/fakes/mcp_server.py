"""A well-behaved MCP server of the official package, over its standard streams or HTTP.

`python -m tests.fakes.mcp_server` speaks over stdin and stdout, with a port over HTTP (`/mcp`). What calls did is one line
each in the file `effects` of its working directory, written before anything else can go wrong. Pages hold three tools.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

PAGE = 3
BIG_CHARS = 10_000_000
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
Context = ServerRequestContext[object]
Arguments = dict[str, object]
Handler = Callable[[Context, Arguments], Awaitable[types.CallToolResult | types.InputRequiredResult]]

_subscriptions = InMemorySubscriptionBus()
_added: list[str] = []


def said(text: str, **fields: object) -> types.CallToolResult:
    content = [{"type": "text", "text": text}]
    return types.CallToolResult.model_validate({"content": content, **fields})


def record(line: str) -> None:
    descriptor = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


async def echo(_: Context, arguments: Arguments) -> types.CallToolResult:
    return said(str(arguments["text"]))


async def put(_: Context, arguments: Arguments) -> types.CallToolResult:
    record(f"put {arguments['key']}")
    return said("stored", structuredContent={"key": arguments["key"]})


async def charge(_: Context, arguments: Arguments) -> types.CallToolResult:
    """Something that must not happen twice; goes on until the file `go` is there, if it is to `hold`."""
    record(f"charge {arguments['amount']}")
    try:
        while arguments.get("hold") and not Path("go").exists():
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        record("cancelled")
        raise
    return said(f"charged {arguments['amount']}")


async def die(_: Context, arguments: Arguments) -> types.CallToolResult:
    record(f"die {arguments.get('by', '')}".strip())
    sys.stderr.write("out of luck\n")
    sys.stderr.flush()
    os._exit(3)


async def forms(_: Context, __: Arguments) -> types.CallToolResult:
    content: list[dict[str, object]] = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two"},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///notes.txt", "text": "held"}},
        {"type": "resource_link", "uri": "https://example.com/more", "name": "more"},
    ]
    fields = {"content": content, "structuredContent": {"code": 7}, "isError": True}
    return types.CallToolResult.model_validate(fields)


async def big(_: Context, __: Arguments) -> types.CallToolResult:
    return said("begin " + "x" * BIG_CHARS + " end")


async def empty(_: Context, __: Arguments) -> types.CallToolResult:
    return types.CallToolResult(content=[])


async def listed(_: Context, __: Arguments) -> types.CallToolResult:
    """A list: an item each, and wrapped, as servers do it."""
    content = [{"type": "text", "text": str(number)} for number in (1, 2)]
    return types.CallToolResult.model_validate({"content": content, "structuredContent": {"result": [1, 2]}})


async def refuse(_: Context, __: Arguments) -> types.CallToolResult:
    raise MCPError(code=-32602, message="no such account")


async def environment(_: Context, __: Arguments) -> types.CallToolResult:
    return said(json.dumps(dict(os.environ)), structuredContent={"folder": os.getcwd()})


async def headers(context: Context, _: Arguments) -> types.CallToolResult:
    request = context.request
    assert isinstance(request, Request)
    return said(json.dumps(dict(request.headers)))


async def ask(context: Context, _: Arguments) -> types.CallToolResult | types.InputRequiredResult:
    """What the client answers to questions that it never said it could."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        question = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": form}}
        return types.InputRequiredResult.model_validate({"inputRequests": {"who": question}})
    methods = ("elicitation/create", "roots/list", "sampling/createMessage")
    return said("; ".join([await _answer(context, method) for method in methods]))


async def _answer(context: Context, method: str) -> str:
    session = context.session
    try:
        if method == "roots/list":
            await session.list_roots()  # pyright: ignore[reportDeprecated] - clients of older protocols may have roots
        elif method == "elicitation/create":
            await session.elicit_form("Who?", {"type": "object", "properties": {}})
        else:
            await session.create_message([], max_tokens=1)  # pyright: ignore[reportDeprecated] - the same
    except MCPError as error:
        return f"{method}: {error.message}"
    return f"{method}: granted"


async def more(context: Context, arguments: Arguments) -> types.CallToolResult:
    """Adds a tool and says so."""
    _added.append(str(arguments["name"]))
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        await _subscriptions.publish(ToolsListChanged())
    else:
        await context.session.send_tool_list_changed()
    return said("added")


def _schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_STRING = {"type": "string"}
_TOOLS: dict[str, tuple[Handler, dict[str, object]]] = {
    "echo": (
        echo,
        {
            "inputSchema": _schema(text=_STRING),
            "annotations": {"readOnlyHint": True},
            "description": "Echoes.",
        },
    ),
    "put": (put, {"inputSchema": _schema(key=_STRING), "annotations": {"idempotentHint": True}}),
    "charge": (
        charge,
        {
            "inputSchema": {
                "type": "object",
                "properties": {"amount": {"type": "integer"}, "hold": {"type": "boolean"}},
                "required": ["amount"],
            }
        },
    ),
    "die": (die, {}),
    "forms": (forms, {}),
    "big": (big, {}),
    "empty": (empty, {}),
    "listed": (listed, {}),
    "refuse": (refuse, {}),
    "environment": (environment, {}),
    "headers": (headers, {}),
    "ask": (ask, {}),
    "more": (more, {"inputSchema": _schema(name=_STRING)}),
    "odd.name/of a tool": (echo, {"inputSchema": _schema(text=_STRING)}),
}


async def list_tools(_: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    declared = {**{name: fields for name, (_, fields) in _TOOLS.items()}, **{name: {} for name in _added}}
    tools = [{"name": name, "inputSchema": {"type": "object"}, **fields} for name, fields in declared.items()]
    begin = int(params.cursor) if params is not None and params.cursor else 0
    page: dict[str, object] = {"tools": tools[begin : begin + PAGE]}
    if begin + PAGE < len(tools):
        page["nextCursor"] = str(begin + PAGE)
    return types.ListToolsResult.model_validate(page)


async def call_tool(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    known = _TOOLS.get(params.name)
    if known is None:
        return said(f"{params.name} was called")
    return await known[0](context, dict(params.arguments or {}))


def server() -> Server[object]:
    return Server[object](
        "fake",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscriptions_listen=ListenHandler(_subscriptions),
    )


async def speak() -> None:
    fake = server()
    changes = NotificationOptions(tools_changed=True)
    async with stdio_server() as (heard, said_):
        await fake.run(heard, said_, fake.create_initialization_options(changes))


async def listen(port: int) -> None:
    config = uvicorn.Config(server().streamable_http_app(), host="127.0.0.1", port=port, log_level="warning")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(listen(int(sys.argv[1])) if len(sys.argv) > 1 else speak())
