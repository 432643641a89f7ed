"""One connection to one server, from its greeting to its end.

Invariant: a call is sent once, by one request; what comes back is its answer, or a failure that says whether it may have
happened. What the server asks of us (to sample, to ask a person, for folders) is answered by "not supported".
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.metadata import version as installed_version

from mcp.client import Client, IncomingMessage
from mcp.client._transport import TransportStreams
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from libs.contracts.clock import Clock
from services.toolhost.errors import McpConnectionLost, McpRefused, McpTimeout
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.ending import FAULTS, Ending, reason_of

# A server that has more pages goes round in circles, or has more than anybody can use.
PAGES_MAX = 50
LISTED_MAX = 1000
# A stream of changes that breaks off is opened again after this, longer each time.
_LISTEN_AGAIN_S, _LISTEN_AGAIN_MAX_S = 1.0, 60.0
# Who waits for an answer hears of the end of the connection a little before the task that knows why.
_REASON_S = 0.5
_ANSWER = TypeAdapter[CallToolResult | InputRequiredResult](CallToolResult | InputRequiredResult)
_CLIENT = Implementation(name="perdure", version=installed_version("perdure"))
_LOOK_FIRST = "Whether it took effect is not known: look before you call it again."


class Session:
    """Used while `ending.over` is not set. `stale` is set when the server says that its tools have changed."""

    def __init__(self, server: McpServer, client: Client, ending: Ending, stale: asyncio.Event) -> None:
        self.ending, self.stale = ending, stale
        self._server, self._client = server, client

    @property
    def protocol(self) -> str:
        return self._client.protocol_version

    @property
    def tells_changes(self) -> bool:
        """Whether changes have to be asked for: earlier protocols tell them anyway."""
        tools = self._client.server_capabilities.tools
        asked = self.protocol in MODERN_PROTOCOL_VERSIONS
        return asked and tools is not None and bool(tools.list_changed)

    async def tools(self) -> list[Tool]:
        """All tools, page by page, `LISTED_MAX` at most. Raises what is in `FAULTS`."""
        if self._client.server_capabilities.tools is None:
            return []
        found: list[Tool] = []
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or cursor in cursors or len(found) > LISTED_MAX:
                break
            cursors.add(cursor)
        return found[:LISTED_MAX]

    async def call(self, tool: str, arguments: dict[str, object], timeout_s: float) -> CallToolResult:
        """Raises `McpRefused`, `McpConnectionLost` and `McpTimeout`. Whoever cancels this has the server told."""
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            result = await self._client.session.send_request(
                request, _ANSWER, request_read_timeout_seconds=timeout_s
            )
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                await self.ending.told(_REASON_S)
            raise self._failure(error, timeout_s) from None
        except FAULTS as fault:
            raise McpConnectionLost(f"{self.ending.fit(reason_of(fault))}. {_LOOK_FIRST}") from None
        if isinstance(result, InputRequiredResult):
            raise McpRefused("the tool asks for input while it works, which is not supported here")
        return result

    async def follow(self, clock: Clock) -> None:
        """Hear of changes of the tools, for as long as this is not cancelled."""
        pause_s = _LISTEN_AGAIN_S
        while True:
            with suppress(SubscriptionLost, *FAULTS):
                async with self._client.listen(tools_list_changed=True) as changes:
                    pause_s = _LISTEN_AGAIN_S
                    async for _ in changes:
                        self.stale.set()
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LISTEN_AGAIN_MAX_S)
            # What happened meanwhile was told to nobody.
            self.stale.set()

    def _failure(self, error: MCPError, timeout_s: float) -> McpRefused | McpConnectionLost | McpTimeout:
        ending = self.ending
        if error.code == REQUEST_TIMEOUT:
            return McpTimeout(
                f"the server did not answer within {timeout_s:g} s and was told to stop. {_LOOK_FIRST}"
            )
        if error.code == CONNECTION_CLOSED:
            lost = ending.reason or ending.fit(error.message)
            return McpConnectionLost(f"the server was lost during the call ({lost}). {_LOOK_FIRST}")
        if ending.disowned:
            ending.tell("the server does not know the session any more")
            return McpRefused(
                "the server does not know the session any more and did not take the call; call again, a new one is made"
            )
        if ending.doubted:
            ending.tell("the server refused a request as bad, perhaps because of the session")
        return McpRefused(f"{ending.fit(error.message)} ({error.code})")


@asynccontextmanager
async def opened(
    server: McpServer, way: AbstractAsyncContextManager[TransportStreams], ending: Ending
) -> AsyncGenerator[Session]:
    """A session with a server that has answered. Raises what is in `FAULTS`, also at the end of the context."""
    stale = asyncio.Event()

    async def heard(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            stale.set()

    # A cache of lists would hide from a listing what it is there to see.
    client = Client(
        way,
        mode="legacy" if server.handshake else "auto",
        client_info=_CLIENT,
        message_handler=heard,
        cache=None,
    )
    async with client:
        yield Session(server, client, ending, stale)
