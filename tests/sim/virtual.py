"""A test that takes hours of virtual time and no real one: one coroutine with a bus on the twin.

Invariant: it ends, or is found to hang, within the virtual time that it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from libs.bus.twin.network import Fate, Op, QuietNetwork
from libs.bus.twin.server import TwinBus, TwinServer
from tests.sim.clock import SimClock
from tests.sim.loop import SimLoop

Story = Callable[[TwinBus, SimClock, "Weather"], Awaitable[None]]


class Weather(QuietNetwork):
    """Nothing is lost but the operations whose kind is in `down`; the server never hears of them. `once` is what becomes
    of the next operation of a kind, `seen` counts those of each, `server` is who is reached."""

    def __init__(self, server: TwinServer) -> None:
        self.server = server
        self.down: set[str] = set()
        self.once: dict[str, Fate] = {}
        self.seen: Counter[str] = Counter()

    def fate(self, op: Op) -> Fate:
        self.seen[op.kind] += 1
        fate = self.once.pop(op.kind, None)
        return fate or (Fate(there_s=None) if op.kind in self.down else Fate())


def told(story: Story, *, at_most_s: float) -> None:
    """Let the story happen."""
    loop = SimLoop()
    clock = SimClock(loop, 0)
    weather = Weather(TwinServer(clock))

    async def tell() -> None:
        await story(weather.server.connect("test", weather), clock, weather)

    try:
        telling = loop.create_task(tell())
        ended = loop.run(telling.done, at_most_s)
        assert ended, f"it did not end within {at_most_s:g} s"
        telling.result()
    finally:
        loop.close()
