"""A row: what the scheduler knows of one run that has not ended, and how a life record or a fold makes the next one. Pure.

Invariant: a row says what the log said at its sequence; what nobody has read yet is `None` and never guessed.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from libs.bus.checkpoints import Folded
from libs.bus.ports import LogKey, Wakeup
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Event, decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.events import (
    InputRequested,
    RunCancelRequested,
    RunClaimed,
    RunCreated,
    RunDeleted,
    RunReleased,
)
from libs.contracts.ids import child_run_id, is_id, session_run_id
from libs.contracts.run import OWNED, RunState, RunStatus
from libs.contracts.sessions import SessionRef
from libs.contracts.subjects import Priority
from libs.contracts.tasks import Parent

# Statuses that a ticket follows on, at once or when they are due; and those that end by themselves at some time.
READY = frozenset({RunStatus.QUEUED, RunStatus.RETRYING})
TIMED = frozenset({RunStatus.RETRYING, RunStatus.WAITING_FOR_INPUT})
# Who made a run that a source wanted: this and the source's name.
SOURCE_PREFIX = "source:"

# "At once", and as far away as any time-out gets: a date must stay one.
AT_ONCE = datetime.min.replace(tzinfo=UTC)
TIMEOUT_S_MAX = 100 * 365 * 24 * 3600.0


class Wished(NamedTuple):
    """The source that wanted a run, and the key by which it knows it."""

    source: str
    key: str


class Origin(NamedTuple):
    """What a run was created with and keeps: the run that delegated it (`None`: a person), its patience, the name of its
    workspace, the project that it is a session's run of, the schedule that it was made by, and the wish of a source."""

    parent: str | None
    input_timeout_s: float | None
    workspace: str = ""
    project: str | None = None
    schedule: str | None = None
    wish: Wished | None = None


class Deadline(NamedTuple):
    """When the wait that began with the event `sequence` is over."""

    sequence: int
    at: datetime


class Row(NamedTuple):
    """A run as of the life record at `sequence`.

    `owner` (boot of the last claim), `priority`, `origin`, `waiting_since` (public sequence of the event that the run
    waits on) and `due_at` (when that wait is over) are `None` while nobody has read them. `cancelling`: somebody wants it
    to end. `alone`: a process is made for it, which takes its time to claim it. `since`: when it was first seen in this status. `due`: its retry time has come. `ticketed_at`: the ticket that is out for it; `late`: it took
    too long and no longer counts against the slots. `tickets`: how many went out. Times are monotonic seconds.
    """

    key: LogKey
    sequence: int
    status: RunStatus
    epoch: int
    since: float
    owner: str | None = None
    priority: Priority | None = None
    origin: Origin | None = None
    cancelling: bool = False
    alone: bool = False
    waiting_since: int | None = None
    due_at: datetime | None = None
    due: bool = False
    ticketed_at: float | None = None
    late: bool = False
    tickets: int = 0

    @property
    def run_id(self) -> str:
        return self.key.log_id

    @property
    def owned(self) -> bool:
        return self.status in OWNED

    @property
    def may_have_calls(self) -> bool:
        """Whether hosts may run something for it: its owner's calls, or what an owner left behind that let go of it to
        have it taken up again. A run that waits for anything else was let go of without a call."""
        return self.owned or (self.status in READY and self.epoch > 0)

    @property
    def parent(self) -> LogKey | None:
        """The run that delegated this one, as far as is known."""
        if self.origin is None or self.origin.parent is None:
            return None
        return LogKey(self.key.tenant, self.origin.parent)

    @property
    def deadline(self) -> Deadline | None:
        """What a timer has to stand for."""
        if self.waiting_since is None or self.due_at is None or self.due_at == AT_ONCE:
            return None
        return Deadline(self.waiting_since, self.due_at)

    @property
    def known(self) -> bool:
        """Whether all is known that may ever be asked of it; what is not urgent is read in the sweep."""
        return self.origin is not None and (self.status not in TIMED or self.waiting_since is not None)

    def complete(self, *, orphaned: bool) -> bool:
        """Whether all is known that a decision about the run needs now."""
        if self.owned and not orphaned:
            return self.owner is not None
        if self.status is RunStatus.RETRYING and self.due_at is None:
            return False
        return self.priority is not None or not (self.owned or self.status in READY)


