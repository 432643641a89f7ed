"""A fork goes on in a workspace of its own, as it was at the point of the fork; the origin and its files stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.contracts.forks import Fork, Retry
from libs.contracts.http import read_body
from tests.e2e.stage import Stage, call, calls, says, stage

SCRIPT = {
    "[origin]": [
        calls(call("write_file", path="a.txt", content="one\n")),
        calls(call("write_file", path="b.txt", content="kept\n"), delay_s=1.0),
        calls(call("write_file", path="a.txt", content="two\n"), delay_s=1.0),
        says("I wrote `a.txt` and `b.txt`."),
    ],
    # The script counts by the iterations in the conversation: two are the origin's, one was cut off with its request.
    "[another]": [
        says("the origin's"),
        says("the origin's"),
        calls(call("read_file", path="a.txt"), call("write_file", path="c.txt", content="c\n")),
        says("cut off"),
        says("I wrote `c.txt`."),
    ],
}


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, SCRIPT) as ready:
        yield ready


async def test_a_fork_begins_with_the_files_of_its_point_and_leaves_the_origins_alone(on: Stage) -> None:
    folder = on.workspace("shop", {"run_tests.sh": "exit 0\n", "old.txt": "old\n"})
    origin = await on.submit("[origin]", workspace="shop")
    assert (await on.ended(origin)).status == "COMPLETED"
    events = await on.events(origin)
    second = [event.sequence for event in events if event.type == "tool.completed"][1]
    point = next(event.sequence for event in events if event.sequence > second)
    fork = await on.client.fork(origin, read_body(Fork, {"after_sequence": point, "goal": "[another] go on"}))
    assert fork.workspace_sequence is not None
    assert fork.workspace_sequence <= point
    run = await on.ended(fork.run_id)
    assert run.status == "COMPLETED", run.error
    own = on.data / "workspaces" / fork.run_id
    found = {path.name: path.read_text() for path in own.iterdir()}
    assert found == {
        "run_tests.sh": "exit 0\n",
        "old.txt": "old\n",
        "a.txt": "one\n",
        "b.txt": "kept\n",
        "c.txt": "c\n",
    }
    assert (folder / "a.txt").read_text() == "two\n"
    assert not (folder / "c.txt").exists()
    read = next(
        event
        for event in await on.events(fork.run_id)
        if event.payload.get("call_id") and event.sequence > point + 1 and event.type == "tool.completed"
    )
    assert "one" in str(read.payload["output"])
    listed = await on.client.artifacts(fork.run_id)
    assert "c.txt" in {artifact.path for artifact in listed.artifacts}
    # The change counts from where the origin began.
    assert "+kept" in (await on.client.diff(fork.run_id)).diff
    # A retry from the start works in the task's own workspace again.
    retried = await on.client.retry(origin, read_body(Retry, {"from": "start"}))
    assert (await on.client.run(retried.run_id)).workspace == "shop"
    assert (await on.ended(retried.run_id)).task_id == run.task_id
