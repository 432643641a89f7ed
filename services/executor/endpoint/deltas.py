"""Text of a model as it streams, on the run's live subject: unstored, coalesced, never waited for.

Invariant: a delta is a courtesy. Whatever is lost here stands whole in `model.completed`, so what is still unsent
when the turn ends is dropped.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec

from libs.bus.ports import Wire
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, PayloadTooLarge
from libs.contracts.live import ModelDelta

# A person sees no difference below this, and a fast model would else send a thousand messages a second.
COALESCE_S = 0.03


class Deltas:
    """The deltas of one model call. Use `streaming`."""

    def __init__(self, wire: Wire, clock: Clock, subject: str, run_id: str, iteration: int) -> None:
        self._wire, self._clock, self._subject = wire, clock, subject
        self._run_id, self._iteration = run_id, iteration
        self._attempt = 1
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._due = asyncio.Event()

    def add(self, attempt: int, content: str, reasoning: str) -> None:
        """Show what an attempt added; a higher attempt makes what lower ones had unsent pointless."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._content, self._reasoning = [], []
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._due.set()

    async def send(self) -> None:
        """Send what comes, at most every `COALESCE_S`, until cancelled."""
        while True:
            await self._due.wait()
            await self._clock.sleep(COALESCE_S)
            self._due.clear()
            delta = ModelDelta(
                run_id=self._run_id,
                iteration=self._iteration,
                attempt=self._attempt,
                content="".join(self._content),
                reasoning="".join(self._reasoning),
            )
            self._content, self._reasoning = [], []
            # A bus that is away, or a chunk too large for it, must not end the model's turn.
            with contextlib.suppress(BusUnavailable, PayloadTooLarge):
                await self._wire.publish(self._subject, msgspec.json.encode(delta))


@contextlib.asynccontextmanager
async def streaming(
    wire: Wire, clock: Clock, subject: str, run_id: str, iteration: int
) -> AsyncGenerator[Deltas]:
    """Deltas are sent while the context lasts."""
    deltas = Deltas(wire, clock, subject, run_id, iteration)
    async with asyncio.TaskGroup() as group:
        sender = group.create_task(deltas.send())
        yield deltas
        sender.cancel()
