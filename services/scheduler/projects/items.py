"""The core of a project over items: which begin now, what the end of a run means for one, when all is over. Pure.

Invariant: an item is done by a run of its own that completed, and by nothing else; each is begun again only after its last
run has ended. A decision looks at what goes on, waits or was given up, never at the whole list.
"""

from datetime import datetime, timedelta

from libs.contracts import project_events as e
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.evolve_items import all_over
from libs.contracts.items import (
    ERROR_CHARS_MAX,
    ItemEnd,
    ItemGoing,
    ItemMap,
    ItemsState,
    ItemStart,
    filled,
    filled_check,
    item_id,
)
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectEvent
from libs.contracts.projects import Phase, ProjectStatus
from libs.contracts.run import RunStatus
from libs.contracts.sessions import SessionKind, SessionRef, Stage
from libs.contracts.tasks import TaskSpec
from libs.contracts.values import RunError, Share, Usage
from services.scheduler.projects.effects import (
    Do,
    Effect,
    Env,
    MakeItem,
    PauseRun,
    ResumeRun,
    Say,
    StopRun,
    Wait,
    Watch,
)
from services.scheduler.projects.facts import RunSeen, error_of
from services.scheduler.projects.selection import BACKOFF_S_MAX, reached_cap
from services.scheduler.projects.shares import share_of
from services.scheduler.projects.silences import STALL

# 2^16 times the shortest wait is above the bound.
_DOUBLINGS_MAX = 16
_NAMED_MAX = 5


def decide_items(state: ProjectState, env: Env) -> Say | Do:
    """One step for a project over items."""
    items, mapped = state.items, state.spec.map
    assert items is not None
    assert mapped is not None
    ended = [
        (index, work, run)
        for index, work in items.going.items()
        if (run := env.runs.get(work.run_id)) is not None and run.ended
    ]
    if ended:
        return Say(_ended(state, mapped, ended, env.now))
    if state.cancel_requested_by is not None:
        return _cancel(items, env, state.cancel_requested_by)
    match state.status:
        case ProjectStatus.PAUSED:
            return Do(tuple(PauseRun(run.run_id, state.project_id) for run in _running(items, env)))
        case ProjectStatus.BLOCKED:
            return Do(tuple(_missing(items, env)))
        case _:
            return _go_on(state, items, mapped, env)


def task_of(state: ProjectState, index: int, work: ItemGoing) -> TaskSpec:
    """What the run of an item is asked to do."""
    mapped = state.spec.map
    assert mapped is not None
    item = mapped.items[index]
    labels = {"project_id": state.project_id, "item": str(index), "attempt": str(work.attempt)}
    goal = filled(mapped.goal, item)
    if work.last_error:
        # The same prompt again would fail the same way.
        goal += f"\n\nThis is attempt {work.attempt}. The one before ended so: {work.last_error}"
    return TaskSpec(
        goal=goal,
        workspace=mapped.workspace,
        acceptance=[filled_check(check, item) for check in mapped.acceptance],
        limits=state.limits.session,
        model=state.spec.model,
        tools=mapped.tools,
        metadata={**state.spec.metadata, **labels},
        instructions=state.spec.brief,
        unattended=state.spec.unattended,
        session=SessionRef(
            project_id=state.project_id, session=work.session, stage=Stage.AGENT, kind=SessionKind.ITEM
        ),
    )


def _ended(
    state: ProjectState, mapped: ItemMap, ended: list[tuple[int, ItemGoing, RunSeen]], now: datetime
) -> list[ProjectEvent]:
    usage = Usage()
    for _, _, run in ended:
        usage = usage.plus(run.usage)
    ends = [_end(state, mapped, index, work, run, now) for index, work, run in ended]
    return [e.ItemsEnded(items=ends, usage=usage)]


def _end(
    state: ProjectState, mapped: ItemMap, index: int, work: ItemGoing, run: RunSeen, now: datetime
) -> ItemEnd:
    if run.cancelled_by == STALL:
        run = run._replace(
            stalled=f"it showed no sign of life for {state.limits.stall_s:g} s, as long as is allowed (stall_s)"
        )
    error = error_of(run)
    if error is None and mapped.acceptance and not run.passed:
        error = RunError(error_code="UNVERIFIED", message="none of its checks proved that it is done")
    if error is None:
        return ItemEnd(index=index, run_id=work.run_id, done=True)
    again = work.attempt < state.attempts_max
    wait_s = min(mapped.retry_s * 2 ** min(work.attempt - 1, _DOUBLINGS_MAX), BACKOFF_S_MAX)
    return ItemEnd(
        index=index,
        run_id=work.run_id,
        done=False,
        error=f"{error.error_code}: {error.message}"[:ERROR_CHARS_MAX],
        retry_at=rfc3339(now + timedelta(seconds=wait_s)) if again else None,
    )


