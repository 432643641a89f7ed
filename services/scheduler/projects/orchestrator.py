"""Does what the core of projects decides: folds a project, looks at its runs, appends, makes runs and sets timers.

Invariant: what is to be recorded is recorded before anything is done; all that is done may be done again (key: project,
session and stage). Whoever loses the fence reads again and decides anew.
"""

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import assert_never

import msgspec

from libs.bus.ports import Liveness, Log, LogKey, Timers
from libs.bus.runs import Decide, FoldedProject, Projects, Runs
from libs.chassis.logs import get_logger
from libs.contracts.cancelling import cancelled
from libs.contracts.clock import Clock
from libs.contracts.errors import AppendConflict, BusUnavailable, NotFound
from libs.contracts.events import (
    LogEvent,
    RunCreated,
    RunPauseRequested,
    RunResumeRequested,
    RunStartRequested,
)
from libs.contracts.ids import task_id_of
from libs.contracts.project import ProjectState
from libs.contracts.run import TERMINAL, RunState, RunStatus
from libs.contracts.tasks import Limits
from services.scheduler.projects.decide import BY, settle
from services.scheduler.projects.effects import (
    Effect,
    Env,
    MakeItem,
    MakeRun,
    PauseRun,
    ResumeRun,
    StopRun,
    Wait,
    Watch,
)
from services.scheduler.projects.facts import RunSeen, gone, seen
from services.scheduler.projects.items import task_of
from services.scheduler.projects.sessions import SessionRun, limits_of, run_of
from services.scheduler.projects.silences import silence_behind, silence_of

# Looks in a row: others may be faster a few times; a run that is made and gone takes one more.
TRIES_MAX = 20
# Folds that are kept between two looks; one that was let go of is read again, from its checkpoint.
KEPT_MAX = 1_000
# A checkpoint is kept each time that so many events more are in a project's log. Counted in the log, not in a process:
# however often schedulers start anew, and however little happens between two starts, a fold begins about that far back.
CHECKPOINT_EVENTS = 128
_log = get_logger("projects")


_STATUSES = {status.value: status for status in RunStatus}

# What the owner with this boot says of the silence of its runs (`LeaseValue.silences`); `None`: it says nothing.
Told = Callable[[str], Mapping[str, float] | None]


