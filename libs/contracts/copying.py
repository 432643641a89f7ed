"""A run's history as the beginning of another run: where it may be cut, and what becomes of what was open there. Pure.

Invariant: the copied events are the origin's, but for the id of their run; nothing behind the cut is looked at.
"""

from collections.abc import Iterator, Sequence

from libs.contracts.envelope import RECORD_BYTES_MAX, RECORD_EVENTS_MAX, Event, encode_event
from libs.contracts.events import ModelRequested, ToolRequested, ToolUncertain, WorkspaceSnapshotted
from libs.contracts.evolve import evolve
from libs.contracts.run import RunState
from libs.contracts.tools import Semantics
from libs.contracts.values import Listed

# Runtime tools live in their owner: nothing of them can be under way anywhere else, so the next owner just goes on.
_OF_THE_OWNER = frozenset({"ask_user", "write_todos", "delegate"})
# Half a record, because an event may be as large as the rest of it.
_BATCH_BYTES_MAX = RECORD_BYTES_MAX // 2


def renamed(events: Sequence[Event], run_id: str) -> list[Event]:
    """The events as those of another run."""
    return [event._replace(run_id=run_id) for event in events]


def folded(events: Sequence[Event]) -> RunState:
    """The state after a run's first events. Raises `IllegalTransition`."""
    state: RunState | None = None
    for event in events:
        state = evolve(state, event)
    assert state is not None, "a copy holds its first event at least"
    return state


def batches(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events in as few records as hold them."""
    batch: list[Event] = []
    size = 0
    for event in events:
        length = len(encode_event(event).payload) + 128
        if batch and (len(batch) == RECORD_EVENTS_MAX or size + length > _BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += length
    if batch:
        yield batch


def interrupted(state: RunState) -> list[ToolUncertain]:
    """What is said of the calls that had no result at the cut: the copy has no journal, so nothing there proves
    anything. No boot is named: whoever had them had them for another run."""
    return [
        ToolUncertain(
            call_id=call.call_id,
            attempt=call.attempt,
            reason="its run was cut off here; what became of it there is not looked at",
        )
        for call in state.calls
        if call.name not in _OF_THE_OWNER and call.uncertain is None
    ]


def last_checkpoint(events: Sequence[Event]) -> int:
    """The newest event behind which a run can be taken up again with its workspace as it was then: a request to the
    model, with nothing done in the workspace between the last snapshot and it. The first event when there is none."""
    found, saved, dirty = 1, 0, 0
    kept = {
        event.body.saved.at_sequence
        for event in events
        if isinstance(event.body, WorkspaceSnapshotted) and event.body.saved is not None
    }
    for event in events:
        match event.body:
            case ToolRequested(needs_workspace=True) as body if body.semantics is not Semantics.READ_ONLY:
                dirty = event.sequence
            case ModelRequested():
                saved = max((at for at in kept if at <= event.sequence), default=saved)
                if dirty <= saved:
                    found = event.sequence
            case _:
                pass
    return found


def listed(state: RunState, created_at: str) -> Listed:
    """What lists have to know of a copy in this state."""
    return Listed(
        task_id=state.task_id,
        goal=state.task.goal,
        workspace=state.workspace,
        priority=state.task.priority,
        metadata=state.task.metadata,
        created_at=created_at,
        attempt=state.attempt,
        started_at=state.started_at,
        finished_at=state.finished_at,
        answer=state.answer,
        verdict=state.verification.status.value if state.verification is not None else None,
        error=state.error,
        usage=state.usage,
    )
