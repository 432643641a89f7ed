"""A short chaos in the suite; `make chaos MINUTES=10` is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.drive import Chaos, drive

# With start, settling and judging this is about a minute and a half on two cores.
SUITE_S = 45.0
SEED = 3


async def test_under_faults_of_every_kind_nothing_is_lost_doubled_stuck_or_torn(tmp_path: Path) -> None:
    report = await drive(tmp_path, Chaos(SUITE_S, SEED))
    assert not report.findings, report.table
    assert report.faults, report.table
