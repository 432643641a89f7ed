"""The arithmetic of the bench: spreads, rates, and rows that know their target and their floor.

Invariant: pure; a figure that could not be measured is absent, never zero.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class Spread(NamedTuple):
    """How many values were measured and where they lie."""

    values: int
    mean: float
    p50: float
    p90: float
    p99: float
    largest: float


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure. `target` and `floor` are in its own unit; `more_is_better` turns the target's comparison round.

    `target_ratio` is a target for the ratio to the floor instead.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    target_ratio: float | None = None
    floor: float | None = None
    more_is_better: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of the floor."""
        return self.value / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` without one."""
        if self.target_ratio is not None:
            return self.ratio is not None and self.ratio <= self.target_ratio
        if self.target is None:
            return None
        return self.value >= self.target if self.more_is_better else self.value <= self.target


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie, interpolated. `values` must not be empty."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    return Spread(
        len(values),
        math.fsum(values) / len(values),
        percentile(values, 0.5),
        percentile(values, 0.9),
        percentile(values, 0.99),
        max(values),
    )


def steps_ms(arrivals_s: Sequence[float]) -> list[float]:
    """What lies between one request of a run and the next: its whole iterations, in milliseconds."""
    return [(after - before) * 1000 for before, after in itertools.pairwise(arrivals_s)]


def rate(iterations: int, arrivals_s: Sequence[float]) -> float:
    """Whole iterations a second, from the first request of any run to the last of all."""
    elapsed_s = max(arrivals_s) - min(arrivals_s)
    return iterations / elapsed_s if elapsed_s > 0 else math.inf


def steady_rate(arrivals: Sequence[tuple[float, int]], last_turn: int) -> float | None:
    """Iterations a second while all runs were under way: from the last start to the first end.

    `arrivals` are (seconds, turn) of every request. `None` when there was no such time.
    """
    begin_s = max(at for at, turn in arrivals if turn == 0)
    end_s = min((at for at, turn in arrivals if turn == last_turn), default=begin_s)
    if end_s <= begin_s:
        return None
    return sum(1 for at, turn in arrivals if turn > 0 and begin_s < at <= end_s) / (end_s - begin_s)


def publishes(row: Row, publish_ms: float) -> float | None:
    """A time as a number of raw publishes, the unit of everything durable; `None` for what is no time."""
    return row.value / publish_ms if row.unit == "ms" else None


def table(rows: Sequence[Row], publish_ms: float) -> str:
    """The rows for people: aligned, a missed target marked."""
    head = ("", "measured", "target", "floor", "to floor", "publishes", "")
    lines = [head, *(_cells(row, publish_ms) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row, publish_ms: float) -> tuple[str, str, str, str, str, str, str]:
    times = publishes(row, publish_ms)
    sign = "≥" if row.more_is_better else "≤"
    target = "" if row.target is None else f"{sign} {_number(row.target)}"
    if row.target_ratio is not None:
        target = f"≤ {row.target_ratio:g} x"
    mark = {True: "ok", False: "MISSED", None: ""}[row.met]
    return (
        row.name,
        f"{_number(row.value)} {row.unit}".rstrip(),
        target,
        "" if row.floor is None else _number(row.floor),
        "" if row.ratio is None else f"{row.ratio:.2f} x",
        "" if times is None else f"{times:.1f}",
        f"{mark:6} {row.note}".rstrip() if row.note else mark,
    )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
