"""Cron expressions in a time zone: when the next time is, strictly after a given one.

Invariant: the only user of the cron library and of the zone database. The answer follows from its arguments alone and lies
after `after`, also where the clocks of a zone are put forward or back.

Five fields (minute hour day-of-month month day-of-week) mean what Debian's cron makes of them: a job at a time of day that
does not exist runs right when the clocks were put forward, one at a time that exists twice runs once, one that is repeated
through the day (`*` in minute or hour) runs in every hour that passes. Six fields begin with seconds and are compared
with the clock on the wall as it is: a time that exists twice comes twice, one that does not exist does not come.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

# Longer ones say nothing that several schedules could not say more plainly.
CRON_CHARS_MAX = 200
# What the five fields have short names for.
_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Of an expression that is only to be checked, any time will do.
_SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)
# Times that are looked at to count the missed ones, of thousands of schedules at once after a long standstill: so many
# or more says enough.
MISSED_COUNT_MAX = 100


def require_zone(name: str) -> str:
    """The name as it was given. Raises `ValueError` for one that the zone database does not have."""
    _zone(name)
    return name


def require_cron(expression: str) -> str:
    """The expression as it was given. Raises `ValueError` for what is none, or names no time at all."""
    try:
        found = next_time(expression, "UTC", _SOME_TIME)
    except CronSimError as error:
        raise ValueError(
            f"is not a cron expression of five or six fields ({error}); as an example: '30 2 * * 1-5'"
        ) from error
    if found is None:
        raise ValueError("names no time of the next 50 years")
    return expression


def next_time(expression: str, zone: str, after: datetime) -> datetime | None:
    """The first time after `after` (aware), in UTC; `None` if there is none in 50 years."""
    return next(_times(expression, zone, after), None)


def next_after_missed(
    expression: str, zone: str, due: datetime, now: datetime
) -> tuple[datetime | None, int]:
    """The first time after both `due` and `now`, and how many lie between: those are passed over."""
    missed = 0
    for at in _times(expression, zone, due):
        if at > now:
            return at, missed
        missed += 1
        if missed == MISSED_COUNT_MAX:
            return next_time(expression, zone, now), missed
    return None, missed


def _times(expression: str, zone: str, after: datetime) -> Iterator[datetime]:
    times = CronSim(_NAMED.get(expression.strip().lower(), expression), after.astimezone(_zone(zone)))
    # Within an hour that comes twice, the library counts from the first of the two.
    return (at for at in (found.astimezone(UTC) for found in times) if at > after)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        # Not found, no name of a zone at all, or a folder of the database.
        raise ValueError("is not a time zone of the IANA database; as an example: 'Europe/Berlin'") from error
