"""Asking the judge, with patience.

Invariant: the one owner of retries; it ends within its time, with a judgement or with the reason why there is none, and at
once when the round is stopped. Nothing of it is kept, so a round that is made again asks again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, NamedTuple, Protocol

from libs.chassis.effects import Stopped
from libs.chassis.logs import get_logger
from libs.contracts.checks import REVIEW_TIMEOUT_S, CheckResult, ReviewCheck
from libs.contracts.clock import Clock
from libs.contracts.retryafter import retry_after_s
from libs.policy.redaction import Redaction
from services.verifier.review.asking import Access, Answered, Faulty
from services.verifier.review.brief import Brief, Case, brief
from services.verifier.review.judgement import (
    Judgement,
    Spent,
    read,
    review_result,
    unreviewed_result,
)

# Pauses before each next attempt, a minute and a half with jitter; a wish that is longer than that is not waited out.
WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
WISH_S_MAX = 60.0
JITTER_SHARE = 0.25
# An answer that cannot be read is asked for once more.
QUESTIONS_MAX = 2
_WHY_CHARS_MAX = 400
# An endpoint that takes no system message, or no wish for usage, says so with one of these.
_NOT_AS_ASKED = (400, 422)


class Asking(Protocol):
    """An endpoint as the judge uses it."""

    def ask(self, brief: Brief, *, plain: bool) -> Awaitable[Answered]: ...


OpenEndpoint = Callable[[Access], AbstractAsyncContextManager[Asking]]


class _Tally(NamedTuple):
    judgement: Judgement
    input_tokens: int
    output_tokens: int


class _Unjudged(Exception):
    """There is no judgement to be had, and why."""


class Judge:
    """Judges by a model. `access` says at each review which (`None`: none is configured)."""

    def __init__(
        self,
        access: Callable[[], Access | None],
        clock: Clock,
        redaction: Redaction,
        *,
        timeout_s: float = REVIEW_TIMEOUT_S,
    ) -> None:
        self._access, self._clock, self._redaction = access, clock, redaction
        self._timeout_s = timeout_s
        self._log = get_logger("review")

    async def review(self, check: ReviewCheck, case: Case, commit: str, stop: asyncio.Event) -> CheckResult:
        """The result of a review, made or not. Raises `Stopped`."""
        access = self._access()
        if access is None:
            why = "no model is configured; verifiers need OPENAI_API_KEY and MODEL_ID or PERDURE_REVIEW_MODEL"
            return unreviewed_result(check, why, commit=commit)
        told = await asyncio.to_thread(brief, case, self._redaction)
        began = self._clock.monotonic()
        try:
            tally = await self._unless(stop, self._judged(access, told))
        except _Unjudged as none:
            # Some endpoints show the key that they were given. Before it is cut, as everywhere.
            why = self._redaction.text(str(none))[:_WHY_CHARS_MAX]
            ms = self._ms(began)
            self._log.warning("review.not_made", model=access.model, reason=why, duration_ms=ms)
            return unreviewed_result(check, why, model=access.model, commit=commit, duration_ms=ms)
        spent = Spent(access.model, tally.input_tokens, tally.output_tokens, self._ms(began))
        self._log.info(
            "review.made",
            model=spent.model,
            passed=tally.judgement.passed,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            duration_ms=spent.duration_ms,
        )
        return review_result(check, tally.judgement, spent, commit=commit, brief=told.digest)

    def _ms(self, began: float) -> int:
        return round((self._clock.monotonic() - began) * 1000)

    async def _unless(self, stop: asyncio.Event, judging: Coroutine[Any, Any, _Tally]) -> _Tally:
        """What the judging comes to, unless the round is stopped before."""
        working, stopped = asyncio.create_task(judging), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise Stopped("the round was cancelled")
        finally:
            for task in (working, stopped):
                task.cancel()
            with suppress(asyncio.CancelledError, _Unjudged):
                await working

    async def _judged(self, access: Access, told: Brief) -> _Tally:
        open_endpoint = await asyncio.to_thread(_load_client)
        input_tokens = output_tokens = 0
        try:
            async with asyncio.timeout(self._timeout_s), open_endpoint(access) as endpoint:
                patience = _Patience(endpoint, self._clock)
                for question in range(QUESTIONS_MAX):
                    answered = await patience.ask(told.again() if question else told)
                    input_tokens += answered.input_tokens
                    output_tokens += answered.output_tokens
                    judgement = read(answered.text)
                    if judgement is not None:
                        return _Tally(judgement, input_tokens, output_tokens)
        except TimeoutError as error:
            raise _Unjudged(f"the judge did not answer within {self._timeout_s:g} s") from error
        raise _Unjudged(f"its answer could not be read, {QUESTIONS_MAX} times")


class _Patience:
    """One review's way to its endpoint: what an endpoint cannot take is left out from then on, and waits are used up once."""

    def __init__(self, endpoint: Asking, clock: Clock) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._plain = False
        self._waits = iter(WAITS_S)

    async def ask(self, told: Brief) -> Answered:
        """Raises `_Unjudged` when the endpoint stays away, or refuses for good."""
        while True:
            try:
                return await self._endpoint.ask(told, plain=self._plain)
            except Faulty as fault:
                if fault.status in _NOT_AS_ASKED and not self._plain:
                    self._plain = True
                    continue
                wait_s = next(self._waits, None) if fault.transient else None
                wish_s = retry_after_s(fault.headers, self._clock.now()) or 0.0
                if wait_s is None or wish_s > WISH_S_MAX:
                    raise _Unjudged(f"its endpoint failed: {fault.message}") from fault
                jitter = 1 + JITTER_SHARE * self._clock.entropy(1)[0] / 255
                await self._clock.sleep(max(wait_s, wish_s) * jitter)


def _load_client() -> OpenEndpoint:
    from services.verifier.review.endpoint import open_endpoint  # noqa: PLC0415 see `endpoint.py`

    return open_endpoint
