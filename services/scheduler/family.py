"""Parents and children: a child's end reaches its parent, a parent's end its children.

Invariant: a parent learns of each of its calls at most once, by fold, and nobody works for a parent that has ended.
Repeating any of this changes nothing (key: parent run and call; child run).
"""

import asyncio
from collections.abc import Sequence

from libs.bus.ports import Log, LogKey
from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.errors import NotFound
from libs.contracts.events import ChildFinished, LogEvent
from libs.contracts.run import TERMINAL, RunState, RunStatus
from libs.contracts.transcript import AssistantItem
from services.scheduler.endings import Endings
from services.scheduler.row import delegated_by

# What a parent reads of a child whose log is gone. The gateway deletes no child before its parent has heard of it.
LOST = "the run is gone: it was removed before its result reached this one"

# Ends in one record, which holds 256 events; of a larger family the next sweep finds the rest.
ENDS_MAX = 100
# What a parent reads of the work of a child that failed: enough to go on from, little of its context.
WORDS_CHARS_MAX = 2_000
PARTS_MAX = 20

_log = get_logger("family")


class Family:
    """Carries the ends of runs to their relatives."""

    def __init__(self, runs: Runs, log: Log, endings: Endings) -> None:
        self._runs, self._log, self._endings = runs, log, endings
        self._tellings: dict[LogKey, _Telling] = {}

    async def is_over(self, run: LogKey) -> bool:
        """Whether the run has ended or is deleted, by the leader's word; its newest record says so without a fold."""
        tail = await self._log.tail(run)
        return tail is None or tail.header.state in TERMINAL

    async def report(self, child: LogKey) -> RunState | None:
        """A run has ended: record it in its parent, if one waits for it at all. The run, if it has ended."""
        found = await self._runs.find(*child)
        if found is None or not found.state.terminal:
            return None
        parent = delegated_by(child.log_id, found.state.parent)
        if parent is not None and found.state.parent is not None:
            await self._tell(
                LogKey(child.tenant, parent), [finished(found.state.parent.call_id, found.state)]
            )
        return found.state

    async def review(self, parent: LogKey) -> None:
        """A run waits for children: record those that have ended and whose end it has not heard of."""
        found = await self._runs.find(*parent)
        if found is None or found.state.status is not RunStatus.WAITING_FOR_CHILD:
            return
        state, ends = found.state, list[ChildFinished]()
        for call_id, child_id in state.children.items():
            if call_id in state.child_results:
                continue
            child = await self._runs.find(state.tenant, child_id)
            if child is None:
                # A run lets go only once all its children are made, so this one has been.
                ends.append(
                    ChildFinished(
                        call_id=call_id, child_run_id=child_id, status=RunStatus.FAILED, answer=LOST
                    )
                )
            elif child.state.terminal:
                ends.append(finished(call_id, child.state))
        await self._tell(parent, ends)

    async def recall(self, child: LogKey, parent: LogKey) -> None:
        """A parent has ended: cancel what still works for it."""
        if await self.is_over(parent):
            await self._endings.cancel(child, by=parent.log_id)
            _log.info("child.recalled", run_id=child.log_id, parent=parent.log_id)

    async def _tell(self, parent: LogKey, ends: Sequence[ChildFinished]) -> None:
        """Append these ends, together with those that others of this process want to append meanwhile: siblings that
        end at the same time would only take the fence from each other."""
        telling = self._tellings.setdefault(parent, _Telling())
        telling.ends |= {end.call_id: end for end in ends}
        telling.users += 1
        try:
            async with telling.turn:
                now = list(telling.ends.values())[:ENDS_MAX]
                await self._append(parent, now)
                for end in now:
                    telling.ends.pop(end.call_id, None)
        finally:
            telling.users -= 1
            if telling.users == 0:
                del self._tellings[parent]

    async def _append(self, parent: LogKey, ends: Sequence[ChildFinished]) -> None:
        if not ends:
            return  # They went with another's.
        try:
            await self._runs.command(*parent, lambda state: unheard(state, ends))
        except NotFound:
            return
        for end in ends:
            _log.info("child.reported", run_id=end.child_run_id, parent=parent.log_id, status=end.status)


class _Telling:
    """What is to be appended to one parent, by how many; one appends at a time. A failed one leaves its ends to the
    others, and whoever asked for it asks again."""

    def __init__(self) -> None:
        self.ends: dict[str, ChildFinished] = {}
        self.users = 0
        self.turn = asyncio.Lock()


def finished(call_id: str, child: RunState) -> ChildFinished:
    """How a child ended, as its parent records it."""
    assert child.terminal
    match child.status:
        case RunStatus.COMPLETED:
            answer = child.answer or ""
        case RunStatus.FAILED if child.error is not None:
            answer = f"{child.error.error_code}: {child.error.message}{partial_work(child)}"
        case _:
            answer = f"it was cancelled by {child.cancel_requested_by or 'somebody'}{partial_work(child)}"
    return ChildFinished(
        call_id=call_id,
        child_run_id=child.run_id,
        status=child.status,
        answer=answer,
        usage=child.usage,
        iterations=child.iteration + child.children_iterations,
        owned_ms=child.owned_ms + child.children_owned_ms,
    )


def partial_work(child: RunState) -> str:
    """What a child that did not complete leaves behind, for its parent's model to go on from; empty if nothing."""
    words = next(
        (
            item.content
            for item in reversed(child.transcript)
            if isinstance(item, AssistantItem) and item.content
        ),
        "",
    )
    done = [todo.content for todo in child.todos if todo.status == "completed"]
    parts = [
        f"It had done: {'; '.join(done[:PARTS_MAX])}" if done else "",
        f"Files it read or wrote: {', '.join(sorted(child.files)[:PARTS_MAX])}" if child.files else "",
        f"Its last words: {words[:WORDS_CHARS_MAX]}" if words else "",
    ]
    told = [part for part in parts if part]
    return "\n".join(["", "What it did is not undone.", *told]) if told else ""


def unheard(parent: RunState, ends: Sequence[ChildFinished]) -> list[LogEvent]:
    """Of these ends, those of calls that are the parent's and have no result; none once it has ended itself."""
    if parent.terminal:
        return []
    return [
        end
        for end in ends
        if parent.children.get(end.call_id) == end.child_run_id and end.call_id not in parent.child_results
    ]
