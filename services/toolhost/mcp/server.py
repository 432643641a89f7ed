"""One server for as long as the host lives: connected, listed, and connected again when it has to be.

Invariant: there is one connection at a time, and one task in which it begins and ends. A call never waits for a connection
longer than the server may take to start, and is never sent over a second one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from mcp_types import CallToolResult

from libs.chassis.effects import Stopped
from libs.chassis.logs import get_logger
from libs.chassis.waiting import first_of
from libs.contracts.clock import Clock
from services.toolhost.errors import McpTimeout, McpUnavailable
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.declarations import Offered, offered
from services.toolhost.mcp.ending import FAULTS, Ending, reason_of
from services.toolhost.mcp.session import Session

# A server that never came up is tried again after this, longer each time. One that did is tried when it is needed.
RETRY_S, RETRY_MAX_S = 5.0, 300.0
# Lists that keep changing are read this often at most.
_REFRESH_PAUSE_S = 1.0
# To take leave of a server may take so long; a program is killed by then.
_LEAVE_S = 5.0
# The library takes care of a call's time; if it could not (its request found no way out), this much later we do.
_OVERDUE_S = 2.0

T = TypeVar("T")
Open = Callable[[Ending], AbstractAsyncContextManager[Session]]


class Server:
    """`run` is its task; `changed` is called when `offered` is another list."""

    def __init__(
        self, config: McpServer, open_session: Open, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self.config = config
        self.offered: list[Offered] = []
        self.state = "not connected yet"
        # Set once the first try to connect has come to something.
        self.tried = asyncio.Event()
        self._open, self._clock, self._changed = open_session, clock, changed
        self._session: Session | None = None
        # The connection that is being made, or will be next: a session, or why there is none.
        self._attempt: asyncio.Future[Session | str] | None = None
        self._starting: asyncio.Timeout | None = None
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._listed = False
        self._log = get_logger("mcp").bind(server=config.name)

    async def run(self) -> None:
        """Connects at once, and then when it is wanted; until `close`."""
        pause_s = RETRY_S
        while not self._closing.is_set():
            self._wanted.clear()
            if self._attempt is None:
                self._attempt = asyncio.get_running_loop().create_future()
            await self._connection(self._attempt)
            if self._listed:
                await first_of(self._wanted, self._closing)
            else:
                await self._wanted_within(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    def close(self) -> None:
        """End the connection, or the attempt at one; `run` returns when it is over."""
        self._closing.set()
        if self._session is None and self._starting is not None and not self._starting.expired():
            self._starting.reschedule(asyncio.get_running_loop().time())

    async def call(
        self, tool: str, arguments: dict[str, object], *, timeout_s: float, stop: asyncio.Event
    ) -> CallToolResult:
        """Raises `ToolFailure`, and `Stopped` when `stop` was set before there was an answer."""
        began_s = self._clock.monotonic()
        session = await self._connected(min(timeout_s, self.config.start_timeout_s), stop)
        left_s = max(0.1, timeout_s - (self._clock.monotonic() - began_s))
        try:
            async with asyncio.timeout(left_s + _OVERDUE_S):
                calling = asyncio.create_task(session.call(tool, arguments, left_s))
                return await _unless_stopped(calling, stop)
        except TimeoutError:
            raise McpTimeout(f"the server took no call within {timeout_s:g} s") from None

    async def _connected(self, patience_s: float, stop: asyncio.Event) -> Session:
        if self._session is not None and self._session.ending.is_usable:
            return self._session
        if self._session is not None:
            self._session.ending.tell("another connection is needed")
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()
            self._wanted.set()
        waiting = asyncio.create_task(_result_of(self._attempt))
        try:
            async with asyncio.timeout(patience_s):
                found = await _unless_stopped(waiting, stop)
        except TimeoutError:
            found = f"it did not get ready within {patience_s:g} s"
        if isinstance(found, str):
            raise McpUnavailable(
                f"the MCP server {self.config.name} cannot be reached: {found}. Nothing was called."
            )
        return found

    async def _connection(self, attempt: asyncio.Future[Session | str]) -> None:
        """One connection, from its beginning to its end."""
        ending = Ending(self.config.secrets)
        starting = self._starting = asyncio.timeout(self.config.start_timeout_s)
        try:
            async with starting, self._open(ending) as session:
                self._publish(session, offered(self.config, await session.tools()))
                self._session = session
                self._settle(attempt, session)
                starting.reschedule(None)
                await self._until_over(session)
                starting.reschedule(asyncio.get_running_loop().time() + _LEAVE_S)
        except TimeoutError:
            ending.tell("it did not get ready in time")
        except FAULTS as fault:
            ending.tell(reason_of(fault))
        finally:
            self._session = self._starting = None
            self._settle(attempt, ending.reason or "the connection was closed")
        if not self._closing.is_set():
            self.state = "not connected"
            self._log.warning("mcp.disconnected", reason=ending.reason)

    async def _until_over(self, session: Session) -> None:
        ending = session.ending
        async with _following(session, self._clock):
            while not (ending.over.is_set() or self._closing.is_set()):
                await first_of(ending.over, self._closing, session.stale)
                if session.stale.is_set() and ending.is_usable and not self._closing.is_set():
                    session.stale.clear()
                    await self._refresh(session)

    async def _refresh(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                self._publish(session, offered(self.config, await session.tools()))
        except TimeoutError:
            session.ending.tell("it did not list its tools in time")
        await self._clock.sleep(_REFRESH_PAUSE_S)

    def _publish(self, session: Session, found: list[Offered]) -> None:
        self._listed = True
        self.state = f"{len(found)} tools, protocol {session.protocol}"
        self._log.info("mcp.listed", tools=len(found), protocol=session.protocol)
        if found != self.offered:
            self.offered = found
            self._changed()

    def _settle(self, attempt: asyncio.Future[Session | str], result: Session | str) -> None:
        if not attempt.done():
            attempt.set_result(result)
            self._attempt = None
        self.tried.set()

    async def _wanted_within(self, pause_s: float) -> None:
        pausing = asyncio.create_task(self._clock.sleep(pause_s))
        wanting = asyncio.create_task(first_of(self._wanted, self._closing))
        try:
            await asyncio.wait({pausing, wanting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pausing.cancel()
            wanting.cancel()


@asynccontextmanager
async def _following(session: Session, clock: Clock) -> AsyncGenerator[None]:
    following = asyncio.create_task(session.follow(clock)) if session.tells_changes else None
    try:
        yield
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})


async def _result_of(attempt: asyncio.Future[Session | str]) -> Session | str:
    # Several calls may wait for one connection, and one that gives up takes nothing from the others.
    return await asyncio.shield(attempt)


async def _unless_stopped(working: asyncio.Task[T], stop: asyncio.Event) -> T:
    """What the task gives. It is cancelled, and over, when this raises `Stopped` or is cancelled itself."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped("the call was cancelled before the server had answered")
        return working.result()
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working})
        if not working.cancelled():
            working.exception()
