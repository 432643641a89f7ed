"""Circuit breakers: when a model is left alone, when it is probed, and when everybody may ask again."""

from services.executor.endpoint.circuits import (
    CALLS_MIN,
    CIRCUITS_MAX,
    FAILURES_MAX,
    OPEN_MAX_S,
    OPEN_S,
    Circuits,
    Standing,
)
from services.executor.endpoint.completion import Patience


def noted(circuits: Circuits, standing: Standing, times: int = 1, *, now: float = 0.0) -> None:
    for call in range(times):
        circuits.note("m", standing, now, call=call, cause="HTTP 503")


def opened() -> Circuits:
    circuits = Circuits()
    noted(circuits, "failed", FAILURES_MAX)
    return circuits


def test_a_few_calls_by_themselves_do_not_open_a_circuit_however_often_they_fail() -> None:
    assert 1 + len(Patience().waits_s) < FAILURES_MAX
    circuits = Circuits()
    for attempt in range(10 * FAILURES_MAX):
        circuits.note("m", "failed", 0.0, call=attempt % (CALLS_MIN - 1))
    assert circuits.admit("m", 0.0)
    assert circuits.summary(0.0) == ""
    circuits.note("m", "failed", 0.0, call=CALLS_MIN)
    assert not circuits.admit("m", 0.0)


def test_failures_in_a_row_open_a_circuit_for_that_model_alone_and_say_why() -> None:
    circuits = opened()
    assert not circuits.admit("m", OPEN_S - 0.1)
    assert circuits.admit("other", 0.0)
    assert circuits.cause("m") == "HTTP 503"
    assert circuits.summary(10.0) == f"m (for {OPEN_S - 10:.0f} s)"


def test_an_answer_in_between_begins_the_count_anew() -> None:
    circuits = Circuits()
    noted(circuits, "failed", FAILURES_MAX - 1)
    noted(circuits, "well")
    noted(circuits, "failed", FAILURES_MAX - 1)
    assert circuits.admit("m", 0.0)


def test_rate_limits_and_refusals_never_open_a_circuit() -> None:
    circuits = Circuits()
    noted(circuits, "there", 10 * FAILURES_MAX)
    assert circuits.admit("m", 0.0)


def test_one_probe_at_a_time_decides_for_everybody() -> None:
    circuits = opened()
    assert circuits.admit("m", OPEN_S)
    assert not circuits.admit("m", OPEN_S)
    assert circuits.summary(OPEN_S) == "m (is probed)"
    noted(circuits, "well", now=OPEN_S)
    assert all(circuits.admit("m", OPEN_S) for _ in range(3))


def test_a_failed_probe_opens_the_circuit_for_twice_as_long_up_to_a_bound() -> None:
    circuits, now, waits = opened(), 0.0, list[float]()
    for _ in range(8):
        began = now
        while not circuits.admit("m", now):
            now += 1.0
        waits.append(now - began)
        noted(circuits, "failed", now=now)
    assert waits == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S, 8 * OPEN_S, *[OPEN_MAX_S] * 4]


def test_a_probe_that_is_broken_off_leaves_the_place_to_the_next() -> None:
    circuits = opened()
    assert circuits.admit("m", OPEN_S)
    noted(circuits, "unknown", now=OPEN_S)
    assert circuits.admit("m", OPEN_S)


def test_a_probe_that_is_answered_by_a_rate_limit_lets_others_ask_but_the_next_failure_is_one_too_many() -> (
    None
):
    circuits = opened()
    assert circuits.admit("m", OPEN_S)
    noted(circuits, "there", now=OPEN_S)
    assert circuits.admit("m", OPEN_S)
    noted(circuits, "failed", now=OPEN_S)
    assert not circuits.admit("m", OPEN_S)


def test_attempts_that_began_before_a_circuit_opened_do_not_lengthen_it() -> None:
    circuits = opened()
    noted(circuits, "failed", 50, now=1.0)
    assert circuits.admit("m", OPEN_S)


def test_as_many_circuits_are_kept_as_are_bounded() -> None:
    circuits = Circuits()
    for number in range(CIRCUITS_MAX + 10):
        for call in range(FAILURES_MAX):
            circuits.note(f"m{number}", "failed", 0.0, call=call)
    assert circuits.admit("m0", 0.0)
    assert not circuits.admit(f"m{CIRCUITS_MAX + 9}", 0.0)
    assert circuits.summary(0.0).count("for") == CIRCUITS_MAX
