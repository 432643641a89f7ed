"""`GET /api/runs/{id}/stream`, and the same of a project: replay of what is stored joined to what comes, as server-sent events.

Invariant: each client gets every event once and in order, and its id; what it cannot keep up with are deltas only.
Disconnecting changes nothing but this gateway's memory.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs.bus.ports import LogKey
from libs.chassis.logs import get_logger
from libs.contracts.errors import BusUnavailable, InvalidCursor, PerdureError
from services.gateway import edge
from services.gateway.frames import PING, RETRY, Shown
from services.gateway.problems import BARE_SEND
from services.gateway.watch import Head, Watch, Watches

# Proxies and clients give up on silence; the contract promises a sign of life every 15 s.
PING_S = 10.0
# One write: what a socket takes at once; a slow client is noticed after a few of them.
BLOCK_BYTES_MAX = 64 * 1024
# Each client costs two tasks and a socket buffer; beyond this another gateway should take them.
CLIENTS_MAX = 5000

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

_log = get_logger("gateway.stream")


class Wanted(NamedTuple):
    """What a client asked for. `after` is `None` when it follows from now."""

    after: int | None
    deltas: bool
    follow_suspended: bool


class StreamApi:
    """The stream endpoint over the watches of this gateway."""

    def __init__(self, watches: Watches, *, shards: int) -> None:
        self._watches, self._shards = watches, shards

    async def stream(self, request: Request, tenant: str) -> Response:
        key = LogKey(tenant, edge.log_id_of(request, self._shards))
        wanted = _wanted(request)
        if self._watches.clients >= CLIENTS_MAX:
            raise BusUnavailable(f"this gateway serves {CLIENTS_MAX} streams already", retry_after_s=5)
        async with AsyncExitStack() as stack:
            watch = await stack.enter_async_context(self._watches.watch(key))
            head = await _head_for(watch, wanted)
            after = head.last if wanted.after is None else wanted.after
            if after > head.last:
                raise InvalidCursor(f"{key.log_id} has {head.last} events; {after} is beyond its end")
            if after == head.last and head.ended(follow_suspended=wanted.follow_suspended):
                return Response(status_code=204)
            if request.method == "HEAD":
                return Response(headers=HEADERS)
            return EventStream(Reader(watch, after, wanted), stack.pop_all())


class Reader:
    """One client: the next event it wants, and its place in the window while it keeps up."""

    def __init__(self, watch: Watch, after: int, wanted: Wanted, *, ping_s: float = PING_S) -> None:
        self._watch, self._wanted, self._ping_s = watch, wanted, ping_s
        self._next = after + 1
        self._place: int | None = None
        self._position: int | None = None

    async def blocks(self) -> AsyncGenerator[bytes]:
        """What to write, a block at a time; ends when the stream does."""
        yield RETRY
        now = asyncio.get_running_loop().time
        # Counted from the last write: what comes and is not for this client must not keep it waiting for a ping.
        silent_until = now() + self._ping_s
        while not self._watch.closed:
            if self._keeps_up():
                block = self._from_window()
                if block:
                    yield block
                    silent_until = now() + self._ping_s
                elif self._done():
                    return
                elif not await self._watch.changed(silent_until):
                    yield PING
                    silent_until = now() + self._ping_s
            else:
                try:
                    async with self._watch.while_open():
                        events = await self._from_log()
                except TimeoutError:
                    return
                if events is None:
                    return
                if events:
                    yield b"".join(event.frame() for event in events)
                    silent_until = now() + self._ping_s

    def _keeps_up(self) -> bool:
        """Whether the window holds what this client wants next."""
        if self._place is None or self._place < self._watch.begin:
            if self._place is not None and self._wanted.deltas:
                self._watch.lose_up_to_begin(self._place, self._next)
            self._place = self._watch.place_of(self._next)
        return self._place is not None

    def _from_window(self) -> bytes:
        assert self._place is not None
        part = self._watch.part(self._place, self._next, BLOCK_BYTES_MAX, deltas=self._wanted.deltas)
        self._place, self._next = part.place, part.sequence
        if part.position is not None:
            self._position = part.position
        return part.block

    async def _from_log(self) -> list[Shown] | None:
        """The next events that the window no longer holds; `None` when they are gone: the run was deleted."""
        if self._position is None:
            self._position = await self._watch.replay.start(self._next)
        piece = await self._watch.replay.piece(self._position)
        if not piece.events:
            return None
        self._position = piece.position
        events = [event for event in piece.events if event.sequence >= self._next]
        if events and events[0].sequence != self._next:
            return None
        if events:
            self._next = events[-1].sequence + 1
        return events

    def _done(self) -> bool:
        head = self._watch.head
        return self._next > head.last and head.ended(follow_suspended=self._wanted.follow_suspended)


class EventStream(Response):
    """Writes the blocks of a reader until it ends or the client goes."""

    def __init__(self, reader: Reader, held: AsyncExitStack) -> None:
        super().__init__()
        self._reader, self._held = reader, held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
        async with self._held:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # What wraps `send` is for the head; an event need not pass through it for each client.
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write(scope[BARE_SEND]))
                leaving = group.create_task(_until_gone(receive, writing))
                writing.add_done_callback(lambda _: leaving.cancel())

    async def _write(self, send: Send) -> None:
        try:
            async with aclosing(self._reader.blocks()) as blocks:
                async for block in blocks:
                    await send({"type": "http.response.body", "body": block, "more_body": True})
        except PerdureError as error:
            # The client has its place: it comes again, here or elsewhere, and goes on from there.
            _log.warning("stream.broken", reason=repr(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive, writing: asyncio.Task[None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    writing.cancel()


async def _head_for(watch: Watch, wanted: Wanted) -> Head:
    """The head to judge the request by: what the watch knows serves a client that has something to read, and the
    leader is asked before anything is denied, and of an ended run, which may have been deleted meanwhile."""
    ended = watch.head.ended(follow_suspended=True)
    if wanted.after is not None and wanted.after < watch.head.last and not ended:
        return watch.head
    return await watch.confirmed_head()


def _wanted(request: Request) -> Wanted:
    """`Last-Event-ID` wins over `after_sequence` and over `replay=false`: a browser repeats the URL it began with."""
    resumed = request.headers.get("last-event-id")
    after = edge.sequence("Last-Event-ID", resumed)
    queried = edge.query_sequence(request, "after_sequence")
    replay = edge.flag(request, "replay", default=True)
    if resumed is None:
        after = (queried or 0) if replay or queried is not None else None
    return Wanted(
        after=after,
        deltas=edge.flag(request, "deltas", default=True),
        follow_suspended=edge.flag(request, "follow_suspended", default=False),
    )
