"""Requests, replies and transient messages on the twin.

Invariant: nothing here is kept: who does not listen when a message arrives never gets it.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from libs.bus.ports import Message, Responder
from libs.bus.twin.link import Link, Tap
from libs.bus.twin.work import matches
from libs.contracts.errors import BusUnavailable, NobodyThere, PerdureError

# As on the servers (`libs/bus/wire.py`).
RESPONSES_MAX = 1_000
LISTENER_MESSAGES_MAX = 4_096

_log = logging.getLogger("perdure.bus")

Take = Callable[[Message, Callable[[bytes], None]], None]


class _Interest(NamedTuple):
    """Who listens on a subject. `take` is called with a message and what to do with an answer."""

    link: Link
    subject: str
    take: Take


class WireStore:
    """Who listens to what."""

    def __init__(self) -> None:
        self._interests: dict[str, list[_Interest]] = {}
        self._patterns: list[_Interest] = []

    def add(self, interest: _Interest) -> None:
        self._place(interest.subject).append(interest)

    def remove(self, interest: _Interest) -> None:
        place = self._place(interest.subject)
        place[:] = [one for one in place if one is not interest]

    def on(self, subject: str) -> list[_Interest]:
        exact = self._interests.get(subject, [])
        return [*exact, *(one for one in self._patterns if matches(one.subject, subject))]

    def disconnect(self, link: Link) -> None:
        for place in (*self._interests.values(), self._patterns):
            place[:] = [one for one in place if one.link is not link]

    def _place(self, subject: str) -> list[_Interest]:
        if "*" in subject or subject.endswith(">"):
            return self._patterns
        return self._interests.setdefault(subject, [])


class TwinWire:
    """`Wire` of one process."""

    def __init__(self, link: Link, store: WireStore) -> None:
        self._link, self._store = link, store

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        timers = self._link.timers

        def answer(reply: bytes) -> None:
            delay_s = self._link.delivery_s("reply", subject)
            if delay_s is not None:
                timers.at(delay_s, lambda: answered.done() or answered.set_result(reply))

        def arrive() -> None:
            interests = self._store.on(subject)
            if not interests:
                timers.at(0.0, lambda: answered.done() or answered.set_exception(nobody))
            for interest in interests:
                interest.take(Message(subject, body, {}), answer)

        nobody = NobodyThere(f"nobody listens on {subject}", retry_after_s=1)
        self._link.send("request", subject, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            raise BusUnavailable(
                f"{subject} did not answer within {timeout_s:g} s", retry_after_s=1
            ) from None

    async def publish(self, subject: str, body: bytes) -> None:
        def arrive() -> None:
            for interest in self._store.on(subject):
                interest.take(Message(subject, body, {}), _ignore)

        self._link.send("tell", subject, arrive)

    @asynccontextmanager
    async def respond(self, subject: str, responder: Responder) -> AsyncGenerator[None]:
        running: set[asyncio.Task[None]] = set()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def begin(message: Message, answer: Callable[[bytes], None]) -> None:
            if not self._link.closed and len(running) < RESPONSES_MAX:
                work = self._answer(message, responder, answer)
                task = loop.create_task(work, context=context.copy())
                running.add(task)
                task.add_done_callback(running.discard)

        def take(message: Message, answer: Callable[[bytes], None]) -> None:
            delay_s = self._link.delivery_s("asked", subject)
            if delay_s is not None:
                self._link.timers.at(delay_s, lambda: begin(message, answer))

        interest = _Interest(self._link, subject, take)
        self._store.add(interest)
        try:
            yield
        finally:
            self._store.remove(interest)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    @asynccontextmanager
    async def listen(self, subject: str) -> AsyncGenerator[AsyncIterator[Message]]:
        tap = Tap[Message](self._link, "heard", subject, again_s=None, most=LISTENER_MESSAGES_MAX)

        def take(message: Message, answer: Callable[[bytes], None]) -> None:
            del answer
            tap.push(message)

        interest = _Interest(self._link, subject, take)
        self._store.add(interest)
        try:
            yield tap
        finally:
            self._store.remove(interest)

    async def _answer(self, message: Message, responder: Responder, answer: Callable[[bytes], None]) -> None:
        try:
            reply = await responder(message)
        except PerdureError as error:
            # The asker learns by its timeout.
            _log.debug("bus.no_answer", extra={"fields": {"error": error.message}})
            return
        # On its way even if this process dies now: the server has it.
        self._link.send("answer", message.subject, lambda: answer(reply))


def _ignore(reply: bytes) -> None:
    del reply
