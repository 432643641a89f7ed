"""Sources: a watched folder whose files become runs, each once, and are told what became of them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.creation import Creation
from libs.bus.ports import Bus, LogKey
from libs.contracts.run import RunStatus
from libs.contracts.tasks import Limits
from services.scheduler.endings import Endings
from services.scheduler.sources.directory import Directory
from services.scheduler.sources.frontmatter import read_task
from services.scheduler.sources.intake import Intake
from services.scheduler.sources.wish import Outcome, SourceAway, Wish
from tests.fakes.waiting import until
from tests.service.gateway_served import registered
from tests.service.scheduler_peers import CLOCK, Deployment, Executor, executor, runs_of, scheduler

BROKEN = {
    "binary.md": b"\xff\xfe\x00",
    "no-end.md": b"---\nworkspace: shop\n",
    "no-yaml.md": b"---\n{[\n---\nDo it.\n",
    "no-fields.md": b"---\n- a\n- b\n---\nDo it.\n",
    "bomb.md": b"---\na: &a [x]\nb: *a\n---\nDo it.\n",
    "unknown.md": b"---\nsurprise: 1\n---\nDo it.\n",
    "limits.md": b"---\nlimits: {max_iterations: 1000000}\n---\nDo it.\n",
    "twice.md": b"---\ngoal: One.\n---\nAnother.\n",
    "empty.md": b"",
    "long.md": b"x" * 800_000,
}


def put(folder: Path, name: str, text: str | bytes) -> Path:
    """A file that stands still since a minute."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    at = CLOCK.now().timestamp() - 60
    os.utime(path, (at, at))
    return path


class Place:
    """A folder, and an intake that looks when a test wants it to."""

    def __init__(self, deployment: Deployment, folder: Path, endings: Endings) -> None:
        self.deployment, self.folder, self.endings = deployment, folder, endings
        runs = runs_of(deployment.bus)
        creation = Creation(runs, CLOCK, shards=1, limits=Limits())
        self.source = Directory("inbox", folder, CLOCK, tenant="local", every_s=0.1)
        self.intake = Intake([self.source], runs, deployment.bus.log, creation, endings, CLOCK, lambda _: ())

    async def look(self) -> None:
        await self.intake.look(self.source)

    def result(self, path: str) -> dict[str, str]:
        return json.loads((self.folder / f"{path}.result.json").read_text())


@pytest.fixture
async def place(nats_node: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[Place]:
    async with registered(bus, "scheduler", "scheduler-1") as liveness:
        deployment = Deployment(nats_node, bus)
        yield Place(deployment, tmp_path, Endings(deployment.runs, liveness))


async def test_a_file_becomes_one_run_and_is_moved_with_what_became_of_it(
    place: Place, tmp_path: Path
) -> None:
    put(tmp_path, "good.md", "---\nworkspace: shop\npriority: high\n---\n\nDo it.\n")
    put(tmp_path, "bad.task", "Do the other thing.")
    fresh = tmp_path / "fresh.md"
    fresh.write_text("Somebody still writes this.")
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        for _ in range(3):
            await place.look()
        await until(lambda: len(peer.held) == 2, "both are claimed")
        states = {folded.state.task.goal: folded.state for folded in peer.held.values()}
        assert set(states) == {"Do it.", "Do the other thing."}
        assert (states["Do it."].workspace, states["Do it."].task.priority) == ("shop", "high")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.task", "fresh.md", "good.md"]
        await peer.complete(states["Do it."].run_id, "It is done.")
        await peer.fail(states["Do the other thing."].run_id, "no luck")
        # A restart in between: another intake knows nothing but the folder and the log.
        await place.look()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "failed", "fresh.md"]
    done, failed = place.result("done/good.md"), place.result("failed/bad.task")
    assert (done["status"], done["answer"], done["run_id"]) == (
        "COMPLETED",
        "It is done.",
        states["Do it."].run_id,
    )
    assert (failed["status"], failed["error"]) == ("FAILED", "MODEL_ERROR: no luck")


