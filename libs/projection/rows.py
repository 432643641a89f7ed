"""What can be asked of a read model, and what it answers: the same for every store.

Invariant: a cursor is a value (the place of the last row given), so it is valid on every gateway and stays right
while rows come and go.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from libs.contracts.envelope import Record

# One page of a list: what a screen shows several times over.
LIMIT_MAX = 200
LIMIT_DEFAULT = 50


class Cursor(NamedTuple):
    """The place behind which a page begins, newest first."""

    created_at: str
    run_id: str


class RunQuery(NamedTuple):
    tenant: str
    limit: int = LIMIT_DEFAULT
    statuses: tuple[str, ...] = ()
    task_id: str | None = None
    project_id: str | None = None
    text: str | None = None
    before: Cursor | None = None


class RunRow(NamedTuple):
    """A run as lists show it. `metadata` is a JSON object."""

    run_id: str
    tenant: str
    task_id: str
    parent_run_id: str | None
    title: str
    status: str
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    workspace: str
    priority: str
    metadata: str
    answer: str | None
    verdict: str | None
    error_code: str | None
    error_message: str | None
    requests: int
    input_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: float | None
    pending_question: str | None

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_at, self.run_id)


class ProjectQuery(NamedTuple):
    tenant: str
    limit: int = LIMIT_DEFAULT
    statuses: tuple[str, ...] = ()
    before: Cursor | None = None


class ProjectRow(NamedTuple):
    """A project as lists show it."""

    project_id: str
    tenant: str
    name: str
    status: str
    phase: str
    created_at: str
    finished_at: str | None
    last_sequence: int
    last_event_at: str
    committed: int
    features_total: int
    sessions: int

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_at, self.project_id)


class ScheduleQuery(NamedTuple):
    tenant: str
    limit: int = LIMIT_DEFAULT
    statuses: tuple[str, ...] = ()
    before: Cursor | None = None


class ScheduleRow(NamedTuple):
    """A schedule as lists show it."""

    schedule_id: str
    tenant: str
    name: str
    cron: str
    timezone: str
    overlap: str
    enabled: int
    status: str
    created_at: str
    next_at: str | None
    last_run_id: str | None
    last_due_at: str | None
    fires: int
    missed: int
    skipped: int
    last_sequence: int

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_at, self.schedule_id)


class Position(NamedTuple):
    """How far a shard is folded: the last record applied, named so that another log is recognised."""

    shard: int
    stream_sequence: int
    tenant: str
    log_id: str
    message_id: str


class Index(Protocol):
    """A store of rows: a file of this process's own (`sqlite.py`), or a database of all gateways (`postgres.py`).

    Every method raises `Unavailable` while the store is away.
    """

    async def positions(self) -> dict[int, Position]:
        """How far each shard is folded; nothing of a shard that is not."""
        ...

    async def apply(self, shard: int, after: int, records: Sequence[Record]) -> int:
        """Apply life records, all that there are behind `after`, and move the position, in one transaction.

        Returns where the rows stand then. Below `after` nothing was applied: somebody made the rows anew, and whoever
        folds goes on from there.
        """
        ...

    async def clear(self) -> None:
        """Forget everything: the log is another one."""
        ...

    async def runs(self, query: RunQuery) -> list[RunRow]:
        """A page, newest first."""
        ...

    async def statuses(
        self, tenant: str, statuses: Collection[str], run_ids: Collection[str]
    ) -> dict[str, str]:
        """The runs of a tenant in one of these statuses, and those of these ids; children aside."""
        ...

    async def projects(self, query: ProjectQuery) -> list[ProjectRow]:
        """A page of projects, newest first."""
        ...

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        """A page of schedules, newest first."""
        ...
