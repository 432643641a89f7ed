"""The fold of what a project records about its items. Part of `evolve_project.py`.

Invariant: as there; an event costs the same however many items there are.
"""

from typing import cast

import msgspec

from libs.contracts import project_events as e
from libs.contracts.envelope import Event
from libs.contracts.errors import IllegalTransition
from libs.contracts.ids import session_run_id
from libs.contracts.items import ItemFailed, ItemGoing, ItemsState, ItemWaiting
from libs.contracts.project import ProjectState
from libs.contracts.projects import FeatureStatus
from libs.contracts.sessions import Stage

_replace = msgspec.structs.replace


def items_begun(state: ProjectState, event: Event) -> ProjectState:
    """Items begin, in the order of their sessions."""
    body, items = cast(e.ItemsBegun, event.body), _of(state, event)
    going, waiting, following, sessions = dict(items.going), dict(items.waiting), items.next, state.sessions
    for start in body.items:
        fresh = start.index == following
        if start.session != sessions + 1 or not (fresh or start.index in waiting):
            raise _illegal(state, event, f"item {start.index} cannot begin as session {start.session}")
        sessions = start.session
        following += fresh
        before = waiting.pop(start.index, None)
        going[start.index] = ItemGoing(
            attempt=start.attempt,
            session=start.session,
            run_id=session_run_id(state.project_id, start.session, Stage.AGENT),
            last_error=before.error if before is not None else "",
            share=start.share,
        )
    items = _replace(items, next=following, going=going, waiting=waiting)
    return counted(_replace(state, items=items, sessions=sessions))


def items_ended(state: ProjectState, event: Event) -> ProjectState:
    """Runs of items ended: done, to be tried again, or given up."""
    body, items = cast(e.ItemsEnded, event.body), _of(state, event)
    going, waiting, failed, done = dict(items.going), dict(items.waiting), dict(items.failed), items.done
    error = ""
    for end in body.items:
        work = going.pop(end.index, None)
        if work is None or work.run_id != end.run_id:
            raise _illegal(state, event, f"run {end.run_id} is not the one of item {end.index}")
        error = end.error or error
        if end.done:
            done += 1
        elif end.retry_at is not None:
            waiting[end.index] = ItemWaiting(
                attempts=work.attempt,
                until=end.retry_at,
                error=end.error,
                run_id=end.run_id,
                sequence=event.sequence,
            )
        else:
            failed[end.index] = ItemFailed(attempts=work.attempt, error=end.error, run_id=end.run_id)
    items = _replace(items, going=going, waiting=waiting, failed=failed, done=done)
    return counted(
        _replace(state, items=items, usage=state.usage.plus(body.usage), last_error=error or state.last_error)
    )


def item_decided(state: ProjectState, event: Event) -> ProjectState:
    """A person's word on an item that was given up: it is tried again from the first attempt, or left out."""
    body, items = cast(e.ItemDecided, event.body), _of(state, event)
    known = items.failed.get(body.index)
    if known is None:
        raise _illegal(state, event, f"item {body.index} was not given up")
    failed = {index: one for index, one in items.failed.items() if index != body.index}
    if body.skip:
        items = _replace(items, failed=failed, skipped=[*items.skipped, body.index])
    else:
        again = ItemWaiting(
            attempts=0, until=event.at, error=known.error, run_id=known.run_id, sequence=event.sequence
        )
        items = _replace(items, failed=failed, waiting={**items.waiting, body.index: again})
    return counted(_replace(state, items=items))


def all_again(state: ProjectState, event: Event) -> ProjectState:
    """All items that were given up are tried again from the first attempt."""
    items = state.items
    if items is None or not items.failed:
        return state
    again = {
        index: ItemWaiting(
            attempts=0, until=event.at, error=one.error, run_id=one.run_id, sequence=event.sequence
        )
        for index, one in items.failed.items()
    }
    return counted(_replace(state, items=_replace(items, failed={}, waiting={**items.waiting, **again})))


def counted(state: ProjectState) -> ProjectState:
    """The state with the counts by status that its items have."""
    items, mapped = state.items, state.spec.map
    assert items is not None
    assert mapped is not None
    counts = {
        FeatureStatus.PENDING: len(mapped.items) - items.next + len(items.waiting),
        FeatureStatus.IN_PROGRESS: len(items.going),
        FeatureStatus.COMMITTED: items.done,
        FeatureStatus.BLOCKED: len(items.failed),
        FeatureStatus.SKIPPED: len(items.skipped),
    }
    return _replace(state, counts=counts)


def all_over(state: ProjectState) -> bool:
    """Whether every item is done or left out."""
    items, mapped = state.items, state.spec.map
    return (
        items is not None
        and mapped is not None
        and items.done + len(items.skipped) == len(mapped.items)
        and not (items.going or items.waiting or items.failed)
    )


def _of(state: ProjectState, event: Event) -> ItemsState:
    if state.items is None or state.spec.map is None:
        raise _illegal(state, event, "it is no project over items")
    return state.items


def _illegal(state: ProjectState, event: Event, why: str) -> IllegalTransition:
    return IllegalTransition(f"event {event.sequence} of {state.project_id}: {why}")
