"""Two live experiments on the fence: does this server let exactly one of two claimants win, and no stale writer write?

Invariant: they go through the one append of `libs/bus/log.py`, on a throw-away run log that nobody acts on and no list
shows; whatever happens the log is purged at the end, and one that was left behind harms nobody.
"""

import asyncio
from typing import NamedTuple

from libs.bus.ports import Bus, Draft, LogKey
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, Record
from libs.contracts.errors import AppendConflict, PerdureError
from libs.contracts.events import LogEvent, ModelRequested, RunClaimed
from libs.contracts.ids import new_boot_id, random_run_id
from libs.contracts.run import EXPERIMENT

# Races, one after the other: a server that admits two winners now and then is found by repeating.
ROUNDS = 20
# No tenant's: the log is not among anybody's runs.
TENANT = "doctor"


class Outcome(NamedTuple):
    """`held`: the server did what Perdure relies on."""

    held: bool
    message: str


class Experiments:
    """Both experiments over two connections, `first` and `second`, that stand for two processes."""

    def __init__(self, first: Bus, second: Bus, clock: Clock) -> None:
        self._first, self._second, self._clock = first, second, clock
        self._key = LogKey(TENANT, random_run_id(clock, 0))
        self._last = 0
        self._sequence = 0
        self._boots = {first: new_boot_id(clock), second: new_boot_id(clock)}

    async def two_claimants(self) -> Outcome:
        """Both claim on top of the same record, again and again."""
        for number in range(1, ROUNDS + 1):
            drafts = {bus: self._draft(self._claim(bus, epoch=number)) for bus in self._boots}
            results = await asyncio.gather(*(_tried(bus, draft) for bus, draft in drafts.items()))
            winners = [result for result in results if result is not None]
            behind = await self._first.log.read(self._key, self._last)
            if len(winners) != 1 or [_place(record) for record in behind] != [_place(winners[0])]:
                told = f"in race {number} {len(winners)} of 2 claimants were told that they won, the log holds {len(behind)}"
                return Outcome(held=False, message=f"{told}; do not run anything on this server")
            self._advance(winners[0])
        return Outcome(held=True, message=f"{ROUNDS} races of two claimants for one run, one winner in each")

    async def stale_writer(self) -> Outcome:
        """The first claims, the second takes over, then the first writes as if it still were the owner."""
        epoch = ROUNDS + 1
        self._advance(await self._first.log.append(self._draft(self._claim(self._first, epoch=epoch))))
        stale = self._draft(ModelRequested(iteration=1, model="none", message_count=1, estimated_tokens=1))
        self._advance(await self._second.log.append(self._draft(self._claim(self._second, epoch=epoch + 1))))
        written = await _tried(self._first, stale)
        behind = await self._second.log.read(self._key, self._last)
        if written is not None or behind:
            told = "a former owner wrote after it had been replaced"
            return Outcome(held=False, message=f"{told}; do not run anything on this server")
        return Outcome(held=True, message="a former owner's write was refused after a take-over")

    async def clean_up(self) -> Outcome:
        """Purge the throw-away log."""
        try:
            tail = await self._first.log.tail(self._key)
            if tail is not None:
                await self._first.log.purge(self._key, tail.header.stream_sequence + 1)
            left = await self._first.log.tail(self._key)
        except PerdureError as error:
            return Outcome(
                held=False, message=f"the throw-away log {self._key.log_id} is left: {error.message}"
            )
        if left is not None:
            return Outcome(held=False, message=f"the throw-away log {self._key.log_id} is left")
        return Outcome(held=True, message="the throw-away log is gone")

    def _claim(self, bus: Bus, *, epoch: int) -> RunClaimed:
        return RunClaimed(owner=TENANT, boot=self._boots[bus], epoch=epoch, attempt=epoch)

    def _draft(self, body: LogEvent) -> Draft:
        event = Event(self._sequence + 1, self._key.log_id, rfc3339(self._clock.now()), body)
        return Draft(self._key, self._last, [event], 0, EXPERIMENT)

    def _advance(self, record: Record) -> None:
        self._last, self._sequence = record.header.stream_sequence, record.header.last


async def _tried(bus: Bus, draft: Draft) -> Record | None:
    """The stored record, or `None` when the fence refused it."""
    try:
        return await bus.log.append(draft)
    except AppendConflict:
        return None


def _place(record: Record) -> tuple[int, str]:
    return record.header.stream_sequence, record.header.message_id
