"""The raw connection: publish, request, gather, subscribe. The only file that holds a client of the vendor's.

Invariant: the connection comes back by itself for ever; a request whose answer cannot come any more (connection lost,
nobody there, time over) ends at once, as `BusUnavailable`, and never later than its timeout; while the socket takes nothing,
not before that is noticed.

Messages are handed over inside the reading task, without a queue or a task per subscription: thousands of
subscriptions cost nothing while idle, and nothing is ever left behind for a drain to wait on. A sink therefore only
looks, parses integers and stores; it must not raise, because that would end the reading.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import NamedTuple, cast

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from libs.bus.natsclient import GONE, NatsClient, ended, heeded
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, ConfigurationError, NobodyThere, PayloadTooLarge
from libs.contracts.streams import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX

Sink = Callable[[Msg], None]

# Three missed pings are noticed within 6 s, before the patience of an append (15 s) is used up.
PING_S = 2
PINGS_OUTSTANDING_MAX = 2
RECONNECT_WAIT_S = 0.25
CONNECT_TIMEOUT_S = 2
# How long a starting process waits for its server; the launcher starts both at the same time.
START_PATIENCE_S = 30.0
# What may wait for the socket before a publisher is made to wait: a few of the largest messages. How long it waits then:
# as long as it takes to notice that the server is gone.
PENDING_BYTES_MAX = 8 * 1024 * 1024
PENDING_WAIT_S = PING_S * (PINGS_OUTSTANDING_MAX + 1)
# How long the last of what was published may take to arrive when the connection is closed.
FLUSH_S = 1

_log = logging.getLogger("perdure.bus")


class Credentials(NamedTuple):
    """How to get in: user and password, or the path of a creds file, or nothing."""

    url: str
    user: str | None
    password: str | None
    creds: str | None
    name: str


class Interest:
    """A subscription that survives the connection. `stop` ends it; quiet when the connection is gone."""

    def __init__(self, link: "Link", subject: str, queue: str, sink: Sink) -> None:
        self.subject, self.queue, self.sink = subject, queue, sink
        self._link = link
        self._live: Subscription | None = None

    async def attach(self, client: Client) -> None:
        """Subscribe on a fresh client. Called by the link alone."""
        # The client hands a message to a subscription's future by `set_result` in the reading task, for ever.
        receiver = cast("asyncio.Future[Msg]", _Receiver(self.sink))
        self._live = await heeded(
            client.subscribe(self.subject, queue=self.queue, future=receiver)  # pyright: ignore[reportUnknownMemberType] the client leaves its futures untyped
        )

    async def stop(self) -> None:
        """No message is handed over once this has been called, not even while it waits."""
        self._link.forget(self)
        live, self._live = self._live, None
        if live is not None:
            try:
                await heeded(live.unsubscribe())
            except GONE:
                # Closed or draining: there is nothing left to unsubscribe from.
                return


class Link:
    """One connection of one process. Made by `open_link`."""

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._client = NatsClient()
        self._inbox = f"_INBOX.{base64.b32encode(clock.entropy(10)).decode().lower()}."
        self._requests = 0
        self._waiting: dict[str, _Waiter] = {}
        self._interests: dict[Interest, None] = {}
        self._up = asyncio.Event()
        self._closing = False
        self._barred: asyncio.Future[str] | None = None
        self._reviving: asyncio.Task[None] | None = None
        # Called, without a pause in between, each time the connection is back; they must not raise.
        self.reconnected: list[Callable[[], None]] = []

    # --- Life ---

    async def open(self) -> None:
        """Connect, waiting for the server. Raises `BusUnavailable`, or `ConfigurationError` when it is refused."""
        self._barred = asyncio.get_running_loop().create_future()
        connecting = asyncio.create_task(self._connect())
        place = _without_secrets(self._credentials.url)
        try:
            await asyncio.wait(
                {connecting, self._barred}, timeout=START_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self._barred.done():
                raise ConfigurationError(
                    f"the server at {place} does not let {self._credentials.name} in: "
                    f"{self._barred.result()}; check NATS_USER, NATS_PASSWORD and NATS_CREDS"
                )
            if not connecting.done():
                raise BusUnavailable(
                    f"no server answers at {place} within {START_PATIENCE_S:.0f} s; start it or set NATS_URL"
                )
            await connecting
        finally:
            self._barred = None
            await ended(connecting)
        await self.subscribe(f"{self._inbox}*", self._answered)

    async def close(self) -> None:
        """Flush what was published, close. Nothing comes back afterwards."""
        self._closing = True
        await ended(self._reviving)
        try:
            if self._up.is_set():
                await self._client.flush(timeout=FLUSH_S)
        except GONE:
            _log.warning("bus.closed_without_flush")
            self._client.drop()
        await self._close_client()
        while not self._client.is_closed:
            # It had just found the server again.
            await self._close_client()
        self._up.clear()
        self._fail_all("the connection is closed")

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def server_version(self) -> tuple[int, int, int]:
        """The version of the server that this process is connected to; (0, 0, 0) if it does not say."""
        version = self._client.connected_server_version
        try:
            return version.major, version.minor, version.patch
        except ValueError:
            return (0, 0, 0)

    @property
    def message_bytes_max(self) -> int:
        """What the server takes in one message, headers included."""
        return self._client.max_payload

    async def wait_connected(self, timeout_s: float) -> None:
        """Raises `BusUnavailable` when the connection is not back in time."""
        if self._up.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise BusUnavailable("there is no connection to the bus", retry_after_s=1) from None

    # --- Messages ---

    async def publish(
        self, subject: str, body: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send without an answer. Raises `BusUnavailable` while there is no connection."""
        if not self._up.is_set():
            raise BusUnavailable("there is no connection to the bus", retry_after_s=1)
        if len(body) + HEADER_BYTES_MAX > MESSAGE_BYTES_MAX:
            _expect_room(body, headers)
        try:
            await heeded(self._client.publish(subject, body, reply=reply, headers=headers))
        except GONE as error:
            raise BusUnavailable(f"cannot publish on {subject}: {error!r}", retry_after_s=1) from error

    async def request(
        self, subject: str, body: bytes = b"", *, timeout_s: float, headers: dict[str, str] | None = None
    ) -> Msg:
        """One answer. Raises `NobodyThere` when nobody listens, `BusUnavailable` for any other lack of one."""
        messages = await self._ask(_Waiter(None), subject, body, timeout_s, headers)
        return messages[0]

    async def gather(
        self, subject: str, body: bytes, *, timeout_s: float, last: Callable[[Msg], bool]
    ) -> list[Msg]:
        """All answers up to the one that is `last`, that one included. Raises as `request` does."""
        return await self._ask(_Waiter(last), subject, body, timeout_s, None)

    async def subscribe(self, subject: str, sink: Sink, *, queue: str = "") -> Interest:
        """Hand every message on `subject` to `sink` until `Interest.stop`."""
        await self.wait_connected(START_PATIENCE_S)
        interest = Interest(self, subject, queue, sink)
        self._interests[interest] = None
        try:
            await interest.attach(self._client)
        except GONE as error:
            self.forget(interest)
            raise BusUnavailable(f"cannot subscribe to {subject}: {error!r}", retry_after_s=1) from error
        return interest

    def new_inbox(self) -> str:
        """A prefix of this process's own: subscribe to `<it>.*`."""
        self._requests += 1
        return f"{self._inbox}{self._requests:x}"

    def forget(self, interest: Interest) -> None:
        self._interests.pop(interest, None)

    # --- Inside ---

    async def _ask(
        self, waiter: "_Waiter", subject: str, body: bytes, timeout_s: float, headers: dict[str, str] | None
    ) -> list[Msg]:
        if not self._up.is_set():
            await self.wait_connected(timeout_s)
        self._requests += 1
        token = f"{self._requests:x}"
        self._waiting[token] = waiter
        timer = asyncio.get_running_loop().call_later(
            timeout_s, waiter.fail, f"no answer on {subject} in {timeout_s} s"
        )
        try:
            await self.publish(subject, body, reply=self._inbox + token, headers=headers)
            return await waiter.future
        finally:
            timer.cancel()
            del self._waiting[token]

    def _answered(self, message: Msg) -> None:
        waiter = self._waiting.get(message.subject[len(self._inbox) :])
        if waiter is not None:
            waiter.take(message)

    async def _connect(self) -> None:
        client = NatsClient()
        self._client = client
        given = self._credentials
        await client.connect(
            [url.strip() for url in given.url.split(",")],
            name=given.name,
            user=given.user,
            password=given.password,
            user_credentials=given.creds,
            ping_interval=PING_S,
            max_outstanding_pings=PINGS_OUTSTANDING_MAX,
            max_reconnect_attempts=-1,
            # The annotation of the client says int; it only ever sleeps for it.
            reconnect_time_wait=RECONNECT_WAIT_S,  # pyright: ignore[reportArgumentType]
            connect_timeout=CONNECT_TIMEOUT_S,
            pending_size=PENDING_BYTES_MAX,
            flush_timeout=PENDING_WAIT_S,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        self._up.set()

    async def _close_client(self) -> None:
        # It writes what is left, however long that takes.
        dropping = asyncio.get_running_loop().call_later(FLUSH_S, self._client.drop)
        try:
            await self._client.close()
        except GONE:
            # While it is cut off the client writes what is left to a transport that is closed already.
            _log.warning("bus.closed_without_flush")
        finally:
            dropping.cancel()
        await ended(self._client.reconnecting)

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or repr(error)
        if self._barred is not None and not self._barred.done() and "authorization" in text.lower():
            self._barred.set_result(text)
        level = logging.DEBUG if isinstance(error, OSError | nats.errors.UnexpectedEOF) else logging.WARNING
        _log.log(level, "bus.error", extra={"fields": {"error": text}})

    async def _on_disconnected(self) -> None:
        if self._up.is_set():
            self._up.clear()
            if not self._closing:
                _log.warning("bus.disconnected")
        self._fail_all("the connection was lost")

    async def _on_reconnected(self) -> None:
        self._up.set()
        _log.info("bus.reconnected")
        for listener in self.reconnected:
            listener()

    async def _on_closed(self) -> None:
        """The client gives up on errors that the server names (expired or slow users, …); this link does not."""
        if not self._closing and (self._reviving is None or self._reviving.done()):
            self._up.clear()
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        _log.warning("bus.closed_by_server")
        while True:
            await self._clock.sleep(RECONNECT_WAIT_S)
            try:
                await self._connect()
                for interest in list(self._interests):
                    await interest.attach(self._client)
            except GONE as error:
                # It was closed again meanwhile.
                await self._on_error(error)
                continue
            await self._on_reconnected()
            return

    def _fail_all(self, why: str) -> None:
        for waiter in list(self._waiting.values()):
            waiter.fail(why)


def _expect_room(body: bytes, headers: dict[str, str] | None) -> None:
    """Raise `PayloadTooLarge` for what would make the server drop the connection, and with it all that is in flight."""
    size = len(body) + sum(len(name) + len(value) + 4 for name, value in (headers or {}).items())
    if size > MESSAGE_BYTES_MAX:
        raise PayloadTooLarge(f"a message of {size} bytes is over {MESSAGE_BYTES_MAX}")


def _without_secrets(urls: str) -> str:
    """The addresses without the user and password that an address may carry."""
    return ",".join(url.strip().rpartition("@")[2] for url in urls.split(","))


class _Waiter:
    """What an open request has received so far. `last` tells the final message of many; `None`: there is one."""

    __slots__ = ("_last", "future", "messages")

    def __init__(self, last: Callable[[Msg], bool] | None) -> None:
        self._last = last
        self.messages: list[Msg] = []
        self.future: asyncio.Future[list[Msg]] = asyncio.get_running_loop().create_future()

    def take(self, message: Msg) -> None:
        if self.future.done():
            return
        if message.headers is not None and not message.data and message.headers.get("Status") == "503":
            self.future.set_exception(NobodyThere("nobody listens there", retry_after_s=1))
            return
        self.messages.append(message)
        if self._last is None or self._last(message):
            self.future.set_result(self.messages)

    def fail(self, why: str) -> None:
        if not self.future.done():
            self.future.set_exception(BusUnavailable(why, retry_after_s=1))


class _Receiver:
    """Looks to the client like the future of a one-time request."""

    __slots__ = ("set_result",)

    def __init__(self, sink: Sink) -> None:
        self.set_result = sink

    def cancelled(self) -> bool:
        return False
