"""The model of a deployment for weeks: it thinks as long as it is told, says so all the while, and sometimes fails.

Invariant: what it does follows from the run's own task and history; a model that is asked again does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from libs.contracts import events as e
from libs.contracts.run import RunState
from libs.contracts.sessions import WRITE_HANDOFF, SessionKind
from libs.contracts.tools import ToolSpec
from libs.contracts.transcript import AssistantItem
from services.executor.app import Outside
from services.executor.egress.context import Fits, Window
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.talk import Tell
from tests.sim.errands import WANTED
from tests.sim.model import Ask, Turn, away, completed
from tests.sim.services import outside_of
from tests.sim.world import Machine, World

# One session in so many leaves what its check refuses, one in so many falls silent; at first one item in so many fails,
# and another one falls silent.
BAD_EVERY, SILENT_EVERY, FAILING_EVERY = 7, 20, 10
SILENT_ITEM = 5
# Signs of life in one turn.
SIGNS = 6


def reached(world: World, think_s: float, item_think_s: float, machine: Machine) -> Outside:
    """What an executor reaches beside the bus: a model that thinks so long about each turn of a session, and about an item
    or the run of a schedule."""

    @asynccontextmanager
    async def opened(*_: object) -> AsyncGenerator[Worker]:
        yield Worker(world, think_s, item_think_s)

    return outside_of(world, machine, dict[str, list[Turn]]())._replace(open_talker=opened)


class Worker:
    """What `services/executor/endpoint/talk.py` is to an executor."""

    model = "scripted"

    def __init__(self, world: World, think_s: float, item_think_s: float) -> None:
        self._world, self._think_s, self._item_think_s = world, think_s, item_think_s

    def talk(self, state: RunState, specs: Mapping[str, ToolSpec], pulse: Pulse) -> Work:
        del specs
        session = state.task.session
        works = session is not None and session.kind is SessionKind.FEATURE
        return Work(self._world, self._think_s if works else self._item_think_s, pulse)


class Work:
    """One run's talk."""

    def __init__(self, world: World, think_s: float, pulse: Pulse) -> None:
        self._world, self._think_s, self._pulse = world, think_s, pulse

    def window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        del overflowed
        return len(state.transcript) + 1, Fits(tokens=10)

    async def summarise(self, state: RunState, overflowed: bool, tell: Tell) -> list[e.LogEvent]:
        raise NotImplementedError

    async def next_turn(self, state: RunState, tell: Tell) -> list[e.LogEvent]:
        del tell
        place = sum(isinstance(item, AssistantItem) for item in state.transcript)
        session = state.task.session
        number = session.session if session is not None and session.kind is SessionKind.FEATURE else None
        place_in_ten = _first_try(state) % FAILING_EVERY
        if place_in_ten == SILENT_ITEM or (number is not None and number % SILENT_EVERY == 0):
            return await asyncio.get_running_loop().create_future()
        for _ in range(SIGNS):
            await self._world.clock.sleep(self._think_s / SIGNS)
            self._pulse.beat()
        if place_in_ten == 0:
            return [away(state, None)]
        if number is None:
            return [completed(state, "Read.")]
        if number % BAD_EVERY == 0:
            self._world.disks[state.workspace].files.pop(WANTED, None)
        return [completed(state, _turns(number)[min(place, 2)])]


def _first_try(state: RunState) -> int:
    """The number of an item that is tried for the first time; 1 for anything else."""
    labels = state.task.metadata
    return int(labels["item"]) if labels.get("attempt") == "1" else 1


def _turns(session: int) -> tuple[str | tuple[Ask, ...], ...]:
    left: dict[str, object] = {
        "done": [f"session {session} did its part"],
        "next": ["go on"],
        "decisions": [f"decision {session}: keep it as it is"],
        "pitfalls": [f"pitfall {session}: mind the gap"],
    }
    return (Ask("look", {}),), (Ask(WRITE_HANDOFF, left),), "Done."
