"""A run's side of its talk with the model: what is sent, and what a turn becomes in the log.

Invariant: what a model is told is made from the log alone; the static part (prompt, tools) never changes within a run.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

import msgspec

from libs.bus.ports import Bus
from libs.chassis.clock import HurriedClock
from libs.contracts import events as e
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.run import RunState
from libs.contracts.tools import ToolSpec
from libs.contracts.values import CONTEXT_EXHAUSTED
from libs.policy.schemas import Schemas
from services.executor.egress.context import Compact, Window, after, fit, scaled
from services.executor.egress.history import History, Outbound
from services.executor.egress.profile import Profile
from services.executor.egress.prompt import system_prompt
from services.executor.egress.request import (
    ContextOverflow,
    ModelFailure,
    ModelRequest,
    OnRetry,
    unseen,
    untapped,
)
from services.executor.egress.results import READ_FILE
from services.executor.egress.toolset import toolset
from services.executor.endpoint.circuits import Circuits
from services.executor.endpoint.completion import Model, ModelSettings, open_model
from services.executor.endpoint.deltas import LiveDeltas, sending
from services.executor.endpoint.prices import load_prices
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.recording import Recorder
from services.executor.endpoint.summary import summarised
from services.executor.ingress.acceptance import accepted
from services.executor.ingress.turn import Delta, ModelTurn
from services.executor.settings import ExecutorSettings

# A provider that stays away beyond the client's own patience: the run is parked, longer each time, a few times.
PARK_S = 30.0
PARK_MAX_S = 300.0
PARKS_MAX = 6
# One that names the time itself is believed more often, but not for ever: each wait may be as long as a day.
NAMED_PARKS_MAX = 24
# A test need not sit out the waits between attempts and the parking: they are this many times as long.
WAIT_SCALE = "PERDURE_TEST_WAIT_SCALE"
# Numbers that one call may use up; the next call's attempts begin behind them, so that numbers only grow.
ATTEMPTS_PER_CALL = 1000


# Hears of what happened before an activity is over.
Tell = Callable[[e.LogEvent], None]


class Conversing(Protocol):
    """One run's talk: `Talk`, or what the simulation has in its place."""

    def window(self, state: RunState, overflowed: bool) -> tuple[int, Window]: ...

    async def summarise(self, state: RunState, overflowed: bool, tell: Tell) -> list[e.LogEvent]: ...

    async def next_turn(self, state: RunState, tell: Tell) -> list[e.LogEvent]: ...


class Talking(Protocol):
    """The model as the runs of a process share it: `Talker`, or what the simulation has in its place."""

    model: str

    def talk(self, state: RunState, specs: Mapping[str, ToolSpec], pulse: Pulse) -> Conversing: ...


class Talker:
    """The model as the runs of this process share it. Without one configured nothing ever asks."""

    def __init__(
        self,
        model: Model | None,
        name: str,
        clock: Clock,
        live: LiveDeltas,
        park_s: float = PARK_S,
        recorder: Recorder | None = None,
    ) -> None:
        self._model, self._clock, self._live = model, clock, live
        self._park_s, self._recorder = park_s, recorder
        self.model = name

    def talk(self, state: RunState, specs: Mapping[str, ToolSpec], pulse: Pulse) -> "Talk":
        assert self._model is not None, "an executor without a model takes no tickets"
        return Talk(self._model, self._clock, self._live, state, specs, pulse, self._park_s, self._recorder)


@asynccontextmanager
async def open_talker(
    settings: ExecutorSettings, bus: Bus, clock: Clock, circuits: Circuits
) -> AsyncGenerator[Talker]:
    """The talker of these settings; connections to the endpoint last as long as the context."""
    key = settings.key
    if key is None or settings.model_id is None:
        yield Talker(None, "", clock, LiveDeltas(bus, clock))
        return
    fallbacks = tuple(name.strip() for name in settings.fallback_models.split(",") if name.strip())
    endpoint = ModelSettings(
        key=key,
        base_url=settings.base_url,
        model=settings.model_id,
        fallbacks=fallbacks,
        profiles=settings.model_profiles,
    )
    prices, scale = load_prices(settings.model_prices), settings.test_hooks.get(WAIT_SCALE)
    waiting = clock if scale is None else HurriedClock(float(scale))
    recorder = Recorder(bus.store("blobs"), clock, key) if settings.record_wire else None
    async with (
        open_model(endpoint, waiting, prices, circuits=circuits) as model,
        sending(bus, clock) as live,
    ):
        yield Talker(model, settings.model_id, clock, live, PARK_S * float(scale or 1), recorder)


