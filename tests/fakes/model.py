"""A scripted model for one test, and our client to it: a real server and a real connection.

Invariant: nothing here knows how the client works; what a test asserts is what went over the wire and came back.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from deploy.dev.model_script import Answer, Conversation, Script
from deploy.dev.model_server import ModelServer, serve
from libs.contracts.clock import Clock
from services.executor.egress.profile import NO_PROFILES, Profile, Profiles
from services.executor.egress.request import ModelRequest
from services.executor.endpoint.completion import Model, ModelSettings, Patience, open_model
from services.executor.endpoint.key import Key
from services.executor.endpoint.prices import Prices
from services.executor.ingress.turn import Delta
from tests.fakes.clock import QuickClock
from tests.fakes.transcripts import TOOLS

KEY = "key-of-this-test"
DEADLINE_S = 10.0


class ScriptedModel(NamedTuple):
    """A running server. `url` is what `OPENAI_BASE_URL` would be."""

    url: str
    server: ModelServer


class Peer(NamedTuple):
    """A running server and our client to it."""

    url: str
    server: ModelServer
    model: Model

    @property
    def bodies(self) -> list[dict[str, object]]:
        """What was asked, newest last."""
        return [msgspec.json.decode(body, type=dict[str, object]) for body in self.server.bodies]


class Shown(NamedTuple):
    """Collects deltas: `texts` maps each attempt to what it showed."""

    texts: dict[int, str]

    async def __call__(self, attempt: int, delta: Delta) -> None:
        self.texts[attempt] = self.texts.get(attempt, "") + delta.content


def sent(stream: bytes, size: int | None = None) -> list[str]:
    """`stream` for an answer's `base64`, in pieces of `size` bytes."""
    width = size or len(stream) or 1
    return [base64.b64encode(stream[at : at + width]).decode() for at in range(0, len(stream), width)]


@asynccontextmanager
async def scripted(*turns: Answer, rules: list[str] | None = None) -> AsyncGenerator[ScriptedModel]:
    """A server that gives these answers to any goal, one a turn."""
    server = ModelServer(Script(conversations=[Conversation(turns=list(turns))], rules=rules))
    async with serve(server) as url:
        yield ScriptedModel(url, server)


@asynccontextmanager
async def connected(
    url: str,
    *,
    clock: Clock | None = None,
    patience: Patience | None = None,
    fallbacks: tuple[str, ...] = (),
    idle_timeout_s: float = 10.0,
    prices: Prices | None = None,
    profiles: Profiles = NO_PROFILES,
    key: Key | None = None,
) -> AsyncGenerator[Model]:
    """Our client; waits between attempts take no time."""
    settings = ModelSettings(key or Key(KEY), url, "first", fallbacks, profiles, idle_timeout_s)
    async with open_model(settings, clock or QuickClock(), prices or {}, patience) as model:
        yield model


@asynccontextmanager
async def talking(
    *turns: Answer,
    rules: list[str] | None = None,
    clock: Clock | None = None,
    patience: Patience | None = None,
    fallbacks: tuple[str, ...] = (),
    idle_timeout_s: float = 10.0,
    prices: Prices | None = None,
    profiles: Profiles = NO_PROFILES,
    key: Key | None = None,
) -> AsyncGenerator[Peer]:
    """Both ends at once, for at most `DEADLINE_S`."""
    async with (
        asyncio.timeout(DEADLINE_S),
        scripted(*turns, rules=rules) as endpoint,
        connected(
            endpoint.url,
            clock=clock,
            patience=patience,
            fallbacks=fallbacks,
            idle_timeout_s=idle_timeout_s,
            prices=prices,
            profiles=profiles,
            key=key,
        ) as model,
    ):
        yield Peer(endpoint.url, endpoint.server, model)


def asked(**changes: object) -> ModelRequest:
    """A request with one user message."""

    def render(_: Profile) -> list[bytes]:
        return [b'{"role":"user","content":"Hello."}']

    request = ModelRequest(iteration=1, render=render, estimated_tokens=7, tools=TOOLS)
    return msgspec.structs.replace(request, **changes)


async def ignore(attempt: int, delta: Delta) -> None:
    """An `OnDelta` for tests that look at turns only."""


async def until_aborted(peer: Peer) -> None:
    """Wait until the server has seen the latest request's connection close; under the caller's deadline."""
    while not (peer.server.asked and peer.server.asked[-1].aborted):
        await asyncio.sleep(0.01)
