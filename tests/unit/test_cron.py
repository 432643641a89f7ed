"""The times of schedules: cron expressions in time zones, also where clocks are put forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.cron import MISSED_COUNT_MAX, next_after_missed, next_time, require_cron, require_zone

BERLIN, LORD_HOWE = "Europe/Berlin", "Australia/Lord_Howe"
MOMENTS = st.integers(1_767_225_600, 1_830_297_600).map(lambda second: datetime.fromtimestamp(second, UTC))
EXPRESSIONS = st.sampled_from(
    ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 3 * * *", "15 */2 * * 1-5", "0 9 1 * *", "*/20 * 2 * * *"]
)
ZONES = st.sampled_from(["UTC", BERLIN, LORD_HOWE, "America/New_York", "Asia/Kathmandu"])


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next times, to the minute, in UTC."""
    found: list[str] = []
    at: datetime | None = datetime.fromisoformat(after)
    for _ in range(count):
        assert at is not None
        at = next_time(expression, zone, at)
        found.append(f"{at:%d %H:%M}" if at is not None else "never")
    return found


def test_a_time_that_does_not_exist_comes_when_the_clocks_were_put_forward() -> None:
    # In the night to 28 March 2027 the clocks of Berlin go from 02:00 to 03:00, which is 01:00 UTC.
    assert times("30 2 * * *", BERLIN, "2027-03-27T12:00Z", 3) == ["28 01:00", "29 00:30", "30 00:30"]
    assert times("30 * * * *", BERLIN, "2027-03-28T00:00Z", 3) == ["28 00:30", "28 01:30", "28 02:30"]


def test_a_time_that_exists_twice_comes_once_and_every_hour_still_every_hour() -> None:
    # In the night to 25 October 2026 they go from 03:00 back to 02:00: 02:30 is at 00:30 and at 01:30 UTC.
    assert times("30 2 * * *", BERLIN, "2026-10-24T12:00Z", 2) == ["25 00:30", "26 01:30"]
    assert times("30 * * * *", BERLIN, "2026-10-25T00:00Z", 3) == ["25 00:30", "25 01:30", "25 02:30"]
    # Asked in the second of the two hours, the answer is not a time of the first.
    assert times("30 2 * * *", BERLIN, "2026-10-25T01:10Z", 1) == ["26 01:30"]
    assert times("*/30 * * * *", BERLIN, "2026-10-25T01:10Z", 2) == ["25 01:30", "25 02:00"]


def test_half_an_hour_of_summer_time_counts_as_well() -> None:
    # Lord Howe Island: from 02:00 to 02:30 on 4 October 2026, which is 15:30 UTC the day before.
    assert times("15 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", 2) == ["03 15:30", "04 15:15"]


def test_seconds_stand_in_front_of_six_fields_and_names_for_five() -> None:
    at = next_time("30 0 12 * * *", "UTC", datetime(2026, 1, 1, tzinfo=UTC))
    assert at == datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    assert times("@daily", BERLIN, "2026-07-01T12:00Z", 2) == ["01 22:00", "02 22:00"]
    assert times("0 9 * * mon", "UTC", "2026-11-30T09:00Z", 1) == ["07 09:00"]


@given(EXPRESSIONS, ZONES, MOMENTS)
def test_the_next_time_lies_ahead_whatever_the_clocks_of_the_zone_do(
    expression: str, zone: str, after: datetime
) -> None:
    at = next_time(expression, zone, after)
    assert at is not None
    assert at > after
    # Nothing lies between: asked from anywhere before it, the answer is the same.
    between = after + (at - after) / 2
    assert between == at or next_time(expression, zone, between) == at


@given(EXPRESSIONS, ZONES, MOMENTS, st.timedeltas(timedelta(0), timedelta(hours=5)))
def test_what_was_missed_is_counted_and_passed_over(
    expression: str, zone: str, due: datetime, late: timedelta
) -> None:
    following, missed = next_after_missed(expression, zone, due, due + late)
    counted, at = 0, next_time(expression, zone, due)
    while at is not None and at <= due + late and counted < MISSED_COUNT_MAX:
        counted, at = counted + 1, next_time(expression, zone, at)
    assert (following, missed) == (next_time(expression, zone, due + late), counted)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "* * * *",
        "60 * * * *",
        "* * * * * * *",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "*/0 * * * *",
        "@never",
        "1-",
        "* * L * ,",
    ],
)
def test_what_is_no_time_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"cron expression|names no time"):
        require_cron(expression)


@pytest.mark.parametrize(
    "zone", ["", "Mars", "../../etc/passwd", "/etc/localtime", "Europe", "Europe/Berlin\0", "x" * 300]
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        require_zone(zone)
