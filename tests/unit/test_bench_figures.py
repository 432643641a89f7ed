"""The arithmetic of the bench: a wrong figure is worse than none."""

import os

import msgspec
import pytest

from deploy.dev.model_script import load_script
from tests.bench import work
from tests.bench.figures import Row, percentile, publishes, rate, spread, steady_rate, steps_ms, table
from tests.bench.processes import CpuMeter, rss_mb


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile([7], 0.99) == 7
    assert percentile([1, 2, 3], 0) == 1
    assert percentile([1, 2, 3], 1) == 3


def test_a_spread_counts_and_orders() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert (found.values, found.mean, found.p50, found.largest) == (3, 2.0, 2.0, 3.0)
    assert found.p50 <= found.p90 <= found.p99 <= found.largest


def test_iterations_are_what_lies_between_requests() -> None:
    assert steps_ms([1.0, 1.25, 1.75]) == [250.0, 500.0]
    assert steps_ms([1.0]) == []


def test_a_rate_spans_the_first_and_the_last_request_of_all_runs() -> None:
    assert rate(20, [5.0, 1.0, 3.0]) == 5.0


def test_a_steady_rate_leaves_out_start_and_end() -> None:
    arrivals = [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (3.0, 2), (9.0, 2)]
    assert steady_rate(arrivals, 2) == 1.5


def test_there_is_no_steady_rate_when_runs_never_overlapped() -> None:
    assert steady_rate([(0.0, 0), (1.0, 1), (2.0, 0), (3.0, 1)], 1) is None


@pytest.mark.parametrize(
    "row, ratio, met",
    [
        (Row(name="a", value=13, unit="ms", target=14, floor=10), 1.3, True),
        (Row(name="a", value=15, unit="ms", target=14), None, False),
        (Row(name="a", value=90, unit="/s", target=80, more_is_better=True), None, True),
        (Row(name="a", value=79, unit="/s", target=80, more_is_better=True), None, False),
        (Row(name="a", value=5, unit="ms", target_ratio=1.3, floor=4), 1.25, True),
        (Row(name="a", value=6, unit="ms", target_ratio=1.3, floor=4), 1.5, False),
        (Row(name="a", value=6, unit="ms", target_ratio=1.3), None, False),
        (Row(name="a", value=6, unit="ms"), None, None),
        (Row(name="errors", value=0, unit="", target=0), None, True),
    ],
)
def test_a_row_knows_its_ratio_and_whether_its_target_is_met(
    row: Row, ratio: float | None, met: bool | None
) -> None:
    assert row.ratio == ratio
    assert row.met is met


def test_only_times_are_counted_in_publishes() -> None:
    assert publishes(Row(name="a", value=6, unit="ms"), 0.5) == 12
    assert publishes(Row(name="a", value=6, unit="MB"), 0.5) is None


def test_the_table_marks_what_was_missed_and_nothing_else() -> None:
    shown = table(
        [
            Row(name="good", value=1, unit="ms", target=2),
            Row(name="bad", value=3, unit="ms", target=2),
            Row(name="plain", value=3, unit="ms", note="for orientation"),
        ],
        1.0,
    ).splitlines()
    assert [line.split()[0] for line in shown if "MISSED" in line] == ["bad"]
    assert "for orientation" in shown[3]


def test_the_script_answers_each_length_with_its_own_conversation() -> None:
    lengths = [0, 3, 30]
    script = load_script(work.script(set(lengths)))
    for index, length in enumerate(lengths):
        assert script.find(work.goal(length)) == index
        turns = [script.turn(index, turn) for turn in range(length + 2)]
        calls = [bool(answer.calls) for answer in turns if answer is not None]
        assert calls == [True] * length + [False]


def test_a_task_of_the_bench_is_one_that_the_gateway_takes() -> None:
    body = msgspec.json.decode(work.task(3))
    assert body["auto_start"] is True
    assert body["tools"] == ["echo"]


def test_a_process_is_read_by_its_pid() -> None:
    meter = CpuMeter({"self": os.getpid()})
    assert rss_mb(os.getpid()) > 1
    assert meter.spent_s()["self"] >= 0
