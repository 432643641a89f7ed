"""What the loop asks of a model, and how a model call ends when it gives no turn.

Invariant: nothing here knows a vendor; a request can be rendered again for another model or after a learned
limitation, from the same history.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from libs.contracts.values import Usage
from services.executor.egress.profile import Profile
from services.executor.ingress.turn import Delta

# Called before a wait with the failed attempt's number, its error code and message, and the wait in seconds.
OnRetry = Callable[[int, str, str, float], None]


def ignored(attempt: int, error_code: str, message: str, pause_s: float) -> None:
    """An `OnRetry` that tells nobody."""


# Sends a request's body and gives the bytes of the response as they come; `model.py` says how it fails.
Post = Callable[[bytes], AbstractAsyncContextManager[AsyncIterator[bytes]]]


def untapped(post: Post) -> Post:
    """Nobody listens in on what goes over the wire."""
    return post


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a run.

    `render` gives the messages as JSON fragments, each one or more whole messages joined by commas; `tools` is the
    JSON array of the offered tools (`None`: none are), `schemas` their parameters by name. `attempt` is the number of
    the first attempt: higher than any whose deltas were shown for this iteration before. `model` is the task's wish.
    `context_tokens` is what input and output may take together. `on_retry` hears of every attempt that failed and is
    made again. Every HTTP request of the call goes through `tap`.
    """

    iteration: int
    render: Callable[[Profile], Sequence[bytes]]
    estimated_tokens: int
    tools: bytes | None = None
    schemas: Mapping[str, Mapping[str, object]] = {}
    attempt: int = 1
    model: str | None = None
    output_tokens_max: int | None = None
    context_tokens: int | None = None
    on_retry: OnRetry = ignored
    tap: Callable[[Post], Post] = untapped


# Called with the attempt's number and what it added. A higher number replaces all that lower ones showed.
OnDelta = Callable[[int, Delta], Awaitable[None]]


async def unseen(attempt: int, delta: Delta) -> None:
    """An `OnDelta` for a turn that nobody watches."""


class ModelFailure(Exception):
    """A model call gave no turn, and its retries are used up or pointless.

    `retry_at` (RFC 3339) is set when the provider named a time too far away to wait for: the run should be parked.
    `transient`: another try later may well succeed. `usage` is what the failed attempts cost.
    """

    def __init__(
        self,
        error_code: str,
        message: str,
        *,
        attempt: int,
        retry_at: str | None = None,
        transient: bool = False,
        usage: Usage | None = None,
    ) -> None:
        super().__init__(f"{error_code}: {message}")
        self.error_code = error_code
        self.message = message
        self.attempt = attempt
        self.retry_at = retry_at
        self.transient = transient
        self.usage = usage or Usage()


class ContextOverflow(ModelFailure):
    """The provider says that the request is too long: compact and ask again, once per compaction."""
