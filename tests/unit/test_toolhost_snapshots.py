"""Snapshots: what comes back on another machine is what was there, and nothing of anybody's is lost on the way."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from libs.contracts.workspaces import objects_of
from services.toolhost.errors import RepositoryFault
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.repository import HiddenRepository
from services.toolhost.snapshots import CHAIN_MAX, Kept, Snapshots
from services.toolhost.tools import Outcome
from services.toolhost.tools.files import Plan, apply, change_of, sha256_of
from services.toolhost.undo import UndoLog
from tests.fakes.objects import Objects
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import git

WORKSPACE = "ws_0_test"


@pytest.fixture
def store() -> Objects:
    return Objects()


async def _machine(folder: Path, undo: UndoLog | None = None) -> HiddenRepository:
    (folder / "work").mkdir(parents=True)
    made = HiddenRepository(
        git_dir=folder / ".perdure-git" / "work.git",
        worktree=folder / "work",
        still=undo.alone if undo is not None else None,
    )
    await made.ensure()
    return made


def _tree(folder: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Everything below the folder, `.git` too, with its permissions."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in folder.rglob("*"):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode & 0o777
        if path.is_symlink():
            found[name] = (0, f"-> {path.readlink()}")
        elif path.is_dir():
            found[name] = (mode, None)
        elif name.rpartition("/")[0].endswith("objects") or "/objects/" in name:
            found[name] = (0, path.read_bytes())  # Git keeps its objects read-only; nothing depends on it.
        else:
            found[name] = (mode, path.read_bytes())
    return found


def _project(work: Path) -> None:
    """A project with all that a snapshot may meet."""
    git(work, "init", "-q", "-b", "main")
    (work / ".gitignore").write_text("ignored*\n")
    (work / "tracked.txt").write_text("first\n")
    (work / "gone.txt").write_text("tracked and deleted\n")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "one")
    (work / "tracked.txt").write_text("stashed\n")
    git(work, "stash", "-q")
    (work / "staged.txt").write_text("staged\n")
    git(work, "add", "staged.txt")
    (work / "gone.txt").unlink()
    (work / "untracked.bin").write_bytes(b"\0\xff\r\n")
    (work / "ignored.txt").write_text("ignored\n")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "secret").write_text("mine\n")
    (work / "secret").chmod(0o600)
    (work / "link").symlink_to("tracked.txt")
    (work / "out").symlink_to("/etc")
    (work / "empty" / "deeper").mkdir(parents=True)
    (work / "@odd" / ".github").mkdir(parents=True)
    (work / "@odd" / ".github" / "é\nx").write_text("odd\n")
    (work / ".gitmodules").symlink_to("nowhere")
    nested = work / "vendor" / "inner"
    nested.mkdir(parents=True)
    git(nested, "init", "-q", "-b", "side")
    (nested / "in.txt").write_text("nested\n")
    git(nested, "add", ".")
    git(nested, "commit", "-q", "-m", "nested")
    (nested / "in.txt").write_text("nested and changed\n")


async def test_what_comes_back_on_another_machine_is_exactly_what_was_there(
    store: Objects, tmp_path: Path
) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    _project(here.worktree)
    before, status = _tree(here.worktree), git(here.worktree, "status", "--porcelain")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    assert kept.chain == [kept.snapshot]
    assert _tree(here.worktree) == before  # Index, references and stash of the user are as they were.
    assert await Snapshots(store).bring_back(there, WORKSPACE, kept.chain) == kept.commit
    assert _tree(there.worktree) == before
    assert git(there.worktree, "status", "--porcelain") == status
    assert git(there.worktree, "stash", "list").count(b"\n") == 1
    assert git(there.worktree / "vendor" / "inner", "log", "--format=%s") == b"nested\n"


async def test_a_chain_brings_back_its_end_and_each_of_its_links(store: Objects, tmp_path: Path) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    snapshots, chain, kept = Snapshots(store), list[str](), list[str]()
    for number in range(4):
        (here.worktree / f"{number}.txt").write_text("x\n" * number)
        (here.worktree / "same.txt").write_text(f"{number}\n")
        (here.worktree / f"{number - 1}.txt").unlink(missing_ok=True)
        made = await snapshots.keep(here, WORKSPACE, chain)
        chain = made.chain
        kept.append(made.snapshot)
    assert chain == kept
    assert sorted(store.objects) == sorted(objects_of(WORKSPACE, chain))
    assert len(store.objects[objects_of(WORKSPACE, chain)[3]]) < 2_000
    for number, snapshot in reversed(list(enumerate(kept))):
        await snapshots.bring_back(there, WORKSPACE, chain, snapshot)
        assert sorted(path.name for path in there.worktree.iterdir()) == [f"{number}.txt", "same.txt"]
        assert (there.worktree / "same.txt").read_text() == f"{number}\n"
    assert await there.has(kept[0])


async def test_what_is_unchanged_is_not_stored_again(store: Objects, tmp_path: Path) -> None:
    here = await _machine(tmp_path)
    _project(here.worktree)
    first = await Snapshots(store).keep(here, WORKSPACE, [])
    stored = dict(store.objects)
    again = await Snapshots(store).keep(here, WORKSPACE, first.chain)
    assert (again.snapshot, again.chain, again.changed) == (first.snapshot, first.chain, 0)
    assert store.objects == stored
    git(here.worktree, "tag", "seen")  # The files are the same, the user's references are not.
    assert (await Snapshots(store).keep(here, WORKSPACE, first.chain)).snapshot != first.snapshot


async def test_a_chain_has_an_end_and_a_whole_bundle_holds_all_that_was_before(
    store: Objects, tmp_path: Path
) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "a.txt").write_text("first")
    first = await Snapshots(store).keep(here, WORKSPACE, [])
    (here.worktree / "a.txt").write_text("second")
    full = await Snapshots(store).keep(here, WORKSPACE, [first.snapshot] * CHAIN_MAX)
    assert full.chain == [full.snapshot]
    await Snapshots(store).bring_back(there, WORKSPACE, full.chain, first.snapshot)
    assert (there.worktree / "a.txt").read_text() == "first"


async def test_what_stood_in_the_folder_before_is_recorded_and_foreign_data_stays(
    store: Objects, tmp_path: Path
) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "kind").mkdir()
    (here.worktree / "kind" / "file").write_text("a folder here")
    (here.worktree / "was-folder").write_text("a file here")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    git(there.worktree, "init", "-q")
    (there.worktree / "kind").write_text("a file there")
    (there.worktree / "was-folder" / "sub").mkdir(parents=True)
    (there.worktree / "was-folder" / "sub" / "x").write_text("x")
    (there.worktree / "mine.txt").write_text("only there")
    (there.worktree / "node_modules").mkdir()
    (there.worktree / "node_modules" / "big.js").write_text("made again at a price")
    os.mkfifo(there.worktree / "pipe")
    await Snapshots(store).bring_back(there, WORKSPACE, kept.chain)
    left = {path.name for path in there.worktree.iterdir()}
    assert left == {"kind", "was-folder", "node_modules", "pipe"}
    assert (there.worktree / "kind" / "file").read_text() == "a folder here"
    assert (there.worktree / "was-folder").read_text() == "a file here"
    before = await there.resolve("refs/perdure/before")
    assert before is not None
    assert await there.file_at(before, "mine.txt") == b"only there"
    assert (tmp_path / "b" / ".perdure-git" / "work.before" / kept.snapshot / ".git" / "HEAD").is_file()


async def test_a_link_in_the_folder_leads_nothing_outside(store: Objects, tmp_path: Path) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "sub" / "empty").mkdir(parents=True)
    (here.worktree / "sub" / "file").write_text("inside")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    outside = tmp_path / "outside"
    outside.mkdir()
    (there.worktree / "sub").symlink_to(outside)
    await Snapshots(store).bring_back(there, WORKSPACE, kept.chain)
    assert list(outside.iterdir()) == []
    assert (there.worktree / "sub" / "file").read_text() == "inside"


async def test_a_snapshot_that_is_damaged_or_missing_is_an_error_that_says_so(
    store: Objects, tmp_path: Path
) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "a.txt").write_text("first")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    (name,) = store.objects
    (there.worktree / "mine").write_text("stays")
    for damaged in (None, b"not a bundle", store.objects[name][:-30]):
        store.objects.clear()
        if damaged is not None:
            store.objects[name] = damaged
        with pytest.raises(RepositoryFault):
            await Snapshots(store).bring_back(there, WORKSPACE, kept.chain)
    assert (there.worktree / "mine").read_text() == "stays"


async def test_baselines_of_runs_come_back_with_the_history(store: Objects, tmp_path: Path) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "a.txt").write_text("first")
    baseline = (await here.snapshot("baseline")).commit
    (here.worktree / "a.txt").write_text("second")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    await Snapshots(store).bring_back(there, WORKSPACE, kept.chain)
    assert await there.has(baseline)
    assert "+second" in await there.diff(baseline)


async def test_a_snapshot_has_all_of_another_runs_patch_or_nothing(tmp_path: Path) -> None:
    undo = UndoLog(tmp_path / "undo")
    here = await _machine(tmp_path / "a", undo)
    names = ["first.txt", "last.txt"]
    for name in names:
        (here.worktree / name).write_text("0\n")
    taken: set[str] = set()
    with WorkspaceGuard(here.worktree) as guard:
        for turn in range(1, 13):
            before = [sha256_of(guard, name) for name in names]
            after = f"{turn}\n".encode()
            changes = tuple(
                change_of(name, before=old, after=after) for name, old in zip(names, before, strict=True)
            )
            plan = Plan(changes=changes, outcome=Outcome(ok=True, output=""))
            snapshot, _ = await asyncio.gather(
                here.snapshot("beside a patch"), asyncio.to_thread(apply, guard, plan, undo)
            )
            taken.add(snapshot.commit)
    for commit in taken:
        first, last = [await here.file_at(commit, name) for name in names]
        assert first == last


async def test_whoever_stops_waiting_for_a_patch_does_not_hold_up_the_next(tmp_path: Path) -> None:
    undo = UndoLog(tmp_path / "undo")
    here = await _machine(tmp_path / "a", undo)
    with undo.alone:
        waiting = asyncio.create_task(here.snapshot("waits"))
        await until(here._lock.locked, "it waits")  # pyright: ignore[reportPrivateUsage] - nothing else says so.
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert (await here.snapshot("goes on")).commit
    assert not undo.alone.locked()


async def test_runs_that_keep_one_workspace_at_the_same_time_each_get_their_chain(
    store: Objects, tmp_path: Path
) -> None:
    here = await _machine(tmp_path / "a")
    (here.worktree / "a.txt").write_text("a\n")
    snapshots = Snapshots(store)
    first = await snapshots.keep(here, WORKSPACE, [])

    async def kept(name: str) -> Kept:
        (here.worktree / name).write_text("b\n")
        return await snapshots.keep(here, WORKSPACE, first.chain)

    for number, made in enumerate(await asyncio.gather(*(kept(f"{number}.txt") for number in range(4)))):
        there = await _machine(tmp_path / f"b{number}")
        assert await Snapshots(store).bring_back(there, WORKSPACE, made.chain) == made.commit


async def test_how_far_it_is_is_told(store: Objects, tmp_path: Path) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    chain: list[str] = []
    for turn in range(3):
        (here.worktree / "a.txt").write_text(f"{turn}\n")
        chain = (await Snapshots(store).keep(here, WORKSPACE, chain)).chain
    told: list[str] = []
    await Snapshots(store).bring_back(there, WORKSPACE, chain, told=told.append)
    assert [line.split(" is ")[0] for line in told if "snapshot " in line] == [
        f"snapshot {number} of 3" for number in (1, 2, 3)
    ]
