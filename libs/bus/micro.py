"""What `nats micro ls|info|stats` shows of a process: the discovery protocol of NATS services (ADR-32).

Invariant: an answer names every subject that the process answers right now, and nothing of what was asked there; the
protocol tells people what runs and decides nothing (liveness is a key, `liveness.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, NamedTuple

import msgspec
from nats.aio.msg import Msg

from libs.bus.link import Link
from libs.bus.wire import Answering
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import BusUnavailable

Verb = Literal["PING", "INFO", "STATS"]
VERBS: tuple[Verb, ...] = ("PING", "INFO", "STATS")
# Questions that are answered at the same time; people ask one at a time, so more is a flood.
ANSWERS_MAX = 16

_TYPE = "io.nats.micro.v1.{}_response"


class Announcement(NamedTuple):
    """What a process says of itself. `name` is the service's, `version` is semantic; `metadata` is asked each time."""

    name: str
    version: str
    description: str
    metadata: Callable[[], dict[str, str]]


class _Said(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any of the three answers; what a verb does not have stays out."""

    type: str
    name: str
    id: str
    version: str
    metadata: dict[str, str]
    description: str | None = None
    started: str | None = None
    endpoints: list[dict[str, object]] | None = None


@asynccontextmanager
async def announced(
    link: Link, clock: Clock, announcement: Announcement, answering: Callable[[], list[Answering]]
) -> AsyncGenerator[None]:
    """Answer the three questions while the context lasts."""
    speaker = _Speaker(link, clock, announcement, answering)
    async with AsyncExitStack() as stack:
        for verb in VERBS:
            for subject in speaker.subjects(verb):
                interest = await link.subscribe(subject, speaker.sink(verb))
                stack.push_async_callback(interest.stop)
        stack.push_async_callback(speaker.quiet)
        yield


class _Speaker:
    """Answers for one process."""

    def __init__(
        self, link: Link, clock: Clock, announcement: Announcement, answering: Callable[[], list[Answering]]
    ) -> None:
        self._link, self._announcement, self._answering = link, announcement, answering
        self._id = clock.entropy(11).hex()
        self._started = rfc3339(clock.now())
        self._running: set[asyncio.Task[None]] = set()

    def subjects(self, verb: Verb) -> tuple[str, str, str]:
        name = self._announcement.name
        return f"$SRV.{verb}", f"$SRV.{verb}.{name}", f"$SRV.{verb}.{name}.{self._id}"

    def sink(self, verb: Verb) -> Callable[[Msg], None]:
        def take(message: Msg) -> None:
            if message.reply and len(self._running) < ANSWERS_MAX:
                task = asyncio.get_running_loop().create_task(self._answer(verb, message.reply))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

        return take

    async def quiet(self) -> None:
        """Nothing is answered any more."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _answer(self, verb: Verb, reply: str) -> None:
        try:
            await self._link.publish(reply, msgspec.json.encode(self._said(verb)))
        except BusUnavailable:
            # Who asked has lost the connection as well.
            return

    def _said(self, verb: Verb) -> _Said:
        announcement = self._announcement
        said = _Said(
            type=_TYPE.format(verb.lower()),
            name=announcement.name,
            id=self._id,
            version=announcement.version,
            metadata=announcement.metadata(),
        )
        match verb:
            case "PING":
                pass
            case "INFO":
                said.description = announcement.description
                said.endpoints = [_endpoint(one) for one in self._answering()]
            case "STATS":
                said.started = self._started
                said.endpoints = [_counted(one) for one in self._answering()]
        return said


def _endpoint(one: Answering) -> dict[str, object]:
    return {"name": one.name, "subject": one.subject, "queue_group": "", "metadata": {}}


def _counted(one: Answering) -> dict[str, object]:
    """Times are in nanoseconds, as the protocol has them."""
    return {
        "name": one.name,
        "subject": one.subject,
        "queue_group": "",
        "num_requests": one.requests,
        "num_errors": one.errors,
        "last_error": one.last_error,
        "processing_time": round(one.busy_s * 1e9),
        "average_processing_time": round(one.busy_s * 1e9 / one.requests) if one.requests else 0,
    }
