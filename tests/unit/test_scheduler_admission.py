"""Admission: who is next, never too many, nobody for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.admission import AGING_S, Demand, Lane, Waiting, admit

NOW = 1000.0
LANES: tuple[Lane, ...] = ("orphaned", "high", "normal", "low")


def demand(active: int = 0, **lanes: str) -> Demand:
    """Runs by name in each lane, the first waits longest; a name's digits are its age in seconds."""
    waiting = {lane: _waiting(names) for lane, names in lanes.items()}
    return Demand(active, waiting)  # pyright: ignore[reportArgumentType] the keywords are lanes


def _waiting(names: str) -> list[Waiting]:
    return [Waiting(name, NOW - _age(name)) for name in names.split()]


def _age(name: str) -> int:
    return int("".join(char for char in name if char.isdigit()) or 0)


@pytest.mark.parametrize(
    "demands, free, cap, expected",
    [
        pytest.param({}, 5, None, "", id="nobody waits"),
        pytest.param({"a": demand(normal="x3 y2 z1")}, 0, None, "", id="no slot"),
        pytest.param({"a": demand(normal="x3 y2 z1")}, 2, None, "x3 y2", id="the longest waiting first"),
        pytest.param({"a": demand(normal="x3 y2 z1")}, 9, None, "x3 y2 z1", id="all when there is room"),
        pytest.param({"a": demand(low="l9", normal="n5", high="h1")}, 9, None, "h1 n5 l9", id="by priority"),
        pytest.param(
            {"a": demand(high="h9", orphaned="o1")}, 1, None, "o1", id="who lost its owner goes first"
        ),
        pytest.param({"a": demand(high="h9", low="l61")}, 1, None, "l61", id="a low one rises with time"),
        pytest.param({"a": demand(high="h9", low="l59")}, 1, None, "h9", id="but not before its time"),
        pytest.param({"a": demand(normal="n9", low="l31")}, 1, None, "l31", id="one priority at a time"),
        pytest.param({"a": demand(high="h9", low="l31")}, 1, None, "h9", id="one priority is not two"),
        pytest.param(
            {"a": demand(normal="a9 a8 a7"), "b": demand(normal="b2 b1")},
            4,
            None,
            "a9 b2 a8 b1",
            id="in turns",
        ),
        pytest.param(
            {"a": demand(5, high="a9"), "b": demand(4, low="b1")},
            1,
            None,
            "b1",
            id="the one with less in execution",
        ),
        pytest.param(
            {"a": demand(3, normal="a9"), "b": demand(3, normal="b10")},
            1,
            None,
            "b10",
            id="then the longest waiting",
        ),
        pytest.param({"a": demand(1, normal="x3 y2 z1")}, 9, 2, "x3", id="up to the cap"),
        pytest.param({"a": demand(2, normal="x3")}, 9, 2, "", id="a tenant at its cap waits"),
        pytest.param(
            {"a": demand(2, normal="a9"), "b": demand(normal="b2 b1 b0")},
            9,
            2,
            "b2 b1",
            id="a cap is each tenant's own",
        ),
        pytest.param(
            {"a": Demand(2, {"normal": _waiting("a9")}, 0, {"normal": _waiting("c2 c1")})},
            9,
            2,
            "c2 c1",
            id="children need no place below the cap",
        ),
        pytest.param(
            {
                "a": Demand(
                    0, {"normal": _waiting("a9 a1")}, 0, {"normal": _waiting("c5"), "high": _waiting("h0")}
                )
            },
            9,
            None,
            "h0 a9 c5 a1",
            id="but stand in the same line",
        ),
        pytest.param(
            {"a": Demand(0, {"normal": _waiting("a9")}, 3), "b": demand(2, normal="b1")},
            1,
            None,
            "b1",
            id="and count in their tenant's turns",
        ),
    ],
)
def test_who_is_admitted_and_in_which_order(
    demands: dict[str, Demand], free: int, cap: int | None, expected: str
) -> None:
    assert admit(demands, free=free, cap=cap, now=NOW) == expected.split()


@st.composite
def any_demands(draw: st.DrawFn) -> dict[str, Demand]:
    demands: dict[str, Demand] = {}
    for tenant in draw(st.lists(st.sampled_from("abcdef"), unique=True)):
        lanes: dict[Lane, list[Waiting]] = {}
        for lane in draw(st.lists(st.sampled_from(LANES), unique=True)):
            ages = sorted(draw(st.lists(st.floats(0, 200), max_size=6)), reverse=True)
            lanes[lane] = [Waiting(f"{tenant}-{lane}-{index}", NOW - age) for index, age in enumerate(ages)]
        demands[tenant] = Demand(draw(st.integers(0, 5)), lanes)
    return demands


@given(any_demands(), st.integers(-3, 20), st.none() | st.integers(1, 6))
def test_no_slot_and_no_cap_is_exceeded_and_none_is_left_unused(
    demands: dict[str, Demand], free: int, cap: int | None
) -> None:
    admitted = admit(demands, free=free, cap=cap, now=NOW)
    assert len(admitted) <= max(0, free)
    assert len(set(admitted)) == len(admitted)
    taken = Counter(run_id.partition("-")[0] for run_id in admitted)
    eligible = 0
    for tenant, wants in demands.items():
        waiting = sum(len(list(lane)) for lane in wants.lanes.values())
        room = waiting if cap is None else max(0, min(waiting, cap - wants.active))
        assert taken[tenant] <= room
        eligible += room
    assert len(admitted) == max(0, min(free, eligible))


@given(any_demands(), st.integers(0, 20))
def test_no_tenant_is_served_while_one_with_less_in_execution_waits(
    demands: dict[str, Demand], free: int
) -> None:
    active = {tenant: wants.active for tenant, wants in demands.items()}
    left = Counter({t: sum(len(list(lane)) for lane in wants.lanes.values()) for t, wants in demands.items()})
    for run_id in admit(demands, free=free, cap=None, now=NOW):
        tenant = run_id.partition("-")[0]
        assert active[tenant] == min(active[other] for other in active if left[other] > 0)
        active[tenant] += 1
        left[tenant] -= 1


@given(st.integers(1, 3), st.sampled_from(["normal", "low"]), st.integers(0, 4))
def test_a_run_is_served_although_more_important_ones_never_stop_coming(
    slots: int, lane: Lane, others: int
) -> None:
    """Each second as many high runs come as there are slots; the victim is served within its aging and the line."""
    waiting: dict[Lane, list[Waiting]] = {"high": [], lane: [Waiting("victim", 0.0)]}
    tenants = {f"t{index}": Demand(0, {"high": [Waiting(f"o{index}", 0.0)]}) for index in range(others)}
    for second in range(int(3 * AGING_S) + slots * (others + 1)):
        waiting["high"] += [Waiting(f"h{second}-{index}", float(second)) for index in range(slots)]
        demands = {"a": Demand(0, waiting), **tenants}
        admitted = set(admit(demands, free=slots, cap=None, now=float(second)))
        if "victim" in admitted:
            return
        waiting = {
            name: [run for run in runs if run.run_id not in admitted] for name, runs in waiting.items()
        }
    pytest.fail("the run starved")
