"""Retention: runs that ended long ago are exported and deleted, as `DELETE` does it.

Invariant: nothing is deleted before its export is on the disk, and only what the log shows to have ended that long ago,
whose parent knows its end and whose project is over. Doing it again is quiet (key: the run): a file is written anew, a
tombstone is written once.
"""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from libs.bus import logfile
from libs.bus.ports import Bus, LogKey, Wakeup
from libs.bus.runs import Projects, Runs
from libs.chassis.files import written_whole
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, parse_rfc3339, rfc3339
from libs.contracts.deleting import deleted
from libs.contracts.envelope import decode_events
from libs.contracts.errors import NotFound, PerdureError, Unavailable, UnreadableRecord
from libs.contracts.events import LogEvent, RunDeleted
from libs.contracts.ids import is_id
from libs.contracts.project import TERMINAL as PROJECT_TERMINAL
from libs.contracts.run import TERMINAL, RunState
from services.scheduler.leadership import Leadership

# Runs of one pass: minutes of work beside everything else; more are found by the next one, which follows at once.
RUNS_PER_PASS = 1_000
BY = "retention"

_log = get_logger("retention")


class Keeping(NamedTuple):
    """How long ended runs are kept, and where their exports go (`None`: nowhere). `first_s` and `every_s`: when passes are
    made; days are counted in days, so an hour's delay is none. `quiet_s`: the latest record of every log has been told
    once nothing came for so long."""

    days: float
    folder: Path | None
    first_s: float = 60.0
    every_s: float = 3600.0
    quiet_s: float = 2.0


class Retention:
    """Takes away what has been kept long enough, while its process leads."""

    def __init__(self, bus: Bus, runs: Runs, projects: Projects, clock: Clock, keeping: Keeping) -> None:
        self._bus, self._runs, self._projects = bus, runs, projects
        self._clock, self._keeping = clock, keeping

    async def run(self, leadership: Leadership) -> None:
        """Make a pass now and then, until cancelled."""
        pause_s = self._keeping.first_s
        while True:
            await self._clock.sleep(pause_s)
            pause_s = self._keeping.every_s
            if not leadership.leads:
                continue
            try:
                if await self._pass(leadership):
                    pause_s = self._keeping.first_s
            except (Unavailable, UnreadableRecord) as error:
                _log.warning("retention.cut_short", message=error.message)

    async def _pass(self, leadership: Leadership) -> bool:
        """Whether there may be more to do at once."""
        old = await self._old(self._clock.now() - timedelta(days=self._keeping.days))
        for run in old:
            if not leadership.leads:
                return False
            try:
                await self._retire(run)
            except Unavailable:
                raise
            except (PerdureError, OSError) as error:
                # One run that cannot be read, or written to its file, keeps no other.
                _log.warning("run.kept", run_id=run.log_id, reason=str(error))
        return len(old) >= RUNS_PER_PASS

    async def _old(self, before: datetime) -> list[LogKey]:
        """Runs whose last record says that they ended before then."""
        found: list[LogKey] = []
        async with self._bus.log.wakeups() as wakeups:
            while len(found) < RUNS_PER_PASS:
                try:
                    async with asyncio.timeout(self._keeping.quiet_s):
                        wakeup = await anext(wakeups)
                except TimeoutError:
                    break
                if _ended_before(wakeup, before):
                    found.append(wakeup.key)
        return found

    async def _retire(self, run: LogKey) -> None:
        """Export and delete a run, unless somebody needs it. Raises `PerdureError`, `OSError`."""
        found = await self._runs.find(*run)
        if found is None or found.state.deleted or await self._is_needed(found.state):
            return
        if self._keeping.folder is not None:
            await self._export(run, self._keeping.folder)

        def decide(state: RunState) -> list[LogEvent]:
            return [] if state.deleted else deleted(state, BY, parent_waits=False)

        try:
            await self._runs.command(*run, decide)
        except NotFound:
            return
        _log.info("run.retired", run_id=run.log_id, tenant=run.tenant)

    async def _is_needed(self, state: RunState) -> bool:
        if state.parent is not None:
            parent = await self._runs.find(state.tenant, state.parent.run_id)
            if parent is not None and not parent.state.terminal and not parent.state.deleted:
                return True
        if state.task.session is None:
            return False
        project = await self._projects.find(state.tenant, state.task.session.project_id)
        return project is not None and project.state.status not in PROJECT_TERMINAL

    async def _export(self, run: LogKey, folder: Path) -> None:
        """One file a run, as `perdure log import` reads it."""
        target = folder / run.tenant / f"{run.log_id}.jsonl"
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_whole(target) as file:
            runs = 0

            def put(line: logfile.Line) -> None:
                file.write(f"{logfile.encoded(line)}\n")

            put(logfile.FileStart(version=logfile.VERSION, at=rfc3339(self._clock.now())))
            async for line in logfile.lines_of(self._bus, run):
                put(line)
                runs += isinstance(line, logfile.RunEnd)
            put(logfile.FileEnd(runs=runs))


def _ended_before(wakeup: Wakeup, before: datetime) -> bool:
    """By the record alone; the log is read before anything is done."""
    if not is_id("run", wakeup.key.log_id) or wakeup.header_state not in TERMINAL or wakeup.record is None:
        return False
    try:
        newest = decode_events(wakeup.record)[-1]
        return not isinstance(newest.body, RunDeleted) and parse_rfc3339(newest.at) < before
    except (UnreadableRecord, ValueError):
        return False
