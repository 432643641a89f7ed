"""Ends runs that others want to end: children of a parent that has ended, and runs whose owner died before it did.

Invariant: a run that somebody alive carries is asked to end and no more. Repeating any of this changes nothing (key: the
run).
"""

from collections.abc import Callable

from libs.bus.ports import Liveness, LogKey
from libs.bus.runs import Runs
from libs.contracts.cancelling import cancelled
from libs.contracts.errors import NotFound
from libs.contracts.events import LogEvent
from libs.contracts.run import RunState


class Endings:
    """Asks runs to end, and ends those that nobody carries."""

    def __init__(self, runs: Runs, liveness: Liveness) -> None:
        self._runs, self._liveness = runs, liveness

    async def cancel(self, run: LogKey, by: str) -> None:
        """Have a run end, by somebody's word. Quiet when it has, or is gone."""
        await self._cancel(run, lambda _: by)

    async def finish(self, run: LogKey) -> None:
        """End a run that was asked to end and whose owner is dead: no executor may come to do it."""
        await self._cancel(run, lambda state: state.cancel_requested_by)

    async def _cancel(self, run: LogKey, by_of: Callable[[RunState], str | None]) -> None:
        try:
            owner = (await self._runs.load(*run)).state.owner
            dead = owner.boot if owner is not None and await self._liveness.is_dead(owner.boot) else None

            def decide(state: RunState) -> list[LogEvent]:
                by, owner_is_dead = by_of(state), state.owner is not None and state.owner.boot == dead
                return cancelled(state, by, owner_is_dead=owner_is_dead) if by is not None else []

            await self._runs.command(*run, decide)
        except NotFound:
            return
