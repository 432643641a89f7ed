"""What the scheduler knows: one row for each run that has not ended, and the indexes that admission asks.

Invariant: every index follows from the rows and the written deaths alone (`_place_of`). A run stands in a lane exactly
while a ticket for it should go out: it is queued, due or without a living owner, and has no ticket. All of it is made
of what the log said; losing it costs a replay.
"""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import NamedTuple

from libs.bus.starts import HOLDING
from libs.contracts.run import RunStatus
from services.scheduler.admission import Demand, Lane, Waiting
from services.scheduler.row import Row

# The owner of a run that somebody owns and nobody has read yet: it may be any executor.
UNREAD = ""

_Lanes = dict[str, dict[Lane, dict[str, Waiting]]]


class _Place(NamedTuple):
    """Where a row counts: a slot of `owner`, what its tenant has in execution, the tickets that are out, a lane of the
    waiting. Children (`nested`) are counted beside the runs that people started."""

    owner: str | None
    active: bool
    outstanding: bool
    lane: Lane | None
    nested: bool


class Rows:
    """The rows of one scheduler process."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._places: dict[str, _Place] = {}
        self._dead: set[str] = set()
        self._lanes: tuple[_Lanes, _Lanes] = ({}, {})
        self._active: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._owned: dict[str, set[str]] = {}
        self._children: dict[str, set[str]] = {}
        self._wished: dict[str, set[str]] = {}
        self._holding: dict[str, set[str]] = {}
        self._retrying: set[str] = set()
        self._outstanding: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(list(self._rows.values()))

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._rows

    def get(self, run_id: str) -> Row | None:
        return self._rows.get(run_id)

    def put(self, row: Row) -> None:
        """Insert or replace a row."""
        self.drop(row.run_id)
        place = _place_of(row, orphaned=self.orphaned(row))
        self._rows[row.run_id], self._places[row.run_id] = row, place
        self._enter(row, place)

    def drop(self, run_id: str) -> None:
        """Forget a run; quiet when it is not known."""
        row = self._rows.pop(run_id, None)
        if row is not None:
            self._leave(row, self._places.pop(run_id))

    # --- What changes without a record ---

    def bury(self, boot: str) -> list[Row]:
        """A death is written: what this boot owned needs another owner. Returns those runs."""
        owned = [self._rows[run_id] for run_id in self._owned.get(boot, ())]
        self._dead.add(boot)
        for row in owned:
            self.put(row)
        return owned

    def exhume(self, boot: str) -> None:
        """A written death has expired: nobody knows of this boot any more."""
        if boot in self._dead:
            self._dead.discard(boot)
            for row in self:
                if row.owned and row.owner == boot:
                    self.put(row)

    def fall_due(self, now: datetime) -> int:
        """Let the runs wait for a ticket whose retry time has come; returns how many."""
        retrying = [self._rows[run_id] for run_id in self._retrying]
        due = [row for row in retrying if row.due_at is not None and row.due_at <= now]
        for row in due:
            self.put(row._replace(due=True))
        return len(due)

    def fire(self, run_id: str, sequence: int) -> None:
        """A timer says that the retry time has come, if the run still waits since then."""
        row = self._rows.get(run_id)
        if row is not None and row.status is RunStatus.RETRYING and row.waiting_since == sequence:
            self.put(row._replace(due=True))

    def ticket(self, run_id: str, at: float) -> Row:
        """A ticket for this run goes out now."""
        row = self._rows[run_id]
        sent = row._replace(ticketed_at=at, late=False, tickets=row.tickets + 1)
        self.put(sent)
        return sent

    def unticket(self, run_id: str) -> None:
        """The ticket did not go out, or is lost: the run waits again, where it stood."""
        row = self._rows.get(run_id)
        if row is not None:
            self.put(row._replace(ticketed_at=None, late=False))

    def expire(self, before: float) -> int:
        """Tickets that went out before then no longer count against the slots; returns how many there were."""
        out = [self._rows[run_id] for run_id in self._outstanding]
        expired = [row for row in out if row.ticketed_at is not None and row.ticketed_at < before]
        for row in expired:
            self.put(row._replace(late=True))
        return len(expired)

    # --- What others ask ---

    def orphaned(self, row: Row) -> bool:
        """Whether the run is owned by a boot that is written dead."""
        return row.owned and row.owner in self._dead

    def may_work_in(self, tenant: str, workspace: str) -> bool:
        """Whether a run that has not ended works in this workspace, or may, for all that has been read of it."""
        return any(
            row.origin is None or row.origin.workspace == workspace
            for row in self._rows.values()
            if row.key.tenant == tenant
        )

    def demands(self) -> dict[str, Demand]:
        """What each tenant with waiting runs wants."""
        first, nested = self._lanes
        return {
            tenant: Demand(
                self._active[False][tenant],
                {lane: waiting.values() for lane, waiting in first.get(tenant, {}).items()},
                self._active[True][tenant],
                {lane: waiting.values() for lane, waiting in nested.get(tenant, {}).items()},
            )
            for tenant in first.keys() | nested.keys()
        }

    def occupied(self, boots: AbstractSet[str]) -> int:
        """Slots of these executors that are taken, or promised by tickets."""
        owned = sum(len(self._owned.get(boot, ())) for boot in (*boots, UNREAD))
        return owned + len(self._outstanding)

    @property
    def promised(self) -> int:
        """Tickets that went out and count until they are claimed."""
        return len(self._outstanding)

    def owners(self) -> set[str]:
        """The boots that own runs and are not written dead."""
        return set(self._owned) - {UNREAD}

    def children_of(self, run_id: str) -> list[Row]:
        """The runs that this one delegated and that have not ended."""
        return [self._rows[child] for child in sorted(self._children.get(run_id, ()))]

    def holding(self, tenant: str) -> dict[str, str]:
        """The runs of a tenant that hold places, with their statuses; children hold none."""
        return {run_id: self._rows[run_id].status.value for run_id in self._holding.get(tenant, ())}

    def wished_by(self, source: str) -> list[str]:
        """The keys by which this source knows runs that go on, as far as they have been read, and that nobody has asked
        to end."""
        rows = (self._rows[run_id] for run_id in self._wished.get(source, ()))
        wishes = (row.origin.wish for row in rows if row.origin is not None and not row.cancelling)
        return sorted(wish.key for wish in wishes if wish is not None)

    # --- Indexes ---

    def _enter(self, row: Row, place: _Place) -> None:
        tenant, run_id = row.key
        if place.owner is not None:
            self._owned.setdefault(place.owner, set()).add(run_id)
        if place.active:
            self._active[place.nested][tenant] += 1
        if place.outstanding:
            self._outstanding.add(run_id)
        if row.status is RunStatus.RETRYING and not row.due:
            self._retrying.add(run_id)
        if row.parent is not None:
            self._children.setdefault(row.parent.log_id, set()).add(run_id)
        elif row.status in HOLDING:
            self._holding.setdefault(tenant, set()).add(run_id)
        if row.origin is not None and row.origin.wish is not None:
            self._wished.setdefault(row.origin.wish.source, set()).add(run_id)
        if place.lane is not None:
            lanes = self._lanes[place.nested].setdefault(tenant, {})
            lanes[place.lane] = _joined(lanes.get(place.lane, {}), Waiting(run_id, row.since))

    def _leave(self, row: Row, place: _Place) -> None:
        tenant, run_id = row.key
        if place.owner is not None:
            _discard(self._owned, place.owner, run_id)
        if place.active:
            active = self._active[place.nested]
            active[tenant] -= 1
            if active[tenant] == 0:
                del active[tenant]
        self._outstanding.discard(run_id)
        self._retrying.discard(run_id)
        if row.parent is not None:
            _discard(self._children, row.parent.log_id, run_id)
        elif row.status in HOLDING:
            _discard(self._holding, tenant, run_id)
        if row.origin is not None and row.origin.wish is not None:
            _discard(self._wished, row.origin.wish.source, run_id)
        if place.lane is not None:
            lanes = self._lanes[place.nested][tenant]
            del lanes[place.lane][run_id]
            if not lanes[place.lane]:
                del lanes[place.lane]
            if not lanes:
                del self._lanes[place.nested][tenant]


def _place_of(row: Row, *, orphaned: bool) -> _Place:
    nested = row.parent is not None
    if row.owned and not orphaned:
        return _Place(row.owner or UNREAD, active=True, outstanding=False, lane=None, nested=nested)
    ready = orphaned or row.status is RunStatus.QUEUED or (row.status is RunStatus.RETRYING and row.due)
    if not ready or row.priority is None:
        return _Place(None, active=False, outstanding=False, lane=None, nested=nested)
    if row.ticketed_at is None:
        lane = "orphaned" if orphaned else row.priority
        return _Place(None, active=False, outstanding=False, lane=lane, nested=nested)
    return _Place(None, active=not row.late, outstanding=not row.late, lane=None, nested=nested)


def _discard(index: dict[str, set[str]], name: str, run_id: str) -> None:
    index[name].discard(run_id)
    if not index[name]:
        del index[name]


def _joined(waiting: dict[str, Waiting], one: Waiting) -> dict[str, Waiting]:
    """The lane with one more, in order of `since`. Nearly always it is the last; a run that comes back is not."""
    if waiting and next(reversed(waiting.values())).since > one.since:
        ordered = sorted([*waiting.values(), one], key=lambda each: each.since)
        return {each.run_id: each for each in ordered}
    waiting[one.run_id] = one
    return waiting
