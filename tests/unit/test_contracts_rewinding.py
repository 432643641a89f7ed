"""Which snapshot belongs to an earlier point of a run."""

from __future__ import annotations

from libs.contracts import events as e
from libs.contracts.envelope import Event
from libs.contracts.rewinding import nearest_saved
from libs.contracts.workspaces import Saved


def _kept(sequence: int, at_sequence: int | None) -> Event:
    saved = None
    if at_sequence is not None:
        name = f"s{at_sequence}"
        saved = Saved(snapshot=name, commit="c", chain=[name], run_id="run_1", at_sequence=at_sequence)
    body = e.WorkspaceSnapshotted(commit="c", changed=1, saved=saved)
    return Event(sequence, "run_1", "2026-11-29T12:00:00.000Z", body)


def test_the_nearest_snapshot_is_the_last_one_that_knows_nothing_of_what_came_later() -> None:
    log = [_kept(4, 3), _kept(8, 6), _kept(12, None), _kept(15, 14)]
    found = [nearest_saved(log, sequence) for sequence in (2, 3, 6, 7, 13, 14, 99)]
    assert [saved.at_sequence if saved is not None else None for saved in found] == [None, 3, 6, 6, 6, 14, 14]