class Orchestrator:
    """Advances projects for one process. `watched`: the runs to be looked at once they are silent for so long."""

    def __init__(
        self,
        projects: Projects,
        runs: Runs,
        timers: Timers,
        liveness: Liveness,
        clock: Clock,
        limits: Limits,
        told: Told,
        log: Log,
    ) -> None:
        self._log_of = log
        self._projects, self._runs, self._timers = projects, runs, timers
        self._liveness, self._clock, self._limits, self._told = liveness, clock, limits, told
        self.watched: dict[LogKey, dict[str, float]] = {}
        self._kept: OrderedDict[LogKey, FoldedProject] = OrderedDict()
        self._turns: dict[LogKey, asyncio.Lock] = {}

    def known(self, key: LogKey) -> int:
        """The stream sequence up to which a project was folded here and acted on; 0: it is not kept."""
        kept = self._kept.get(key)
        return kept.last if kept is not None else 0

    async def advance(self, key: LogKey, fired: int | None = None) -> None:
        """Bring a project as far as it goes now. Quiet for one that is not there. Raises `Unavailable`."""
        turn = self._turns.setdefault(key, asyncio.Lock())
        try:
            async with turn:
                await self._advance(key, fired)
        except NotFound:
            self._forget(key)
        finally:
            if not turn.locked():
                self._turns.pop(key, None)

    async def _advance(self, key: LogKey, fired: int | None) -> None:
        folded = await self._folded(key)
        known = self._kept.get(key, folded).state.sequence
        lost: set[str] = set()
        for _ in range(TRIES_MAX):
            env = Env(self._clock.now(), await self._runs_of(folded.state, lost), fired)
            settled = settle(folded.state, env)
            if settled.events:
                try:
                    folded = await self._projects.commit(folded, settled.events)
                except AppendConflict:
                    folded = await self._projects.refresh(folded)
                    continue
                state = folded.state
                self._log(state, len(settled.events))
                if state.terminal or state.sequence // CHECKPOINT_EVENTS > known // CHECKPOINT_EVENTS:
                    await self._projects.checkpoint(folded)
                known = state.sequence
            self._keep(key, folded)
            self.watched[key] = {
                effect.run_id: effect.silent_s for effect in settled.then.effects if isinstance(effect, Watch)
            }
            if not self.watched[key]:
                del self.watched[key]
            again = [await self._do(folded.state, effect, lost) for effect in settled.then.effects]
            if not any(again):
                return
        raise BusUnavailable(f"project {key.log_id} changes too fast; it is looked at again", retry_after_s=1)

    async def _folded(self, key: LogKey) -> FoldedProject:
        kept = self._kept.get(key)
        return await (self._projects.refresh(kept) if kept is not None else self._projects.load(*key))

    async def _runs_of(self, state: ProjectState, lost: set[str]) -> dict[str, RunSeen]:
        """The runs that sessions have asked for, as far as they exist."""
        if state.items is not None:
            return await self._runs_of_items(
                state, [work.run_id for work in state.items.going.values()], lost
            )
        found: dict[str, RunSeen] = {}
        for work in state.works.values():
            if work.run_id is None:
                continue
            run = await self._runs.find(state.tenant, work.run_id)
            if run is not None:
                owner = run.state.owner
                told = self._told(owner.boot) if owner is not None else None
                found[work.run_id] = seen(run.state, silence_of(run.state, told, self._clock.now()))
            elif work.run_id in lost:
                found[work.run_id] = gone(work.run_id)
        return found

    async def _runs_of_items(
        self, state: ProjectState, wanted: list[str], lost: set[str]
    ) -> dict[str, RunSeen]:
        """Of many runs only those are folded that have ended: the newest record says which."""
        tails = await asyncio.gather(*(self._log_of.tail(LogKey(state.tenant, run_id)) for run_id in wanted))
        found: dict[str, RunSeen] = {}
        for run_id, tail in zip(wanted, tails, strict=True):
            status = _STATUSES.get(tail.header.state) if tail is not None else None
            if tail is not None and status is not None and status not in TERMINAL:
                told = self._told(tail.header.boot)
                silent_s = silence_behind(tail, status, told, self._clock.now())
                found[run_id] = RunSeen(run_id, status, silent_s=silent_s)
            elif tail is not None:
                run = await self._runs.find(state.tenant, run_id)
                found[run_id] = seen(run.state) if run is not None else gone(run_id)
            elif run_id in lost:
                found[run_id] = gone(run_id)
        return found

    async def _do(self, state: ProjectState, effect: Effect, lost: set[str]) -> bool:
        """Make an effect true; whether the project has to be looked at again at once."""
        match effect:
            case MakeRun(lane):
                return await self._make(state, run_of(state, state.works[lane], self._limits), lost)
            case MakeItem(index):
                return await self._make_item(state, index, lost)
            case StopRun(run_id, by):
                await self._stop(state, run_id, by)
            case PauseRun(run_id, _):
                await self._command(state, run_id, _paused)
            case ResumeRun(run_id, _):
                await self._command(state, run_id, _resumed)
            case Watch():
                pass
            case Wait(sequence, until):
                await self._timers.arm(LogKey(state.tenant, state.project_id), sequence, until)
            case _:
                assert_never(effect)
        return False

    async def _make_item(self, state: ProjectState, index: int, lost: set[str]) -> bool:
        assert state.items is not None
        work = state.items.going[index]
        task, limits = task_of(state, index, work), limits_of(state, work.share, self._limits)
        return await self._make(state, SessionRun(work.run_id, task, limits), lost)

    async def _make(self, state: ProjectState, run: SessionRun, lost: set[str]) -> bool:
        created = RunCreated(
            tenant=state.tenant,
            task_id=task_id_of(run.run_id),
            task=run.task,
            limits=run.limits,
            workspace=run.task.workspace or run.run_id,
            body_hash=hashlib.sha256(msgspec.json.encode(run.task)).hexdigest(),
            source="project",
        )
        try:
            await self._runs.create(
                state.tenant, run.run_id, [created, RunStartRequested(by=state.project_id)]
            )
        except AppendConflict:
            if await self._runs.find(state.tenant, run.run_id) is None:
                # It was made, deleted and purged before its end was recorded.
                lost.add(run.run_id)
            # Else another scheduler was faster; whether it has ended meanwhile shows the next look.
            return True
        _log.info("session.run_made", project_id=state.project_id, run_id=run.run_id)
        return False

    async def _stop(self, state: ProjectState, run_id: str, by: str) -> None:
        with contextlib.suppress(NotFound):
            owner = (await self._runs.load(state.tenant, run_id)).state.owner
            dead = owner.boot if owner is not None and await self._liveness.is_dead(owner.boot) else None

            def end(run: RunState) -> list[LogEvent]:
                owner_is_dead = run.owner is not None and run.owner.boot == dead
                return cancelled(run, by, owner_is_dead=owner_is_dead)

            await self._runs.command(state.tenant, run_id, end)

    async def _command(self, state: ProjectState, run_id: str, decide: Decide) -> None:
        with contextlib.suppress(NotFound):
            await self._runs.command(state.tenant, run_id, decide)

    def _keep(self, key: LogKey, folded: FoldedProject) -> None:
        if folded.state.terminal:
            self._forget(key)
            return
        self._kept[key] = folded
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT_MAX:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: LogKey) -> None:
        self._kept.pop(key, None)
        self.watched.pop(key, None)

    def _log(self, state: ProjectState, events: int) -> None:
        _log.info(
            "project.advanced",
            project_id=state.project_id,
            status=state.status,
            phase=state.phase,
            session=state.sessions,
            events=events,
        )


def _paused(run: RunState) -> list[LogEvent]:
    resting = run.terminal or run.pause_requested or run.status in (RunStatus.PAUSED, RunStatus.PENDING)
    return [] if resting else [RunPauseRequested(by=BY)]


def _resumed(run: RunState) -> list[LogEvent]:
    rests = run.status is RunStatus.PAUSED or run.pause_requested
    return [RunResumeRequested(by=BY)] if rests and not run.terminal else []
