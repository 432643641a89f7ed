"""Reciprocal Rank Fusion (Cormack, Clarke and Büttcher, SIGIR 2009): one ranking of several. PURE.

Invariant: only ranks count, never the scores of different engines; the result depends neither on the order of the
rankings nor on chance, and no item falls because one ranking puts it higher.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The constant of the paper: how little the difference between the first ranks counts beside being found by both.
K = 60


class Fused(NamedTuple):
    """One item. `ranks` has its place in each ranking, from 1, in the order of the rankings; `None`: not in it."""

    item: str
    score: float
    ranks: tuple[int | None, ...]

    @property
    def best(self) -> int:
        return min(rank for rank in self.ranks if rank is not None)


def fused(rankings: Iterable[Sequence[str]]) -> list[Fused]:
    """All items, best first. An item that a ranking names twice counts where it is named first; of equal scores the one
    with the better best rank comes first, then the smaller name."""
    places = [_places(ranking) for ranking in rankings]
    items = {item for ranking in places for item in ranking}
    found = [_fused(item, tuple(ranking.get(item) for ranking in places)) for item in items]
    return sorted(found, key=lambda one: (-one.score, one.best, one.item))


def _places(ranking: Sequence[str]) -> dict[str, int]:
    places: dict[str, int] = {}
    for item in ranking:
        places.setdefault(item, len(places) + 1)
    return places


def _fused(item: str, ranks: tuple[int | None, ...]) -> Fused:
    # Summed exactly: the rounding of a plain sum would depend on the order of the rankings.
    return Fused(item, math.fsum(1 / (K + rank) for rank in ranks if rank is not None), ranks)
