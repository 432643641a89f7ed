"""One model call, to its turn or its failure: attempts, waits, fallback models, and what each endpoint taught us.

Invariant: the one owner of retries. Every attempt has a number of its own, higher than those before it; a turn comes
from exactly one attempt; whoever cancels closes the connection at once.

Order of an attempt's outcomes: a turn; a limitation learned (the same again without it, at once); an overflow (raised:
only a smaller request helps); a refused key (read again, once a call; again); a transient fault (wait, again); anything
else (the next model). A wish to wait longer than `park_after_s` is not slept off here: the run is parked until then, or
fails if that is not to be borne. A model whose circuit is open is passed over (`circuits.py`).
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import NamedTuple

import msgspec

from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.values import Usage
from services.executor.egress.body import body, names_of
from services.executor.egress.profile import (
    NO_PROFILES,
    LearnedProfiles,
    Profile,
    Profiles,
    learned,
    profile_of,
)
from services.executor.egress.request import ContextOverflow, ModelFailure, ModelRequest, OnDelta, Post
from services.executor.endpoint.circuits import Circuits, Standing
from services.executor.endpoint.faults import (
    Fault,
    Refused,
    Unreachable,
    judge_refusal,
    judge_wire,
    refusal_in,
)
from services.executor.endpoint.key import Key
from services.executor.endpoint.prices import Prices, priced
from services.executor.ingress.finish import Retry, judge, without_unoffered
from services.executor.ingress.spoken import with_spoken_calls
from services.executor.ingress.turn import ModelTurn, TurnBuilder, WireFault

# A request is written anew this often at most; each time about something else.
_LEARNED_MAX = 6
_KEY_REFUSED, _RATE_LIMITED = 401, 429

_log = get_logger("completion")


class ModelSettings(NamedTuple):
    """The endpoint, the deployment's model, and the models to try behind it. `idle_timeout_s` is the longest silence:
    a model may think for minutes before its first byte."""

    key: Key
    base_url: str | None
    model: str
    fallbacks: tuple[str, ...] = ()
    profiles: Profiles = NO_PROFILES
    idle_timeout_s: float = 300.0


class Patience(NamedTuple):
    """How long a call goes on. The waits add up to more than a minute before jitter, which only ever lengthens them;
    with the provider's own wishes in between a call waits at most `park_after_s` each time. No retry on a model begins
    later than `total_s` after the first attempt on it, so that silent endpoints do not use up the run's own time.

    `settle_s`: for usage and end marker behind the finish reason; `drain_s`: for the end of the body behind the
    end marker, which lets the connection be used again.
    """

    waits_s: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16, 32)
    jitter_share: float = 0.25
    park_after_s: float = 30.0
    # A wish for more than a day is no rate limit: whoever started the run has to hear of it now.
    park_max_s: float = 86_400.0
    total_s: float = 900.0
    settle_s: float = 5.0
    drain_s: float = 0.2
    empty_turns_max: int = 3


@asynccontextmanager
async def open_model(
    settings: ModelSettings,
    clock: Clock,
    prices: Prices,
    patience: Patience | None = None,
    circuits: Circuits | None = None,
) -> AsyncGenerator["Model"]:
    """The model behind an endpoint. Loads the client first, in a thread: it takes a second in which the process must
    go on renewing its lease."""
    open_endpoint = await asyncio.to_thread(_load_client)
    async with open_endpoint(settings.key, settings.base_url, settings.idle_timeout_s) as post:
        yield Model(post, settings, clock, prices, patience or Patience(), circuits or Circuits())


class Model:
    """Answers the requests of all runs of this process."""

    def __init__(
        self,
        post: Post,
        settings: ModelSettings,
        clock: Clock,
        prices: Prices,
        patience: Patience,
        circuits: Circuits,
    ) -> None:
        self._post = post
        self._circuits = circuits
        self._numbers = itertools.count()
        self._settings = settings
        self._clock = clock
        self._prices = prices
        self._patience = patience
        self._learned = LearnedProfiles()

    def profile(self, model: str | None = None) -> Profile:
        """What is known about a model (`None`: the deployment's) so far."""
        name = model or self._settings.model
        return self._learned.find(name) or profile_of(self._settings.profiles, name)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelTurn:
        """The model's turn. Raises `ContextOverflow`, `ModelFailure`. Cancellable at any point."""
        call = _Call(request.attempt, next(self._numbers))
        names = dict.fromkeys((request.model or self._settings.model, *self._settings.fallbacks))
        faults: list[Fault] = []
        for name in names:
            outcome = await self._ask(name, request, on_delta, call)
            if isinstance(outcome, ModelTurn):
                return outcome
            faults.append(outcome)
            call.attempt += 1
        call.attempt -= 1
        raise self._failure(faults, call)

    async def _ask(
        self, name: str, request: ModelRequest, on_delta: OnDelta, call: "_Call"
    ) -> ModelTurn | Fault:
        """One model with all its retries: a turn, or the fault that remains."""
        waits = iter(self._patience.waits_s)
        until = self._clock.monotonic() + self._patience.total_s
        empty_turns = 0
        while True:
            if not self._circuits.admit(name, self._clock.monotonic()):
                cause = self._circuits.cause(name)
                return Fault(kind="transient", message=f"{name} keeps failing and is left alone: {cause}")
            outcome = await self._admitted(name, request, on_delta, call)
            if isinstance(outcome, ModelTurn):
                return outcome
            if outcome.kind == "overflow":
                raise ContextOverflow(
                    outcome.error_code, outcome.message, attempt=call.attempt, usage=call.spent
                )
            if outcome.status == _KEY_REFUSED and outcome.kind == "final" and self._settings.key.renewable:
                if call.renewed:
                    return msgspec.structs.replace(
                        outcome, message=f"{outcome.message}; {self._settings.key.advice}"
                    )
                # It may have been replaced while this process runs: once a call, also if it is the same.
                call.renewed = True
                request.on_retry(call.attempt, outcome.error_code, outcome.message, 0.0)
                await self._settings.key.renew()
                call.attempt += 1
                continue
            empty_turns += outcome.error_code == "EMPTY_RESPONSE"
            wish_s = outcome.retry_after_s or 0.0
            wait_s = next(waits, None)
            if (
                outcome.kind == "final"
                or wait_s is None
                or wish_s > self._patience.park_after_s
                or empty_turns >= self._patience.empty_turns_max
                or self._clock.monotonic() >= until
            ):
                return outcome
            pause_s = max(wait_s, wish_s) * (1 + self._patience.jitter_share * self._chance())
            request.on_retry(call.attempt, outcome.error_code, outcome.message, pause_s)
            await self._clock.sleep(pause_s)
            call.attempt += 1

    async def _admitted(
        self, name: str, request: ModelRequest, on_delta: OnDelta, call: "_Call"
    ) -> ModelTurn | Fault:
        """One attempt, and what it says about the endpoint, also when it is broken off."""
        standing, cause = "unknown", ""
        try:
            outcome = await self._attempt(name, request, on_delta, call)
            standing = _standing(outcome)
            if isinstance(outcome, Fault):
                # Some endpoints show the key that they were given, and every fault goes into the run's log.
                cause = self._settings.key.hidden(outcome.message)
                outcome = msgspec.structs.replace(outcome, message=cause)
            return outcome
        finally:
            self._circuits.note(name, standing, self._clock.monotonic(), call=call.number, cause=cause)

    async def _attempt(
        self, name: str, request: ModelRequest, on_delta: OnDelta, call: "_Call"
    ) -> ModelTurn | Fault:
        """One attempt; what a 400 teaches is learned on the way, so that it may be more than one HTTP request. It is kept
        once a request that was written so is accepted."""
        profile, known = self.profile(name), frozenset[str]()
        while True:
            try:
                outcome = await self._exchange(name, request, profile, on_delta, call)
            except Unreachable as error:
                return Fault(kind="final" if error.lasting else "transient", message=f"no response: {error}")
            except Refused as error:
                outcome = Refused(error.status, error.headers, self._settings.key.hidden(error.body))
            refused = outcome if isinstance(outcome, Refused) else refusal_in(outcome)
            if refused is not None:
                fault = judge_refusal(refused, self._clock.now())
                taught = (
                    learned(profile, refused.status, refused.body, known) if fault.kind == "final" else None
                )
                if taught is None or len(known) >= _LEARNED_MAX:
                    return fault
                profile, known = taught.profile, known | {taught.about}
                _log.info("model.learned", model=name, about=taught.about)
                continue
            if known:
                self._learned.keep(name, profile)
            break
        if isinstance(outcome, WireFault):
            return judge_wire(outcome)
        assert isinstance(outcome, ModelTurn)
        usage = priced(outcome.usage, name, self._prices)
        call.spent = call.spent.plus(usage)
        offered = profile.tools and request.tools is not None
        verdict = judge(outcome, tools_offered=offered, nudges=0)
        if isinstance(verdict, Retry):
            return Fault(kind="transient", message=verdict.message, error_code=verdict.error_code)
        outcome = outcome if offered else without_unoffered(outcome)
        return msgspec.structs.replace(outcome, usage=call.spent, attempt=call.attempt, model=name)

    async def _exchange(
        self, name: str, request: ModelRequest, profile: Profile, on_delta: OnDelta, call: "_Call"
    ) -> ModelTurn | WireFault:
        """One HTTP request; what a stream that breaks off had counted is spent all the same. Raises `Refused`,
        `Unreachable`."""
        builder = TurnBuilder()
        try:
            async with request.tap(self._post)(body(name, request, profile)) as pieces:
                while not (builder.over or builder.settled):
                    if not await self._read(builder, pieces, on_delta, call.attempt):
                        break
                await self._settle(builder, pieces, on_delta, call.attempt)
        except Unreachable:
            self._count(builder, name, call)
            raise
        if builder.strays:
            _log.warning("model.stray_choices", model=name, count=builder.strays)
        names = names_of(request.schemas, profile)
        turn = builder.finish(
            iteration=request.iteration,
            schemas=request.schemas,
            names=names,
            input_tokens=request.estimated_tokens,
        )
        if isinstance(turn, WireFault):
            self._count(builder, name, call)
            turn = self._without_key(turn)
        if profile.text_calls and request.tools is not None and isinstance(turn, ModelTurn):
            return with_spoken_calls(turn, request.iteration, request.schemas, names)
        return turn

    def _without_key(self, fault: WireFault) -> WireFault:
        """What an endpoint says of a fault may show the key; it is masked before anything is cut off."""
        hidden = self._settings.key.hidden
        error: object = msgspec.json.decode(hidden(msgspec.json.encode(fault.error).decode()))
        return msgspec.structs.replace(fault, message=hidden(fault.message), error=error)

    def _count(self, builder: TurnBuilder, name: str, call: "_Call") -> None:
        if builder.counted is not None:
            call.spent = call.spent.plus(priced(builder.counted, name, self._prices))

    async def _settle(
        self, builder: TurnBuilder, pieces: AsyncIterator[bytes], on_delta: OnDelta, attempt: int
    ) -> None:
        """The model says that it is finished. What is still to come is waited for a little; if nothing comes, the turn
        stands. If it goes on, it was not finished: then it has all the time it needs. Raises `Unreachable`."""
        try:
            async with asyncio.timeout(self._patience.settle_s):
                while (
                    builder.settled
                    and not builder.over
                    and await self._read(builder, pieces, on_delta, attempt)
                ):
                    pass
            while not builder.over and await self._read(builder, pieces, on_delta, attempt):
                pass
        except (TimeoutError, Unreachable):
            if not builder.settled:
                raise
        with suppress(TimeoutError, Unreachable):
            async with asyncio.timeout(self._patience.drain_s):
                async for _ in pieces:
                    pass

    async def _read(
        self, builder: TurnBuilder, pieces: AsyncIterator[bytes], on_delta: OnDelta, attempt: int
    ) -> bool:
        """Feed the next piece; whether there was one. Raises `Unreachable`."""
        async for piece in pieces:
            if (delta := builder.feed(piece)) is not None:
                await on_delta(attempt, delta)
            return True
        return False

    def _failure(self, faults: Sequence[Fault], call: "_Call") -> ModelFailure:
        """The failure of a call whose models have all been tried. A wish for a later time counts before other faults."""
        patience = self._patience
        passing = [fault.retry_after_s or 0.0 for fault in faults if fault.kind == "transient"]
        bearable = [wish for wish in passing if wish <= patience.park_max_s]
        parked = [wish for wish in bearable if wish > patience.park_after_s]
        retry_at = rfc3339(self._clock.now() + timedelta(seconds=min(parked))) if parked else None
        first = faults[0]
        message = first.message
        if len(faults) > 1:
            message += f" (and {len(faults) - 1} fallback models failed, the last: {faults[-1].message})"
        return ModelFailure(
            first.error_code,
            message,
            attempt=call.attempt,
            retry_at=retry_at,
            transient=bool(bearable),
            usage=call.spent,
        )

    def _chance(self) -> float:
        """A number from 0 to 1."""
        return int.from_bytes(self._clock.entropy(2)) / 0xFFFF


def _standing(outcome: ModelTurn | Fault) -> Standing:
    """What an outcome says about the endpoint: an empty turn and a refusal come from one that works."""
    if isinstance(outcome, ModelTurn) or outcome.error_code == "EMPTY_RESPONSE":
        return "well"
    if outcome.kind != "transient" or outcome.status == _RATE_LIMITED:
        return "there"
    return "failed"


class _Call:
    """What the attempts of one call share."""

    def __init__(self, attempt: int, number: int) -> None:
        self.attempt, self.number = attempt, number
        self.spent = Usage()
        self.renewed = False


def _load_client() -> Callable[[Key, str | None, float], AbstractAsyncContextManager[Post]]:
    from services.executor.endpoint.model import open_endpoint  # noqa: PLC0415 see `open_model`

    return open_endpoint
