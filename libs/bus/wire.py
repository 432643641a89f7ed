"""What is not stored: requests and their answers, transient messages.

Invariant: nothing here waits for ever or keeps more than its bound; an answer that does not come is `BusUnavailable`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.msg import Msg

from libs.bus.link import Link
from libs.bus.ports import Message, Responder
from libs.contracts.errors import BusUnavailable, PerdureError

# Requests that one responder works on at the same time; more means that it cannot keep up, and the asker's timeout
# tells its owner.
RESPONSES_MAX = 1_000
# What a listener may be behind: a few seconds of a fast model's deltas.
LISTENER_MESSAGES_MAX = 4_096

_log = logging.getLogger("perdure.bus")


class ServerWire:
    """`Wire` over core NATS."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        return (await self._link.request(subject, body, timeout_s=timeout_s)).data

    async def publish(self, subject: str, body: bytes) -> None:
        await self._link.publish(subject, body)

    @asynccontextmanager
    async def respond(self, subject: str, responder: Responder) -> AsyncGenerator[None]:
        running: set[asyncio.Task[None]] = set()

        def take(message: Msg) -> None:
            if len(running) < RESPONSES_MAX:
                task = asyncio.get_running_loop().create_task(self._answer(message, responder))
                running.add(task)
                task.add_done_callback(running.discard)

        interest = await self._link.subscribe(subject, take)
        try:
            yield
        finally:
            await interest.stop()
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    @asynccontextmanager
    async def listen(self, subject: str) -> AsyncGenerator[AsyncIterator[Message]]:
        heard = _Heard()
        interest = await self._link.subscribe(subject, heard.take)
        try:
            yield heard
        finally:
            await interest.stop()

    async def _answer(self, message: Msg, responder: Responder) -> None:
        try:
            answer = await responder(_message(message))
            if message.reply:
                await self._link.publish(message.reply, answer)
        except PerdureError as error:
            # The asker learns by its timeout; what the responder could explain it would have answered.
            level = logging.DEBUG if isinstance(error, BusUnavailable) else logging.WARNING
            _log.log(
                level, "bus.no_answer", extra={"fields": {"subject": message.subject, "error": error.message}}
            )


class _Heard(AsyncIterator[Message]):
    """The messages of a listener; the oldest go when it falls behind."""

    def __init__(self) -> None:
        self._queue: deque[Msg] = deque(maxlen=LISTENER_MESSAGES_MAX)
        self._news = asyncio.Event()

    def take(self, message: Msg) -> None:
        self._queue.append(message)
        self._news.set()

    async def __anext__(self) -> Message:
        while not self._queue:
            self._news.clear()
            await self._news.wait()
        return _message(self._queue.popleft())


def _message(message: Msg) -> Message:
    return Message(message.subject, message.data, message.headers or {})
