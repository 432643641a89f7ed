"""The model of the simulation: each run's turns are written down, and which one comes is told by its log.

Invariant: the same history gives the same turn, so that a model that is asked again after a crash says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import NamedTuple

import msgspec

from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.ids import call_id
from libs.contracts.live import ModelDelta
from libs.contracts.run import RunState
from libs.contracts.tools import ToolSpec
from libs.contracts.transcript import AssistantItem, ToolItem
from libs.contracts.values import ModelToolCall, Usage
from services.executor.egress.context import Compact, Fits, Window
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.talk import Tell
from tests.sim.world import Machine, World


class Ask(NamedTuple):
    """A call of a turn."""

    name: str
    arguments: dict[str, object]


# A context that holds more entries is summarised.
SUMMARY_EVERY = 5


class Fault(NamedTuple):
    """The provider is away: the run is parked for so long, once."""

    retry_s: float


class Poison(NamedTuple):
    """The executor's process dies of asking for this turn, each time."""


# How a host says that it ended a call.
CANCELLED = "CANCELLED"
Turn = str | Fault | Poison | tuple[Ask, ...]
USAGE = Usage(requests=1, input_tokens=10, output_tokens=5, cost_usd=0.001)


class ScriptedTalker:
    """What `services/executor/endpoint/talk.py` is to an executor. `turns`: by the goal of a run."""

    model = "scripted"

    def __init__(self, world: World, machine: Machine, turns: Mapping[str, Sequence[Turn]]) -> None:
        self._world, self._machine, self._turns = world, machine, turns

    def talk(self, state: RunState, specs: Mapping[str, ToolSpec], pulse: Pulse) -> ScriptedTalk:
        del specs, pulse
        return ScriptedTalk(self._world, self._machine, self._turns[state.task.goal])


class ScriptedTalk:
    """One run's talk."""

    def __init__(self, world: World, machine: Machine, turns: Sequence[Turn]) -> None:
        self._world, self._machine, self._turns = world, machine, turns

    def window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        del overflowed
        if _entries(state) < SUMMARY_EVERY:
            return len(state.transcript) + 1, Fits(tokens=10)
        event = _compacted(state, None)
        return 1, Compact(event=event, summarise=True)

    async def summarise(self, state: RunState, overflowed: bool, tell: Tell) -> list[e.LogEvent]:  # noqa: ARG002 nothing fails here
        await self._world.clock.sleep(0.01 + self._world.chance.random())
        return [_compacted(state, "So far so good.")]

    async def next_turn(self, state: RunState, tell: Tell) -> list[e.LogEvent]:  # noqa: ARG002 nothing fails here
        world = self._world
        live = self._machine.bus.subjects.live(state.tenant, state.run_id)
        delta = ModelDelta(run_id=state.run_id, iteration=state.iteration, attempt=1, content="…")
        await self._machine.bus.wire.publish(live, msgspec.json.encode(delta))
        chance = world.chance.random()
        await world.clock.sleep(0.01 + 0.3 * chance if chance < 0.95 else 4.0)
        turn = self._turn(state)
        if isinstance(turn, Fault):
            at = rfc3339(world.clock.now() + timedelta(seconds=turn.retry_s))
            return [away(state, at)]
        if isinstance(turn, Poison):
            world.die(self._machine.process)
            return await asyncio.get_running_loop().create_future()
        world.bought[state.run_id, state.iteration] += 1
        return [completed(state, turn)]

    def _turn(self, state: RunState) -> Turn:
        # What a host ended before it was done is asked for once more.
        ended = {
            item.call_id
            for item in state.transcript
            if isinstance(item, ToolItem) and CANCELLED in item.output
        }
        place = sum(
            isinstance(item, AssistantItem) and not any(call.call_id in ended for call in item.calls)
            for item in state.transcript
        )
        for index, turn in enumerate(self._turns[: place + 1]):
            if isinstance(turn, Fault):
                if index == place and state.model_failures == 0:
                    return turn
                place += 1  # It has been away: the turn behind it.
        return self._turns[min(place, len(self._turns) - 1)]


def talkers(
    world: World, machine: Machine, turns: Mapping[str, Sequence[Turn]]
) -> Callable[..., AbstractAsyncContextManager[ScriptedTalker]]:
    """What the executor opens its talker with."""

    @asynccontextmanager
    async def opened(*_: object) -> AsyncGenerator[ScriptedTalker]:
        yield ScriptedTalker(world, machine, turns)

    return opened


def _entries(state: RunState) -> int:
    return len(state.transcript) - state.compacted


def _compacted(state: RunState, summary: str | None) -> e.ContextCompacted:
    return e.ContextCompacted(
        strategy="summarising" if summary else "sliding-window",
        tokens_before=20,
        tokens_after=10,
        dropped=len(state.transcript),
        summary=summary,
        usage=USAGE if summary else Usage(),
    )


def away(state: RunState, retry_at: str | None) -> e.ModelFailed:
    """The provider is away; the run waits for it until then, or fails."""
    return e.ModelFailed(
        iteration=state.iteration, error_code="PROVIDER_ERROR", message="away", attempt=1, retry_at=retry_at
    )


def completed(state: RunState, turn: str | tuple[Ask, ...]) -> e.ModelCompleted:
    """A whole turn, said in no time."""
    calls = (
        []
        if isinstance(turn, str)
        else [
            ModelToolCall(call_id=call_id(state.iteration, index), name=ask.name, arguments=ask.arguments)
            for index, ask in enumerate(turn)
        ]
    )
    return e.ModelCompleted(
        iteration=state.iteration,
        content=turn if isinstance(turn, str) else "",
        tool_calls=calls,
        finish_reason="stop" if isinstance(turn, str) else "tool_calls",
        usage=USAGE,
        latency_ms=1,
        model="scripted",
    )
