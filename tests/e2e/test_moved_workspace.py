"""A host is killed, and only a host on another machine is left: one with another folder of workspaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.dev.plan import SERVICES
from tests.e2e.machines import machine
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import eventually

SCRIPT = {
    "[move]": [
        calls(call("write_file", path="a.txt", content="one\n"), call("run_tests")),
        calls(
            call("edit_file", path="a.txt", old_str="one", new_str="two"),
            call("write_file", path="sub/b.txt", content="b\n"),
        ),
        calls(call("read_file", path="sub/b.txt"), delay_s=1.5),
        calls(call("write_file", path="c.txt", content="c\n")),
        says("I wrote `a.txt`, `sub/b.txt` and `c.txt`."),
    ],
}


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    others = tuple(service for service in SERVICES if service.name != "toolhost")
    hosts = (machine(tmp_path, "here", 1), machine(tmp_path, "there", 2))
    async with stage(tmp_path, SCRIPT, {"PERDURE_LEASE_TTL_S": "1"}, services=(*others, *hosts)) as ready:
        yield ready


def _project(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run_tests.sh").write_text("echo made >> made.txt\n")
    (folder / "run_tests.sh").chmod(0o755)
    (folder / ".gitignore").write_text("ignored.txt\n")
    (folder / "ignored.txt").write_text("ignored\n")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("a.txt")


def _tree(folder: Path) -> dict[str, tuple[int, str]]:
    def content(path: Path) -> str:
        if path.is_symlink():
            return f"-> {path.readlink()}"
        return "" if path.is_dir() else path.read_text()

    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, content(path)) for path in folder.rglob("*")
    }


async def test_a_run_goes_on_where_the_last_snapshot_was_brought_back(on: Stage, tmp_path: Path) -> None:
    for name in ("here", "there"):
        _project(tmp_path / name / "project")
    before = _tree(tmp_path / "here" / "project")
    run_id = await on.submit("[move]", workspace="project")

    async def edited() -> bool:
        return sum(event.type == "model.requested" for event in await on.events(run_id)) >= 3

    await eventually(edited, "the third turn is asked for")
    first = (await on.event(run_id, "workspace.attached")).payload
    here, there = (
        ("here", "there") if (tmp_path / "here" / "project" / "a.txt").exists() else ("there", "here")
    )
    # What is left is a machine that knows nothing of the workspace but its name.
    (tmp_path / there / "project").rename(tmp_path / "aside")
    on.perdure.kill("toolhost" if here == "here" else "toolhost-2")
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    events = await on.events(run_id)
    attached = [event.payload for event in events if event.type == "workspace.attached"]
    kept = [event.payload for event in events if event.type == "workspace.snapshotted"]
    assert [each["problem"] for each in kept] == [None] * len(kept)
    assert attached[0] == first
    assert isinstance(saved := kept[0]["saved"], dict)
    assert attached[1]["snapshot"] == saved["snapshot"]
    assert attached[1]["lost"] == ["run_tests {}"]
    assert attached[1]["changed"] == []
    made = {
        "a.txt": (0o100644, "two\n"),
        "sub": (0o40755, ""),
        "sub/b.txt": (0o100644, "b\n"),
        "c.txt": (0o100644, "c\n"),
    }
    assert _tree(tmp_path / there / "project") == {**before, **made}
    # The newest state lies there by now, and what was done there is kept, too.
    assert kept[-1]["changed"] == 3
