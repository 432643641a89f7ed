"""Pull requests on one consumer, and the messages and status reports that answer them.

Invariant: what was asked for and has not come is always known (`outstanding`); a consumer that fell silent, whatever
the reason, is noticed within two and a half heartbeats.
"""

import asyncio
from collections import deque

import msgspec
from nats.aio.msg import Msg

from libs.bus.jetstream import JetStream
from libs.bus.link import Interest

# A pull waits this long at the server, so an idle reader costs one request in that time.
EXPIRES_S = 30.0

# Ends of a pull after which the consumer is fine and a new pull is all it takes.
_HARMLESS = ("404", "408")
_HARMLESS_409 = ("batch completed", "exceeds maxbytes", "message size exceeds")

# What was left of a pull when it ended.
_LEFT = "Nats-Pending-Messages"

_encode = msgspec.json.Encoder().encode


class Position:
    """Where a message stands, from its reply subject `$JS.ACK.…` (9 tokens, or 11 and more with a domain)."""

    __slots__ = ("consumer_sequence", "delivered", "pending", "stream_sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        self.delivered = int(tokens[first])
        self.stream_sequence = int(tokens[first + 1])
        self.consumer_sequence = int(tokens[first + 2])
        self.pending = int(tokens[first + 4])


class Pulls:
    """The pulls of one consumer over one inbox."""

    def __init__(
        self, js: JetStream, stream: str, consumer: str, *, heartbeat_s: float, expires_s: float = EXPIRES_S
    ) -> None:
        self._js = js
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._expires_s = expires_s
        # The server wants two of them in a pull.
        self._heartbeat_s = min(heartbeat_s, expires_s / 2)
        self._inbox = js.link.new_inbox()
        self._count = 0
        self._heard = asyncio.Event()
        self._interest: Interest | None = None
        self.queue: deque[Msg] = deque()
        # How many messages have been asked for that may still come. The server does not say which pull a message
        # answers, only how much of a pull was left when it ended.
        self.outstanding = 0
        # Why nothing more will come without a new consumer or a new pull on it; `None` while all is well.
        self.broken: str | None = None

    async def open(self) -> None:
        self._interest = await self._js.link.subscribe(f"{self._inbox}.*", self._take)
        self._js.link.reconnected.append(self._reconnected)

    async def close(self) -> list[Msg]:
        """Ask for nothing more; returns what came and was not taken."""
        if self._interest is not None:
            self._js.link.reconnected.remove(self._reconnected)
            await self._interest.stop()
            self._interest = None
        left, self.queue = list(self.queue), deque()
        return left

    async def pull(self, messages: int, bytes_max: int | None = None) -> None:
        """Ask for messages. Raises `BusUnavailable` while there is no connection."""
        self._count += 1
        token = f"{self._count:x}"
        query: dict[str, int] = {
            "batch": messages,
            "expires": int(self._expires_s * 1e9),
            "idle_heartbeat": int(self._heartbeat_s * 1e9),
        }
        if bytes_max is not None:
            query["max_bytes"] = bytes_max
        await self._js.link.publish(self._subject, _encode(query), reply=f"{self._inbox}.{token}")
        self.outstanding += messages

    async def wait(self) -> None:
        """Until something came or ended; sets `broken` when the server falls silent on an open pull."""
        self._heard.clear()
        if self.queue or self.broken is not None:
            return
        if self.outstanding == 0:
            await self._heard.wait()
            return
        try:
            async with asyncio.timeout(2.5 * self._heartbeat_s):
                await self._heard.wait()
        except TimeoutError:
            self._break("silence")

    def notice(self) -> None:
        """Wake up `wait`."""
        self._heard.set()

    def mend(self) -> None:
        """Forget what was asked for before it broke."""
        self.outstanding = 0
        self.broken = None

    def _take(self, message: Msg) -> None:
        headers = message.headers
        if headers is not None and "Status" in headers and not message.reply.startswith("$JS.ACK."):
            self._status(headers)
        else:
            self.queue.append(message)
            self.outstanding = max(0, self.outstanding - 1)
        self._heard.set()

    def _status(self, headers: dict[str, str]) -> None:
        status, description = headers["Status"], headers.get("Description", "")
        if status == "100":
            return
        left = headers.get(_LEFT, "")
        harmless = status in _HARMLESS or (status == "409" and description.lower().startswith(_HARMLESS_409))
        if harmless and left.isdigit():
            self.outstanding = max(0, self.outstanding - int(left))
        else:
            self._break(f"{status} {description}".strip())

    def _reconnected(self) -> None:
        # The server forgot the pulls of the old connection.
        self._break("reconnected")
        self._heard.set()

    def _break(self, why: str) -> None:
        self.outstanding = 0
        self.broken = why
