"""Snapshots: what comes back on another machine is what was there, and nothing of anybody's is lost on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from libs.bus.ports import Blobs
from libs.contracts.workspaces import objects_of
from services.toolhost.errors import RepositoryFault
from services.toolhost.repository import HiddenRepository
from services.toolhost.snapshots import CHAIN_MAX, Snapshots
from tests.unit.toolhost_workspace import git

WORKSPACE = "ws_0_test"


class Store(Blobs):
    """An object store that can refuse and forget."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data

    async def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    async def names(self, prefix: str = "") -> list[str]:
        return [name for name in self.objects if name.startswith(prefix)]

    async def remove(self, name: str) -> None:
        self.objects.pop(name, None)


@pytest.fixture
def store() -> Store:
    return Store()


async def _machine(folder: Path) -> HiddenRepository:
    (folder / "work").mkdir(parents=True)
    made = HiddenRepository(git_dir=folder / ".perdure-git" / "work.git", worktree=folder / "work")
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
    store: Store, tmp_path: Path
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


async def test_a_chain_brings_back_its_end_and_each_of_its_links(store: Store, tmp_path: Path) -> None:
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


async def test_what_is_unchanged_is_not_stored_again(store: Store, tmp_path: Path) -> None:
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
    store: Store, tmp_path: Path
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
    store: Store, tmp_path: Path
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


async def test_a_link_in_the_folder_leads_nothing_outside(store: Store, tmp_path: Path) -> None:
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
    store: Store, tmp_path: Path
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


async def test_baselines_of_runs_come_back_with_the_history(store: Store, tmp_path: Path) -> None:
    here, there = await _machine(tmp_path / "a"), await _machine(tmp_path / "b")
    (here.worktree / "a.txt").write_text("first")
    baseline = (await here.snapshot("baseline")).commit
    (here.worktree / "a.txt").write_text("second")
    kept = await Snapshots(store).keep(here, WORKSPACE, [])
    await Snapshots(store).bring_back(there, WORKSPACE, kept.chain)
    assert await there.has(baseline)
    assert "+second" in await there.diff(baseline)
