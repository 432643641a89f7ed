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
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, PerdureError

# Requests that one responder works on at the same time; more means that it cannot keep up, and the asker's timeout
# tells its owner.
RESPONSES_MAX = 1_000
# What a listener may be behind: a few seconds of a fast model's deltas.
LISTENER_MESSAGES_MAX = 4_096

_log = logging.getLogger("perdure.bus")


class Answering:
    """A subject that this process answers, and what was asked there since it began to. `busy_s` adds up what each answer
    took; `last_error` is the code of the last question that had no answer."""

    __slots__ = ("busy_s", "errors", "last_error", "name", "requests", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        # Without the prefix and the boot, which is the last token: `ctl`, `call-host`.
        self.name = "-".join(subject.split(".")[1:-1]) or subject
        self.requests, self.errors, self.last_error, self.busy_s = 0, 0, "", 0.0


class ServerWire:
    """`Wire` over core NATS. `answering` is what it answers at the moment."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link, self._clock = link, clock
        self.answering: list[Answering] = []

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        return (await self._link.request(subject, body, timeout_s=timeout_s)).data

    async def publish(self, subject: str, body: bytes) -> None:
        await self._link.publish(subject, body)

    @asynccontextmanager
    async def respond(self, subject: str, responder: Responder) -> AsyncGenerator[None]:
        running: set[asyncio.Task[None]] = set()
        counted = Answering(subject)

        def take(message: Msg) -> None:
            if len(running) < RESPONSES_MAX:
                task = asyncio.get_running_loop().create_task(self._answer(message, responder, counted))
                running.add(task)
                task.add_done_callback(running.discard)

        interest = await self._link.subscribe(subject, take)
        self.answering.append(counted)
        try:
            yield
        finally:
            self.answering.remove(counted)
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

    async def _answer(self, message: Msg, responder: Responder, counted: Answering) -> None:
        counted.requests += 1
        began_s = self._clock.monotonic()
        try:
            answer = await responder(_message(message))
            if message.reply:
                await self._link.publish(message.reply, answer)
        except PerdureError as error:
            # The asker learns by its timeout; what the responder could explain it would have answered.
            counted.errors += 1
            counted.last_error = error.code
            level = logging.DEBUG if isinstance(error, BusUnavailable) else logging.WARNING
            _log.log(
                level, "bus.no_answer", extra={"fields": {"subject": message.subject, "error": error.message}}
            )
        finally:
            counted.busy_s += self._clock.monotonic() - began_s


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