def advanced(row: Row | None, wakeup: Wakeup, status: RunStatus, at: float) -> Row:
    """The row after a wake-up that is newer than it, from the record alone."""
    before = row or Row(key=wakeup.key, sequence=0, status=status, epoch=-1, since=at)
    epoch = wakeup.record.header.epoch if wakeup.record is not None else before.epoch
    # A record without a claim leaves the owner as it was, if the row knew the claim before it.
    owner = before.owner if row is not None and epoch == before.epoch else None
    priority, origin, cancelling = before.priority, before.origin, before.cancelling
    same_wait = before.status is status and before.epoch == epoch
    waiting_since, due_at = (before.waiting_since, before.due_at) if same_wait else (None, None)
    for event in events_of(wakeup):
        match event.body:
            case RunCreated(task=task) as body:
                priority, origin = task.priority, _origin(wakeup.key.log_id, body)
            case RunClaimed(boot=boot):
                owner = boot
            case RunCancelRequested():
                cancelling = True
            case RunReleased(retry_at=retry_at):
                waiting_since, due_at = event.sequence, _retry_time(retry_at)
            case InputRequested():
                waiting_since, due_at = event.sequence, _expiry(event.at, origin)
            case _:
                pass
    row = before._replace(
        sequence=wakeup.stream_sequence,
        status=status,
        epoch=epoch,
        owner=owner if status in OWNED else None,
        priority=priority,
        origin=origin,
        cancelling=cancelling,
        waiting_since=waiting_since if status in TIMED else None,
        due_at=due_at if status in TIMED else None,
    )
    return _moved(before, row, at)


def read(row: Row | None, found: Folded, at: float) -> Row:
    """The row as a fold of its run says it is."""
    state = found.state
    before = row or Row(
        key=LogKey(state.tenant, state.run_id),
        sequence=found.last,
        status=state.status,
        epoch=state.epoch,
        since=at,
    )
    origin = _origin(state.run_id, state)
    after = before._replace(
        status=state.status,
        epoch=state.epoch,
        owner=state.owner.boot if state.owner is not None else None,
        priority=state.task.priority,
        origin=origin,
        cancelling=state.cancel_requested_by is not None,
        alone=state.carried_alone,
        waiting_since=state.waiting_since if state.status in TIMED else None,
        due_at=_due_at(state, origin),
    )
    return _moved(before, after, at)


def events_of(wakeup: Wakeup) -> list[Event]:
    """The events of the record; none when it has no body here or is of a later version: then the run is read."""
    if wakeup.record is None:
        return []
    try:
        return decode_events(wakeup.record)
    except UnreadableRecord:
        return []


def is_tombstone(wakeup: Wakeup) -> bool:
    """Whether the record deletes its run."""
    return any(isinstance(event.body, RunDeleted) for event in events_of(wakeup))


def delegated_by(run_id: str, parent: Parent | None) -> str | None:
    """The parent of a run. A copy of a child (a fork, an import) is nobody's child: its id is not that of the call."""
    if parent is None or not is_id("run", parent.run_id):
        return None
    return parent.run_id if child_run_id(parent.run_id, parent.call_id) == run_id else None


def session_of(run_id: str, session: SessionRef | None) -> str | None:
    """The project that a run is a session's run of. A copy of one (a fork, a retry) is nobody's: its id is another."""
    if session is None or not is_id("project", session.project_id):
        return None
    made = session_run_id(session.project_id, session.session, session.stage)
    return session.project_id if made == run_id else None


def _origin(run_id: str, made: RunCreated | RunState) -> Origin:
    return Origin(
        parent=delegated_by(run_id, made.parent),
        input_timeout_s=made.limits.input_timeout_s,
        workspace=made.workspace,
        project=session_of(run_id, made.task.session),
        schedule=made.task.schedule,
        wish=_wish_of(made),
    )


def _wish_of(made: RunCreated | RunState) -> Wished | None:
    """A copy of a wished run (a fork, a retry) is nobody's wish: it has another source."""
    source = made.source.removeprefix(SOURCE_PREFIX)
    return None if made.task.wish is None or source == made.source else Wished(source, made.task.wish)


def _moved(before: Row, after: Row, at: float) -> Row:
    """`after`, with what belongs to a stay in one place begun anew if it is another one: its place in the line and
    its ticket."""
    if (before.status in OWNED) == (after.status in OWNED) and before.epoch == after.epoch:
        same = before.status in OWNED or before.status is after.status
        if same:
            return after
    return after._replace(since=at, due=False, ticketed_at=None, late=False, tickets=0)


def _due_at(state: RunState, origin: Origin) -> datetime | None:
    asked = state.pending_question
    if state.status is RunStatus.RETRYING:
        return _retry_time(state.retry_at)
    return _expiry(asked.asked_at, origin) if asked is not None else None


def _expiry(asked_at: str, origin: Origin | None) -> datetime | None:
    """When nobody needs to answer any more; `None`: never, or nobody has read yet how patient the run is."""
    if origin is None or origin.input_timeout_s is None:
        return None
    return parse_rfc3339(asked_at) + timedelta(seconds=min(origin.input_timeout_s, TIMEOUT_S_MAX))


def _retry_time(retry_at: str | None) -> datetime:
    """When a released run may be claimed again; one that names no time may be at once."""
    try:
        return parse_rfc3339(retry_at) if retry_at is not None else AT_ONCE
    except ValueError:
        return AT_ONCE