async def test_what_cannot_be_read_is_moved_aside_with_the_reason_and_is_in_nobodys_way(
    place: Place, tmp_path: Path
) -> None:
    for name, data in BROKEN.items():
        put(tmp_path, name, data)
    put(tmp_path, "zz-good.md", "Do it.")
    put(tmp_path, ".hidden.md", "Do it not.")
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "link.md").symlink_to(tmp_path / "zz-good.md")
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        await place.look()
        await until(lambda: len(peer.held) == 1, "the good one is claimed")
    assert sorted(path.name for path in (tmp_path / "failed").glob("*.md")) == sorted(BROKEN)
    assert {place.result(f"failed/{name}")["status"] for name in BROKEN} == {"REFUSED"}
    told = {name: place.result(f"failed/{name}")["error"] for name in BROKEN}
    assert "UTF-8" in told["binary.md"]
    assert "surprise" in told["unknown.md"]
    assert "above the deployment's" in told["limits.md"]
    assert "aliases" in told["bomb.md"]
    assert "goal" in told["empty.md"]


async def test_the_same_file_again_is_the_same_run_and_a_changed_one_another(
    place: Place, tmp_path: Path
) -> None:
    path = put(tmp_path, "a.md", "Do it.")
    data, info = path.read_bytes(), path.stat()
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        peer.completes = True
        await gone(place, peer, path)
        path.write_bytes(data)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        # Another process: it has told nobody anything yet.
        again = Place(place.deployment, tmp_path, place.endings)
        await again.look()
        assert not path.exists()
        assert len({ticket.run_id for ticket in peer.tickets}) == 1
        put(tmp_path, "a.md", "Do it otherwise.")
        await gone(again, peer, path)
        assert len({ticket.run_id for ticket in peer.tickets}) == 2
    assert len(list((tmp_path / "done").glob("a*.md"))) == 3


async def test_a_folder_that_is_away_changes_nothing(place: Place, tmp_path: Path) -> None:
    path = put(tmp_path, "a.md", "Do it.")
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        await place.look()
        await until(lambda: len(peer.held) == 1, "it is claimed")
        away = tmp_path.rename(tmp_path.with_name("away"))
        with pytest.raises(SourceAway):
            await place.look()
        away.rename(tmp_path)
        await place.look()
        (run_id,) = peer.held
        assert (await place.deployment.state(LogKey("local", run_id))).status is RunStatus.RUNNING
        assert path.exists()


class Tracker:
    """A source whose wishes a test sets."""

    name, tenant, every_s = "tracker", "local", 0.1

    def __init__(self) -> None:
        self.wishes: list[Wish] = []
        self.told: list[tuple[str, Outcome]] = []

    async def look(self, going: Collection[str], *, afresh: bool) -> list[Wish]:
        del going, afresh
        return self.wishes

    async def tell(self, key: str, outcome: Outcome) -> None:
        self.told.append((key, outcome))


async def test_a_wish_that_is_over_cancels_its_run_and_no_other(place: Place) -> None:
    tracker = Tracker()
    task = read_task("Do it.")
    tracker.wishes = [Wish("1", task), Wish("2", task), Wish("3", task, over=True)]
    async with scheduler(place.deployment), executor(place.deployment) as peer:
        await place.intake.look(tracker)
        await until(lambda: len(peer.held) == 2, "two are claimed, the third was never wanted")
        first = next(iter(peer.held))
        await peer.release(first)
        tracker.wishes = [wish._replace(over=True) for wish in tracker.wishes]
        peer.claims = False
        await place.intake.look(tracker)
        await place.intake.look(tracker)
        cancelled = [outcome for _, outcome in tracker.told if outcome.status is RunStatus.CANCELLED]
        assert [outcome.error for outcome in cancelled] == ["CANCELLED by source:tracker"] * len(cancelled)
        (held,) = peer.held
        asked = (await place.deployment.state(LogKey("local", held))).cancel_requested_by
        assert asked == "source:tracker", "one that is owned is asked; its owner ends it"


async def gone(place: Place, peer: Executor, path: Path) -> None:
    """Look until the file was moved."""
    before = len(peer.tickets)
    await place.look()
    await until(lambda: len(peer.tickets) > before, "its run is claimed")
    for _ in range(1_000):
        await place.look()
        if not path.exists():
            return
    raise AssertionError(f"{path} was not moved")
