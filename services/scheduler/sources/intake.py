"""Makes runs of what sources want, and tells sources what became of it.

Invariant: only the leader looks; a wish that fails, and a source that is away, are logged and change nothing else (key:
source and wish).
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from libs.bus.creation import CreateRequest, Creation
from libs.bus.ports import Log, LogKey
from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.errors import LogError, RequestError, Unavailable
from libs.contracts.http import TaskCreate, body_hash
from libs.contracts.ids import SHARDS, derived_run_id
from libs.contracts.run import TERMINAL, RunState, RunStatus
from services.scheduler.endings import Endings
from services.scheduler.leadership import Leadership
from services.scheduler.row import SOURCE_PREFIX
from services.scheduler.sources.configuration import (
    DirectorySource,
    GitHubSource,
    LinearSource,
    SourceSpec,
)
from services.scheduler.sources.directory import Directory
from services.scheduler.sources.github import GitHub
from services.scheduler.sources.linear import Linear
from services.scheduler.sources.wish import Outcome, Source, Wish

# A source that is away is asked ever more rarely, up to this.
EVERY_S_MAX = 300.0
_DOUBLINGS_MAX = 8
# Keys of ended wishes that a source keeps naming; forgetting one costs a read.
TOLD_MAX = 10_000

_STATUSES = {status.value: status for status in RunStatus}

_log = get_logger("sources")


class Intake:
    """All sources of one process. `going` gives the keys by which a source knows runs that go on."""

    def __init__(
        self,
        sources: Sequence[Source],
        runs: Runs,
        log: Log,
        creation: Creation,
        endings: Endings,
        clock: Clock,
        going: Callable[[str], Sequence[str]],
    ) -> None:
        self._sources, self._runs, self._log = sources, runs, log
        self._creation, self._endings, self._clock = creation, endings, clock
        self._going = going
        self._told: dict[tuple[str, str], None] = {}
        # Sources whose last wishes were not all seen to.
        self._behind: set[str] = set()

    async def watch(self, leadership: Leadership) -> None:
        """Look at all sources while this process leads, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._watch(source, leadership))

    async def look(self, source: Source) -> None:
        """One look at a source. Raises `Unavailable` when it is away."""
        wishes = await source.look(self._going(source.name), afresh=source.name in self._behind)
        self._behind.add(source.name)
        waiting = 0
        for wish in wishes:
            if (source.name, wish.key) in self._told:
                continue
            try:
                await self._see_to(source, wish)
            except (LogError, Unavailable) as error:
                # Seen again with the next look; the others are none the worse.
                _log.warning("source.wish_waits", source=source.name, wish=wish.key, message=error.message)
                waiting += 1
        if not waiting:
            self._behind.discard(source.name)

    async def _watch(self, source: Source, leadership: Leadership) -> None:
        failures = 0
        while True:
            await leadership.acquired()
            asked_s = 0
            try:
                await self.look(source)
                failures = 0
            except Unavailable as error:
                failures += 1
                asked_s = error.retry_after_s or 0
                _log.warning("source.away", source=source.name, message=error.message, failures=failures)
            wait_s = min(
                source.every_s * 2 ** min(failures, _DOUBLINGS_MAX), max(EVERY_S_MAX, source.every_s)
            )
            # A tracker that says when it wants to be asked again is not asked before.
            await self._clock.sleep(max(wait_s, asked_s))

    async def _see_to(self, source: Source, wish: Wish) -> None:
        run = LogKey(source.tenant, derived_run_id(SHARDS, source.tenant, "source", source.name, wish.key))
        tail = await self._log.tail(run)
        if tail is None:
            await self._begin(source, wish, run)
        elif _STATUSES.get(tail.header.state) in TERMINAL:
            found = await self._runs.find(*run)
            if found is None or found.state.deleted:
                await self._tell(source, wish, Outcome(run.log_id, None, error="its run was deleted"))
            else:
                await self._tell(source, wish, _outcome(found.state))
        elif wish.over:
            await self._end(source, wish, run)
        elif wish.task is None:
            _log.warning("source.unclear", source=source.name, wish=wish.key, message=wish.problem)

    async def _end(self, source: Source, wish: Wish, run: LogKey) -> None:
        """Have the run of a wish end that is over, unless only a label is missing by which it was not wished."""
        if wish.label is not None:
            found = await self._runs.find(*run)
            had = found.state.task.wish_label if found is not None else None
            if had != wish.label:
                message = f"it has not the label {wish.label}, and its run was made for the label {had}; the run goes on"
                _log.warning("source.unclear", source=source.name, wish=wish.key, message=message)
                return
        await self._endings.cancel(run, f"{SOURCE_PREFIX}{source.name}")
        _log.info(
            "source.cancelled", source=source.name, wish=wish.key, run_id=run.log_id, reason=wish.problem
        )

    async def _begin(self, source: Source, wish: Wish, run: LogKey) -> None:
        if wish.over:
            return
        if wish.task is None:
            await self._refuse(source, wish, wish.problem)
            return
        try:
            await self._creation.create(_request(source, wish, wish.task, run.log_id))
        except RequestError as error:
            await self._refuse(source, wish, f"{error.code}: {error.message}")
        else:
            _log.info("source.accepted", source=source.name, wish=wish.key, run_id=run.log_id)

    async def _refuse(self, source: Source, wish: Wish, reason: str) -> None:
        _log.warning("source.refused", source=source.name, wish=wish.key, message=reason)
        await self._tell(source, wish, Outcome("", None, error=reason))

    async def _tell(self, source: Source, wish: Wish, outcome: Outcome) -> None:
        await source.tell(wish.key, outcome)
        self._told[source.name, wish.key] = None
        if len(self._told) > TOLD_MAX:
            del self._told[next(iter(self._told))]


def sources_of(
    specs: Sequence[tuple[str, SourceSpec]], clock: Clock, *, linear_key: str = ""
) -> list[Source]:
    """The sources that a deployment has."""
    return [_source_of(name, spec, clock, linear_key) for name, spec in specs]


def _source_of(name: str, spec: SourceSpec, clock: Clock, linear_key: str) -> Source:
    match spec:
        case DirectorySource():
            return Directory(name, Path(spec.path), clock, tenant=spec.tenant, every_s=spec.every_s)
        case GitHubSource():
            return GitHub(name, spec, clock)
        case LinearSource():
            return Linear(name, spec, linear_key, clock)


def _request(source: Source, wish: Wish, task: TaskCreate, run_id: str) -> CreateRequest:
    by = f"{SOURCE_PREFIX}{source.name}"
    return CreateRequest(
        tenant=source.tenant,
        task=msgspec.structs.replace(task.spec(), wish=wish.key, wish_label=wish.label),
        body_hash=body_hash(task),
        auto_start=True,
        by=by,
        source=by,
        run_id=run_id,
    )


def _outcome(state: RunState) -> Outcome:
    error = f"{state.error.error_code}: {state.error.message}" if state.error is not None else ""
    if state.status is RunStatus.CANCELLED:
        error = f"CANCELLED by {state.cancel_requested_by or 'somebody'}"
    return Outcome(state.run_id, state.status, state.answer or "", error)