class Talk:
    """One run's talk."""

    def __init__(
        self,
        model: Model,
        clock: Clock,
        live: LiveDeltas,
        state: RunState,
        specs: Mapping[str, ToolSpec],
        pulse: Pulse,
        park_s: float,
        recorder: Recorder | None,
    ) -> None:
        self._model, self._clock, self._live = model, clock, live
        self._park_s, self._recorder, self._pulse = park_s, recorder, pulse
        self._names = sorted(specs)
        self._project = state.project
        self._history = self._begun(state)
        self._tools = toolset(specs.values())
        self._schemas = Schemas(specs)

    def window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        """The number of messages that a request in this state would have, and whether it fits."""
        if state.project != self._project:
            # Only before the first request: the workspace was attached, and its project has something to say.
            self._project, self._history = state.project, self._begun(state)
        state, profile = self._bounded(state), self._profile(state)
        outbound = self._history.outbound(state, profile)

        def foreseen(after: RunState) -> Outbound:
            return self._history.foreseen(state, profile, after)

        tool_tokens = self._tools.estimated_tokens
        window = fit(outbound, state, foreseen, tool_tokens=tool_tokens, overflowed=overflowed)
        return outbound.message_count, window

    async def summarise(self, state: RunState, overflowed: bool, tell: Tell) -> list[e.LogEvent]:
        """The compaction that `window` asks a summary for, with one or without."""
        _, window = self.window(state, overflowed)
        if not isinstance(window, Compact):
            return []  # It fits after all: a message that made it too long is no longer waiting.
        if not window.summarise:
            return [window.event]
        state, profile = self._bounded(state), self._profile(state)
        recording = self._recorder.begin(state) if self._recorder is not None else None

        async def ask(fragments: list[bytes], tokens: int) -> ModelTurn:
            request = ModelRequest(
                iteration=state.iteration,
                render=lambda _: fragments,
                estimated_tokens=tokens,
                model=state.task.model,
                on_retry=self._teller(state, tell),
                tap=self._pulse.heard(recording.tap if recording is not None else untapped),
            )
            return await self._model.complete(request, unseen)

        def measure(event: e.ContextCompacted) -> int:
            outbound = self._history.foreseen(state, profile, after(state, event))
            return scaled(outbound.tokens + self._tools.estimated_tokens, state)

        compacted = await summarised(state, window.event, ask, measure)
        return [compacted if recording is None else await recording.noted(compacted)]

    async def next_turn(self, state: RunState, tell: Tell) -> list[e.LogEvent]:
        """Ask the model; what came of it, as events. `tell` hears meanwhile of attempts that are made again."""
        # What was said after the request was recorded is not in it, also when the request is made again.
        asked = msgspec.structs.replace(self._bounded(state), inbox=())
        expected = self._profile(state)
        outbound = self._history.outbound(asked, expected)

        def render(profile: Profile) -> list[bytes]:
            # Made anew only for a model, or once something was learned of it, that wants it otherwise.
            return (outbound if profile == expected else self._history.outbound(asked, profile)).fragments

        recording = self._recorder.begin(state) if self._recorder is not None else None
        request = ModelRequest(
            iteration=state.iteration,
            render=render,
            estimated_tokens=scaled(outbound.tokens + self._tools.estimated_tokens, state),
            tools=self._tools.json,
            schemas=self._tools.schemas,
            attempt=state.model_failures * ATTEMPTS_PER_CALL + 1,
            model=state.task.model,
            context_tokens=state.limits.context_tokens,
            on_retry=self._teller(state, tell),
            tap=self._pulse.heard(recording.tap if recording is not None else untapped),
        )
        self._pulse.beat()
        began = self._clock.monotonic()
        with self._live.of(state.tenant, state.run_id, state.iteration) as deltas:

            async def show(attempt: int, delta: Delta) -> None:
                deltas.add(attempt, delta.content, delta.reasoning)

            try:
                turn = await self._model.complete(request, show)
            except ModelFailure as failure:
                failed = self._failed(state, failure)
                return [failed if recording is None else await recording.noted(failed)]
        completed = self._completed(state, turn, int((self._clock.monotonic() - began) * 1000))
        return [completed if recording is None else await recording.noted(completed)]

    def _begun(self, state: RunState) -> History:
        prompt = system_prompt(
            state.task, self._names, state.project, context_tokens=state.limits.context_tokens
        )
        return History(prompt, paging=READ_FILE in self._names)

    def _bounded(self, state: RunState) -> RunState:
        """The state with its model's own context, where the operator knows that to be smaller than the run's."""
        known = self._model.profile(state.task.model).context_tokens
        if known is None or known >= state.limits.context_tokens:
            return state
        return msgspec.structs.replace(
            state, limits=msgspec.structs.replace(state.limits, context_tokens=known)
        )

    def _profile(self, state: RunState) -> Profile:
        """How requests are written, as far as it is known beforehand."""
        profile = self._model.profile(state.task.model)
        return profile if self._tools.json is not None else msgspec.structs.replace(profile, tools=False)

    def _completed(self, state: RunState, turn: ModelTurn, latency_ms: int) -> e.ModelCompleted:
        return e.ModelCompleted(
            iteration=state.iteration,
            content=turn.content,
            tool_calls=accepted(turn.calls, turn.calls_dropped, self._schemas),
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            latency_ms=latency_ms,
            reasoning=turn.reasoning,
            model=turn.model,
            attempt=turn.attempt,
        )

    def _teller(self, state: RunState, tell: Tell) -> OnRetry:
        """Records attempts that failed and are made again."""

        def retried(attempt: int, error_code: str, message: str, pause_s: float) -> None:
            failed = e.ModelFailed(
                iteration=state.iteration,
                error_code=error_code,
                message=message,
                attempt=attempt,
                retry_at=rfc3339(self._clock.now() + timedelta(seconds=pause_s)),
                final=False,
            )
            tell(failed)
            self._pulse.rest(pause_s)

        return retried

    def _failed(self, state: RunState, failure: ModelFailure) -> e.ModelFailed:
        overflow = isinstance(failure, ContextOverflow)
        return e.ModelFailed(
            iteration=state.iteration,
            error_code=CONTEXT_EXHAUSTED if overflow else failure.error_code,
            message=failure.message,
            attempt=failure.attempt,
            retry_at=None if overflow else self._retry_at(state, failure),
            usage=failure.usage,
        )

    def _retry_at(self, state: RunState, failure: ModelFailure) -> str | None:
        if failure.retry_at is not None and state.model_failures < NAMED_PARKS_MAX:
            return failure.retry_at
        if not failure.transient or state.model_failures >= PARKS_MAX:
            return None
        delay_s = min(self._park_s * 2**state.model_failures, PARK_MAX_S)
        return rfc3339(self._clock.now() + timedelta(seconds=delay_s))
