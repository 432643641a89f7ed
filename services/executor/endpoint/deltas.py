"""Text of models as it streams, on the live subjects of their runs: unstored, coalesced, never waited for.

Invariant: a delta is a courtesy. Whatever is lost here stands whole in `model.completed`, so what is still unsent
when a turn ends is dropped. One task sends for all runs of the process: a timer a run would cost more than its text.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from libs.bus.ports import Bus
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable, PayloadTooLarge
from libs.contracts.live import ModelDelta

# A person sees no difference below this, and a fast model would else send a thousand messages a second.
COALESCE_S = 0.03

_log = get_logger("deltas")


class Deltas:
    """The deltas of one model call, while `LiveDeltas.of` lasts."""

    def __init__(self, live: "LiveDeltas", subject: str, run_id: str, iteration: int) -> None:
        self.subject = subject
        self._live, self._run_id, self._iteration = live, run_id, iteration
        self._attempt = 1
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def add(self, attempt: int, content: str, reasoning: str) -> None:
        """Show what an attempt added; a higher attempt makes what lower ones had unsent pointless."""
        if attempt != self._attempt:
            self._attempt = attempt
            self._content, self._reasoning = [], []
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._live.wants(self)

    def taken(self) -> bytes:
        """What was added since the last time, as one message."""
        delta = ModelDelta(
            run_id=self._run_id,
            iteration=self._iteration,
            attempt=self._attempt,
            content="".join(self._content),
            reasoning="".join(self._reasoning),
        )
        self._content, self._reasoning = [], []
        return msgspec.json.encode(delta)


class LiveDeltas:
    """The deltas of all model calls of a process; they are sent while `sending` lasts."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        # Whose text waits, oldest first.
        self._waiting: dict[Deltas, None] = {}
        self._due = asyncio.Event()

    @contextmanager
    def of(self, tenant: str, run_id: str, iteration: int) -> Generator[Deltas]:
        """The deltas of one call, for as long as it lasts."""
        deltas = Deltas(self, self._bus.subjects.live(tenant, run_id), run_id, iteration)
        try:
            yield deltas
        finally:
            self._waiting.pop(deltas, None)

    def wants(self, deltas: Deltas) -> None:
        """These have something to send."""
        self._waiting[deltas] = None
        self._due.set()

    async def send(self) -> None:
        """Send what comes, at most every `COALESCE_S`, until cancelled."""
        while True:
            await self._due.wait()
            await self._clock.sleep(COALESCE_S)
            self._due.clear()
            for deltas in tuple(self._waiting):
                if deltas not in self._waiting:
                    continue  # Its turn ended while another one's text was sent.
                del self._waiting[deltas]
                # A bus that is away, or a chunk too large for it, must not end anybody's turn.
                with suppress(BusUnavailable, PayloadTooLarge):
                    await self._bus.wire.publish(deltas.subject, deltas.taken())


@asynccontextmanager
async def sending(bus: Bus, clock: Clock) -> AsyncGenerator[LiveDeltas]:
    """Deltas that are sent while the context lasts."""
    live = LiveDeltas(bus, clock)
    # In no group with the runs: a defect in showing their text must not end them.
    sender = asyncio.create_task(live.send())
    sender.add_done_callback(_ended)
    try:
        yield live
    finally:
        sender.cancel()
        await asyncio.wait({sender})


def _ended(sender: asyncio.Task[None]) -> None:
    if not sender.cancelled() and (defect := sender.exception()) is not None:
        advice = "runs go on; text is shown as it streams again once this process was restarted"
        _log.error("deltas.defect", error=repr(defect), advice=advice)
