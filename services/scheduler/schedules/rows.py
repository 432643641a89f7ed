"""The schedules that are not deleted, as their newest records say, and whose time has come.

Invariant: made of what the log said; losing it costs a replay. Nothing is decided from it but whom to look at.
"""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from libs.bus.ports import LogKey, Wakeup
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.schedule_events import ScheduleDeleted, ScheduleEvent, ScheduleFired
from libs.contracts.schedules import ScheduleStatus

# A time that came so long ago and is still not decided about was lost on the way: the sweep comes back to it.
OVERDUE_S = 5.0
# As in `decide`: a record that is further ahead of this clock was written by one that has been put back since.
AHEAD_S = 60.0


class ScheduleRow(NamedTuple):
    """A schedule as of the record at `sequence`, which was written at `at`. `fired`: the run that this record asks for."""

    sequence: int
    status: str
    at: datetime
    next_at: datetime | None = None
    fired: str | None = None


class ScheduleRows:
    """The schedules of one scheduler process."""

    def __init__(self) -> None:
        self._rows: dict[LogKey, ScheduleRow] = {}
        self._times: list[tuple[datetime, LogKey]] = []
        self._buried: dict[LogKey, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[LogKey, ScheduleRow]]:
        return iter(list(self._rows.items()))

    def get(self, key: LogKey) -> ScheduleRow | None:
        return self._rows.get(key)

    def note(self, wakeup: Wakeup) -> bool:
        """Take in a record; whether somebody has to look at the schedule now, not only when its time comes."""
        before = self._rows.get(wakeup.key)
        if before is not None and wakeup.stream_sequence <= before.sequence:
            return False
        row = _read(wakeup)
        if row.status == ScheduleStatus.DELETED:
            self._rows.pop(wakeup.key, None)
            self._buried[wakeup.key] = wakeup.stream_sequence
            return True
        self._rows[wakeup.key] = row
        if row.next_at is not None:
            heapq.heappush(self._times, (row.next_at, wakeup.key))
        return row.status == ScheduleStatus.HOLDING

    def due(self, now: datetime) -> list[LogKey]:
        """Those whose time has come; each is given once a time."""
        found: list[LogKey] = []
        while self._times and self._times[0][0] <= now:
            at, key = heapq.heappop(self._times)
            row = self._rows.get(key)
            if row is not None and row.next_at == at:
                found.append(key)
        return found

    def next_time(self) -> datetime | None:
        """Nobody's time comes before this."""
        return self._times[0][0] if self._times else None

    def left(self, now: datetime) -> list[LogKey]:
        """Those that something was lost of, or may have been: to be looked at in a sweep."""
        overdue, ahead = now - timedelta(seconds=OVERDUE_S), now + timedelta(seconds=AHEAD_S)
        return [
            key
            for key, row in self._rows.items()
            if row.status == ScheduleStatus.HOLDING
            or row.at > ahead
            or (row.next_at is not None and row.next_at < overdue)
        ]

    @property
    def buried(self) -> dict[LogKey, int]:
        """Deleted ones whose logs may hold more than their tombstones, with where those stand."""
        return self._buried


def _read(wakeup: Wakeup) -> ScheduleRow:
    """The row that a record makes. Of one that this version cannot read, nothing is known but that it is there."""
    unknown = ScheduleRow(wakeup.stream_sequence, wakeup.header_state, datetime.min.replace(tzinfo=UTC))
    if wakeup.record is None:
        return unknown
    try:
        newest = decode_events(wakeup.record)[-1]
        body, at = newest.body, parse_rfc3339(newest.at)
        if not isinstance(body, ScheduleEvent) or isinstance(body, ScheduleDeleted):
            return unknown._replace(at=at)
        next_at = parse_rfc3339(body.next_at) if body.next_at is not None else None
        fired = body.run_id if isinstance(body, ScheduleFired) else None
        return unknown._replace(at=at, next_at=next_at, fired=fired)
    except (UnreadableRecord, ValueError):
        return unknown