def _cancel(items: ItemsState, env: Env, by: str) -> Say | Do:
    if not items.going:
        return Say([e.ProjectCancelled(by=by)])
    # One that was asked for and is not there yet may be made this moment: it is made, and stopped once it is seen.
    stops = (
        StopRun(work.run_id, by) if work.run_id in env.runs else MakeItem(index)
        for index, work in items.going.items()
    )
    return Do(tuple(stops))


def _running(items: ItemsState, env: Env) -> list[RunSeen]:
    runs = (env.runs.get(work.run_id) for work in items.going.values())
    return [run for run in runs if run is not None and run.status is not RunStatus.PAUSED]


def _missing(items: ItemsState, env: Env) -> list[Effect]:
    return [MakeItem(index) for index, work in items.going.items() if work.run_id not in env.runs]


def _watched(state: ProjectState, env: Env) -> list[Effect]:
    """Runs that show no sign of life for too long are ended; the run's own log says by whom, and that is their record."""
    limit_s = state.limits.stall_s
    if limit_s <= 0:
        return []
    return [
        StopRun(run.run_id, STALL)
        if run.silent_s is not None and run.silent_s >= limit_s
        else Watch(run.run_id, limit_s)
        for run in env.runs.values()
    ]


def _go_on(state: ProjectState, items: ItemsState, mapped: ItemMap, env: Env) -> Say | Do:
    if all_over(state):
        return Say(_completed(state, items))
    free = state.spec.concurrency - len(items.going)
    stop = _stop(state, items, mapped, env.now)
    if stop is not None:
        # What goes on ends first, and counts.
        return Do((*_missing(items, env), *_watched(state, env))) if items.going else Say([stop])
    starts = _starts(state, items, mapped, free, env.now)
    if starts:
        return Say([*_phase(state, Phase.IMPLEMENT), e.ItemsBegun(items=starts)])
    effects = [*_missing(items, env), *_watched(state, env)]
    paused = (run for run in env.runs.values() if run.status is RunStatus.PAUSED)
    effects += [ResumeRun(run.run_id, "project") for run in paused]
    # One that is due and has no share begins when another one ends, which nobody has to be woken for.
    later = [one for one in items.waiting.values() if parse_rfc3339(one.until) > env.now]
    if free > 0 and later:
        soonest = min(later, key=lambda one: one.until)
        effects.append(Wait(soonest.sequence, parse_rfc3339(soonest.until)))
    return Do(tuple(effects))


def _starts(
    state: ProjectState, items: ItemsState, mapped: ItemMap, free: int, now: datetime
) -> list[ItemStart]:
    """What begins in the free places: what waited long enough, then the next of the list."""
    due = sorted(
        (one.until, index) for index, one in items.waiting.items() if parse_rfc3339(one.until) <= now
    )
    chosen = [(index, items.waiting[index].attempts + 1) for _, index in due]
    left = max(0, free - len(chosen))
    chosen += [(index, 1) for index in range(items.next, min(items.next + left, len(mapped.items)))]
    chosen = chosen[:free]
    shares = _shares(state, len(chosen), min(free, len(items.waiting) + len(mapped.items) - items.next))
    return [
        ItemStart(index=index, attempt=attempt, session=state.sessions + 1 + place, share=share)
        for place, ((index, attempt), share) in enumerate(zip(chosen, shares, strict=False))
    ]


def _shares(state: ProjectState, count: int, places: int) -> list[Share]:
    """What so many that could begin get of the project's caps; none for those that have to wait for others to end. `places`
    counts those beside them that wait for a retry only."""
    shares: list[Share] = []
    for place in range(count):
        share = share_of(state, places - place, shares)
        if share is None:
            break
        shares.append(share)
    return shares


def _stop(state: ProjectState, items: ItemsState, mapped: ItemMap, now: datetime) -> e.ProjectBlocked | None:
    """Why nothing more begins before a person has looked."""
    nothing_left = not items.going and not items.waiting and items.next == len(mapped.items)
    if items.failed and (nothing_left or len(items.failed) >= mapped.max_failed):
        named = "; ".join(
            f"{item_id(index)} ({one.error[:100]})" for index, one in list(items.failed.items())[:_NAMED_MAX]
        )
        return e.ProjectBlocked(
            cap="items",
            reason=f"{len(items.failed)} items were given up: {named}. Retry or skip them, or resume the project to "
            "try all of them again",
        )
    cap = reached_cap(state, now)
    if cap is None:
        return None
    return e.ProjectBlocked(cap=cap[0], reason=f"{cap[1]}; resume it with a higher limit to go on")


def _completed(state: ProjectState, items: ItemsState) -> list[ProjectEvent]:
    return [
        *_phase(state, Phase.IMPLEMENT),
        e.PhaseChanged(before=Phase.IMPLEMENT, phase=Phase.VERIFY),
        e.PhaseChanged(before=Phase.VERIFY, phase=Phase.DONE),
        e.ProjectCompleted(committed=items.done, skipped=len(items.skipped)),
    ]


def _phase(state: ProjectState, phase: Phase) -> list[ProjectEvent]:
    return [e.PhaseChanged(before=state.phase, phase=phase)] if state.phase is not phase else []
