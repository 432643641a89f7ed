"""A gateway with many clients, one of which stands still: each gets every event of its run once and in order.

The short form of what `python -m tests.bench.streams` measures; how late events come is measured there, not here.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.streams import RSS_MB, Sizes, measured

SHORT = Sizes(runs=10, clients=20, turns=5, events_a_second=200)


async def test_each_of_many_clients_gets_every_event_of_its_run_beside_a_frozen_one(tmp_path: Path) -> None:
    seen = await measured(tmp_path, SHORT)
    assert seen.missing == 0
    # Two events of each run are there before anybody comes, and its end is one more.
    assert len(seen.late) == SHORT.runs * SHORT.clients * (SHORT.turns * 4 + 1)
    assert seen.cost.mb < RSS_MB
