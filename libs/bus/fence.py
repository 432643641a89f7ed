"""The epoch fence of a tool host: whose calls it obeys (design, section 5).

Invariant: no call passes that is older than the newest claim this host has seen, and a newer claim counts only after
the leader's tail of the run's log has shown it.
"""

from collections import OrderedDict

from libs.bus.ports import Log, LogKey
from libs.contracts.clock import Clock
from libs.contracts.ids import is_id, is_token
from libs.contracts.run import OWNED, TERMINAL
from libs.contracts.tools import Refusal, ToolCall

# Runs that are remembered: far above what one host serves at a time; a forgotten run costs one leader read.
RUNS_MAX = 10_000
# After calls of a run were cancelled its further effects wait this long: the owner appends the run's end within 2 s of
# asking, and until then the tail would still admit a call that was on its way.
CLOSING_S = 5.0


class EpochFence:
    """Remembers the highest confirmed epoch of each run."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log, self._clock = log, clock
        self._epochs: OrderedDict[LogKey, int] = OrderedDict()
        self._closing: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def admit(self, call: ToolCall, *, fresh: bool) -> Refusal | None:
        """Why the call must not be carried out, or `None`. `fresh` reads the leader's tail in any case."""
        if not (is_token(call.tenant) and is_id("run", call.run_id)):
            return Refusal.MALFORMED
        key = LogKey(call.tenant, call.run_id)
        known = self._epochs.get(key, 0)
        if call.epoch < known:
            return Refusal.STALE_EPOCH
        if call.epoch == known and not fresh:
            return None
        return await self._confirm(key, call.epoch)

    def close(self, run_id: str, epoch: int) -> None:
        """The run's calls up to `epoch` were cancelled just now."""
        self._closing[run_id] = (epoch, self._clock.monotonic() + CLOSING_S)
        while len(self._closing) > RUNS_MAX:
            self._closing.popitem(last=False)

    def is_closing(self, call: ToolCall) -> bool:
        """Whether an effect of this call must wait for what its run's log will say."""
        epoch, until_s = self._closing.get(call.run_id, (-1, 0.0))
        return call.epoch <= epoch and self._clock.monotonic() < until_s

    async def is_over(self, key: LogKey) -> bool:
        """Whether the run is terminal or deleted by now, from the leader."""
        tail = await self._log.tail(key)
        return tail is None or tail.header.state in TERMINAL

    async def _confirm(self, key: LogKey, epoch: int) -> Refusal | None:
        tail = await self._log.tail(key)
        if tail is None or tail.header.state not in OWNED:
            return Refusal.RUN_NOT_LIVE
        self._epochs[key] = max(tail.header.epoch, self._epochs.pop(key, 0))
        while len(self._epochs) > RUNS_MAX:
            self._epochs.popitem(last=False)
        return None if epoch == tail.header.epoch else Refusal.STALE_EPOCH
