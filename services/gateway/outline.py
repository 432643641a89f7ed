"""What an observer of a run, or of a project, has to know: where its log ends, and how its events are shown.

Invariant: an observer passes over what only a fold has to stop at: a run with kinds of events that this version does
not know has an outline, and its events are passed on as they are.
"""

from typing import NamedTuple

from libs.bus.ports import Log, LogKey
from libs.bus.runs import Projects, Runs
from libs.contracts.errors import NewerRecord, NotFound
from libs.contracts.ids import is_id
from libs.contracts.project import TERMINAL as PROJECT_TERMINAL
from libs.contracts.projects import ProjectStatus
from libs.contracts.run import TERMINAL, RunStatus
from libs.contracts.tasks import Limits
from services.gateway.frames import is_tombstone


class Outline(NamedTuple):
    """`position` is the stream sequence of the newest record, `last` its last public sequence, `status` the run's or the
    project's after it. Deltas of turns up to `turn_over` are old news."""

    key: LogKey
    position: int
    last: int
    status: RunStatus | ProjectStatus
    chars_max: int
    turn_over: int

    @property
    def terminal(self) -> bool:
        return self.status in (PROJECT_TERMINAL if is_id("project", self.key.log_id) else TERMINAL)


async def project_outline(projects: Projects, key: LogKey) -> Outline:
    """The outline of a project, up to the leader's tail. Raises `NotFound`."""
    folded = await projects.load(*key)
    state = folded.state
    return Outline(
        key=key,
        position=folded.last,
        last=state.sequence,
        status=state.status,
        chars_max=Limits().max_event_payload_chars,
        turn_over=0,
    )


async def outline(runs: Runs, log: Log, key: LogKey) -> Outline:
    """The outline of a run, up to the leader's tail. Raises `NotFound`, or `NewerRecord` when not even the headers of
    its newest record can be read."""
    try:
        folded = await runs.load(*key)
    except NewerRecord:
        return await _by_headers(log, key)
    state = folded.state
    return Outline(
        key=key,
        position=folded.last,
        last=state.sequence,
        status=state.status,
        chars_max=state.limits.max_event_payload_chars,
        turn_over=state.iteration - (1 if state.model_pending else 0),
    )


async def _by_headers(log: Log, key: LogKey) -> Outline:
    tail = await log.tail(key)
    if tail is not None and is_tombstone(tail):
        raise NotFound(f"there is no run {key.log_id}")
    if tail is None or tail.header.state not in frozenset(RunStatus):
        raise NewerRecord(f"{key.log_id} is in a state that this version does not know", log_id=key.log_id)
    header = tail.header
    return Outline(
        key=key,
        position=header.stream_sequence,
        last=header.last,
        status=RunStatus(header.state),
        chars_max=Limits().max_event_payload_chars,
        turn_over=0,
    )
