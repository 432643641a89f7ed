"""Watches for the times of schedules, and for what was lost of them.

Invariant: a time is watched for by whoever leads, from the rows that every scheduler keeps warm: the log says when it is,
so a time that came while nobody led, or nobody lived, has come for the next leader.
"""

from itertools import islice

from libs.bus.ports import Log, LogKey
from libs.contracts.clock import Clock
from services.scheduler.chores import Chores, Tend
from services.scheduler.leadership import Leadership
from services.scheduler.schedules.keeper import Keeper
from services.scheduler.schedules.rows import ScheduleRows

# How late a time may be noticed that became known only just before it came, and how early one looks again.
LOOK_S = 0.5
LOOK_S_MIN = 0.02
# What one sweep looks at of each kind.
LEFT_PER_SWEEP = 5_000
BURIED_PER_SWEEP = 200


class Times:
    """Has schedules looked at when their time comes."""

    def __init__(self, rows: ScheduleRows, keeper: Keeper, chores: Chores, log: Log, clock: Clock) -> None:
        self._rows, self._keeper, self._chores = rows, keeper, chores
        self._log, self._clock = log, clock

    async def watch(self, leadership: Leadership) -> None:
        """Watch while this process leads, until cancelled."""
        while True:
            pause_s = LOOK_S
            if leadership.leads:
                now = self._clock.now()
                self._chores.add(Tend(key) for key in self._rows.due(now))
                upcoming = self._rows.next_time()
                if upcoming is not None:
                    pause_s = min(max((upcoming - now).total_seconds(), LOOK_S_MIN), LOOK_S)
            await self._clock.sleep(pause_s)

    async def find_lost(self) -> None:
        """Have those looked at whose time was missed, whose run was not made, or whose log is to go. Raises
        `Unavailable`."""
        left = self._rows.left(self._clock.now())[:LEFT_PER_SWEEP]
        self._chores.add(Tend(key) for key in left)
        self._chores.add(Tend(key) for key in list(islice(self._rows.buried, BURIED_PER_SWEEP)))
        unsure = [
            (key, row.fired)
            for key, row in self._rows
            if row.fired is not None and not self._keeper.is_made(key, row.fired)
        ]
        runs = [LogKey(key.tenant, run_id) for key, run_id in unsure[:LEFT_PER_SWEEP]]
        there = await self._log.tails(runs)
        for (key, run_id), run in zip(unsure, runs, strict=False):
            if run in there:
                self._keeper.made(key, run_id)
            else:
                self._chores.add([Tend(key)])
