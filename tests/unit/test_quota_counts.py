"""The counting of quotas, whatever comes when: never more than the limit, and nothing is held for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from libs.bus.rates import WINDOW_S, Window, standings
from libs.bus.starts import LAG_S, RESERVED_S, places


@given(
    limit=st.integers(1, 20),
    requests=st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 9)), max_size=60),
)
def test_in_no_sixty_seconds_more_requests_are_let_in_than_the_limit(
    limit: int, requests: list[tuple[int, int]]
) -> None:
    window: Window = {}
    let_in: list[float] = []
    now_ms = 0
    for pause_ms, asked in requests:
        now_ms += pause_ms
        window, found = standings(window, now_ms // 1000, asked, limit)
        let_in += [now_ms / 1000] * sum(one.granted for one in found)
        remaining = [one.remaining for one in found]
        assert remaining == sorted(remaining, reverse=True)
        assert all(1 <= one.more_in_s <= WINDOW_S + 1 for one in found)
    for start in let_in:
        assert sum(start <= at < start + WINDOW_S for at in let_in) <= limit


def test_a_refusal_says_when_there_is_room_and_then_there_is() -> None:
    window, _ = standings({}, 1000, 3, 5)
    window, _ = standings(window, 1010, 2, 5)
    window, (refused,) = standings(window, 1020, 1, 5)
    assert not refused.granted
    at = 1020 + refused.more_in_s
    assert not standings(window, at - 1, 1, 5)[1][0].granted
    assert [one.granted for one in standings(window, at, 4, 5)[1]] == [True, True, True, False]


def test_a_clock_that_was_far_ahead_locks_nobody_out() -> None:
    window, _ = standings({}, 1_000_000, 5, 5)
    assert standings(window, 1000, 1, 5)[1][0].granted


def test_places_are_held_by_runs_that_go_on_and_by_those_that_were_let_in_a_moment_ago() -> None:
    known = {"a": "RUNNING", "b": "QUEUED", "w": "WAITING_FOR_INPUT", "e": "COMPLETED"}
    reserved = {"b": 100.0, "w": 100.0, "new": 100.0}
    after, found = places(reserved, known, ["x", "y"], 100.0 + LAG_S - 1, 4)
    assert [(one.granted, one.remaining) for one in found] == [(True, 0), (False, 0)]
    assert set(after) == {"b", "w", "new", "x"}


def test_the_same_run_holds_one_place_however_often_it_is_asked_for() -> None:
    reserved: dict[str, float] = {}
    for now in (1.0, 2.0, 3.0):
        reserved, (one,) = places(reserved, {}, ["a"], now, 1)
        assert one.granted
    assert reserved == {"a": 1.0}
    assert places(reserved, {"a": "RUNNING"}, ["a"], 4.0, 1)[1][0].granted


def test_what_a_dead_process_reserved_expires_and_what_is_known_does_not_stay_in_the_set() -> None:
    reserved = {"lost": 100.0, "known": 100.0}
    known = {"known": "COMPLETED"}
    assert set(places(reserved, known, [], 100.0 + LAG_S, 9)[0]) == {"lost"}
    assert places(reserved, known, [], 100.0 + RESERVED_S, 9)[0] == {}


def test_a_run_that_is_being_started_holds_its_place_while_it_is_shown_as_pending() -> None:
    reserved, _ = places({}, {"a": "PENDING"}, ["a"], 1.0, 1)
    _, (other,) = places(reserved, {"a": "PENDING"}, ["b"], RESERVED_S, 1)
    assert not other.granted
