"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds and an order for what the world sends.

Invariant: answers go out whole and in the order of their requests, the last words about bytes that are none included;
of what a client sends no more is kept than a head, a piece of a body, and a bounded number of requests that wait.
"""

import asyncio
from typing import Any, ClassVar, NamedTuple

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from libs.contracts.clock import Clock
from services.gateway.problems import overdue, unreadable

# A head has no more than this; what keeps sending one is no client.
HEAD_BYTES_MAX = 64 * 1024
# Around a body that comes in chunks of one byte are six others for each; what is more is no framing.
FRAMING_BYTES_MAX = 8 * 1024 * 1024
# Requests that were sent ahead of the answers to those before them. Browsers send none, and loops no hundred.
PIPELINED_MAX = 100
# Given twice, it is somebody's guess which one holds; between two servers that guess differently lies an attack.
ONCE = frozenset({b"authorization", b"content-type", b"host", b"idempotency-key", b"last-event-id"})


class Patience(NamedTuple):
    """How long a request may take to come: its head, from the first byte or the connection on, and then its body. A
    megabyte comes in time over any line; a client that sends a byte now and then would hold a connection for ever."""

    head_s: float = 15.0
    body_s: float = 60.0


PATIENCE = Patience()


class Connection(HttpToolsProtocol):
    """One connection. `clock` and `patience` are its server's (`connections`)."""

    clock: ClassVar[Clock]
    patience: ClassVar[Patience]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._due: asyncio.TimerHandle | None = None
        # The request whose answer is going out, or went out last.
        self._served: RequestResponseCycle | None = None
        self._in_head, self._in_body, self._asks_upgrade = True, False, False
        self._head_bytes = self._framing_bytes = self._piece_bytes = 0
        self._last_words: bytes | None = None

    # --- The connection ---

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect(self.patience.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None:
            return
        self._piece_bytes = len(data)
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
        elif self._in_body:
            self._framing_bytes += len(data)
        elif self._due is None and not self._is_behind():
            # Empty lines, or the rest of a body that was answered early: the keep-alive has been called off for it.
            self._expect(self.patience.head_s)
        if self._head_bytes > HEAD_BYTES_MAX or self._framing_bytes > FRAMING_BYTES_MAX:
            self.send_400_response("")

    def eof_received(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride] as asyncio has it
        # Who has asked and then shuts its side, as `nc -N` does, is answered; whose stream has begun is gone.
        served = self._served
        if served is None or served.response_started or self._in_head or self._in_body:
            return None
        self.cycle.keep_alive = False
        return True

    # --- Requests, as the parser finds them ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # Of the piece that it begins in, other requests may be the most.
        self._in_head, self._head_bytes = True, -self._piece_bytes
        self._expect(self.patience.head_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a body is no part of the head, whatever it is called (RFC 9110, 6.5.1).
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        self._expect_head()
        if self.parser.should_upgrade():
            self._asks_upgrade = True
            return
        self._in_head, self._in_body, self._framing_bytes = False, True, 0
        self._expect(self.patience.body_s)
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            # It knows no chunks: its answer ends with the connection.
            self.cycle.chunked_encoding, self.cycle.expected_content_length = False, _Unmeasured()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._asks_upgrade:
            return
        super().on_message_complete()
        # Between requests it is the keep-alive that counts.
        self._in_head, self._in_body = False, False
        self._head_bytes = self._framing_bytes = 0
        self._expect(None)

    def head_without_upgrade(self) -> bytes:
        """The head that was read, without the wish for another protocol. Called by the parser alone."""
        self._asks_upgrade = False
        version = self.parser.get_http_version().encode()
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(fields))

    def _expect_head(self) -> None:
        """Raise what the parser takes for a refusal when this is no head for us."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        single = [name for name, _ in self.headers if name in ONCE]
        # RFC 9112, 3.2.
        hosted = b"host" in single or self.parser.get_http_version() == "1.0"
        if (
            size > HEAD_BYTES_MAX
            or len(set(single)) < len(single)
            or not hosted
            or self.parser.get_method() == b"CONNECT"
            or len(self.pipeline) >= PIPELINED_MAX
        ):
            raise httptools.HttpParserError

    # --- Answers ---

    def on_response_complete(self) -> None:
        super().on_response_complete()
        words = self._last_words
        if words is not None and not self.transport.is_closing() and not self._is_behind():
            self._end_with(words)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 uvicorn names it so; it says less than ours
        if not self.transport.is_closing():
            self._end_with(unreadable(self.headers or (), self.clock))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _is_behind(self) -> bool:
        """Whether what comes in now comes behind a request that is not answered yet."""
        served = self._served
        if served is None or served.response_complete:
            return False
        return served is not self.cycle or not self._in_body

    def _end_with(self, answer: bytes) -> None:
        begun = self._served is not None and self._served.response_started
        if self._is_behind() and not begun:
            # In front of the answer to another request it would be taken for that.
            self._last_words = answer
            self._expect(None)
            self.flow.pause_reading()
            return
        # Within an answer it would be read as a part of it; and a body may be broken or late after its request was answered.
        answered = begun and (self._is_behind() or self._in_body)
        if not answered:
            self.transport.write(answer)
        self._let_go()
        self.transport.close()

    def _let_go(self) -> None:
        """Nobody reads what is still to be said. uvicorn tells only the newest request of a connection."""
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    # --- Time ---

    def _expect(self, within_s: float | None) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = None if within_s is None else self.loop.call_later(within_s, self._overdue)

    def _overdue(self) -> None:
        if self._is_behind():
            # It is us who do not read on.
            self._expect(self.patience.body_s)
        else:
            self._end_with(overdue(self.headers or (), self.clock))


def connections(clock: Clock, patience: Patience) -> type[Connection]:
    """The protocol of a server, for uvicorn's configuration."""

    class Served(Connection):
        pass

    Served.clock, Served.patience = clock, patience
    return Served


class _Parser(httptools.HttpRequestParser):
    """Reads a request that asks for another protocol as if it did not (RFC 9110, 7.8). Some clients ask for HTTP/2 with
    every first request; the parser as it is would take the body of such a one for the other protocol."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        while True:
            try:
                super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._connection.head_without_upgrade() + data[upgrade.args[0] :]
            else:
                return


class _Unmeasured(int):
    """A length that is never exceeded, used up or missed, for an answer that ends with its connection."""

    def __lt__(self, other: int) -> bool:
        return False

    def __sub__(self, other: int) -> "_Unmeasured":
        return self

    def __ne__(self, other: object) -> bool:
        return False
