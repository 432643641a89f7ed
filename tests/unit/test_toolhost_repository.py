"""The hidden repository: exact snapshots of everything, nothing of the user's own git touched."""

import asyncio
import os
from pathlib import Path

import pytest

from services.toolhost.errors import FileTooLarge, PathRefused, RepositoryFault
from services.toolhost.repository import ChangedPath, HiddenRepository
from tests.unit.toolhost_workspace import git


@pytest.fixture
async def repository(tmp_path: Path) -> HiddenRepository:
    (tmp_path / "work").mkdir()
    made = HiddenRepository(git_dir=tmp_path / ".perdure-git" / "work.git", worktree=tmp_path / "work")
    await made.ensure()
    return made


def _tree(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below the folder, without `.git`."""
    found: dict[str, bytes | str] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if ".git" in path.parts:
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


async def test_a_checkout_is_the_snapshotted_tree_byte_for_byte(
    repository: HiddenRepository, tmp_path: Path
) -> None:
    work = repository.worktree
    (work / ".gitignore").write_text("ignored*\n")
    (work / ".gitattributes").write_text("* text=auto eol=crlf\n*.md filter=none ident export-ignore\n")
    (work / "ignored.txt").write_bytes(b"crlf\r\nlf\ncr\r\r\n")
    (work / "readme.md").write_bytes(b"\xef\xbb\xbf$Id$\r\n\xe9\0")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / "link").symlink_to("/etc/passwd")
    (work / "loop").symlink_to("loop")
    os.mkfifo(work / "pipe")
    for name in (
        "naïve—é.txt",
        "nai\u0308ve.txt",
        "日本 語.md",
        "-rf",
        "a\nb",
        "```x",
        ":(top)x",
        "*",
        "git~1",
    ):
        (work / name).write_bytes(name.encode())
    (work / os.fsdecode(b"latin-\xe9")).write_bytes(b"bytes")
    (work / "node_modules").mkdir()
    (work / "node_modules" / "big.js").write_bytes(b"")
    snapshot = await repository.snapshot("everything")
    out = tmp_path / "out"
    await repository.checkout(snapshot.commit, out)
    expected = _tree(work)
    del expected["node_modules/big.js"]
    assert _tree(out) == expected
    assert os.access(out / "run.sh", os.X_OK)
    assert not (out / ".git").exists()


async def test_the_users_own_repository_is_not_touched(repository: HiddenRepository) -> None:
    work = repository.worktree
    git(work, "init", "-q")
    (work / "a.txt").write_text("one\n")
    git(work, "add", "a.txt")
    git(work, "commit", "-qm", "first")
    (work / "a.txt").write_text("stashed\n")
    git(work, "stash")
    (work / "staged.txt").write_text("staged\n")
    git(work, "add", "staged.txt")
    git(work, "config", "core.hooksPath", "hooks")
    (work / "hooks").mkdir()
    for hook in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        (work / "hooks" / hook).write_text("#!/bin/sh\ntouch hooked\n")
        (work / "hooks" / hook).chmod(0o755)

    def state() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (work / ".git").rglob("*") if path.is_file()}

    before = state()
    first = await repository.snapshot("one")
    (work / "a.txt").write_text("two\n")
    await repository.diff(first.commit)
    await repository.snapshot("two")
    await repository.checkout(first.commit, work.parent / "out")
    assert state() == before
    assert not (work / "hooked").exists()


async def test_nested_repositories_are_recorded_like_any_folder(
    repository: HiddenRepository, tmp_path: Path
) -> None:
    work = repository.worktree
    for name in ("with-commit", "without-commit"):
        (work / name).mkdir()
        git(work / name, "init", "-q")
        (work / name / "f.txt").write_text(name)
    git(work / "with-commit", "add", ".")
    git(work / "with-commit", "commit", "-qm", "first")
    snapshot = await repository.snapshot("nested")
    await repository.checkout(snapshot.commit, tmp_path / "out")
    assert _tree(tmp_path / "out") == {
        "with-commit/f.txt": b"with-commit",
        "without-commit/f.txt": b"without-commit",
    }


async def test_the_diff_names_new_changed_and_deleted_files(repository: HiddenRepository) -> None:
    work = repository.worktree
    (work / "kept.txt").write_text("kept\n")
    (work / "changed.txt").write_text("one\ntwo\n")
    (work / "gone.txt").write_text("gone\n")
    baseline = await repository.snapshot("baseline")
    assert await repository.diff(baseline.commit) == ""
    (work / "changed.txt").write_text("one\n2\n")
    (work / "gone.txt").unlink()
    (work / "sub").mkdir()
    (work / "sub" / "né\nw.txt").write_text("new\n")
    text = await repository.diff(baseline.commit)
    assert "--- a/changed.txt\n+++ b/changed.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in text
    assert "deleted file mode 100644" in text
    assert "-gone" in text
    assert '+++ "b/sub/né\\nw.txt"' in text
    assert "kept" not in text
    assert "+2" not in await repository.diff(baseline.commit, "sub")
    assert "+new" in await repository.diff(baseline.commit, "./sub/")
    assert await repository.diff(baseline.commit, "*") == ""
    assert "left out" in await repository.diff(baseline.commit, bytes_max=100)
    with pytest.raises(PathRefused):
        await repository.diff(baseline.commit, "../x")
    later = await repository.snapshot("later")
    assert await repository.changed_paths(baseline.commit, later.commit) == [
        ChangedPath(path="changed.txt", status="M"),
        ChangedPath(path="gone.txt", status="D"),
        ChangedPath(path="sub/né\nw.txt", status="A"),
    ]


async def test_files_folders_and_links_may_take_each_others_names(repository: HiddenRepository) -> None:
    work = repository.worktree
    (work / "a").write_text("file\n")
    (work / "b").mkdir()
    (work / "b" / "x").write_text("x\n")
    first = await repository.snapshot("first")
    (work / "a").unlink()
    (work / "a").mkdir()
    (work / "a" / "y").write_text("y\n")
    (work / "b" / "x").unlink()
    (work / "b").rmdir()
    (work / "b").symlink_to("/etc")
    second = await repository.snapshot("second")
    changes = {
        change.path: change.status for change in await repository.changed_paths(first.commit, second.commit)
    }
    assert changes == {"a": "D", "a/y": "A", "b": "A", "b/x": "D"}


async def test_an_unchanged_workspace_gives_the_same_snapshot_again(repository: HiddenRepository) -> None:
    empty = await repository.snapshot("empty")
    assert await repository.snapshot("still empty") == empty
    (repository.worktree / "a").write_text("1")
    changed = await repository.snapshot("changed")
    (repository.worktree / "a").unlink()
    again = await repository.snapshot("empty again")
    assert again.tree == empty.tree
    assert again.commit not in {empty.commit, changed.commit}


async def test_twenty_snapshots_at_once_are_all_whole(repository: HiddenRepository) -> None:
    async def write_and_snapshot(index: int) -> str:
        (repository.worktree / f"f{index}").write_text(str(index))
        return (await repository.snapshot(f"number {index}")).commit

    commits = await asyncio.gather(*(write_and_snapshot(index) for index in range(20)))
    for index, commit in enumerate(commits):
        assert await repository.file_at(commit, f"f{index}") == str(index).encode()


async def test_files_of_a_commit_are_read_without_a_checkout(repository: HiddenRepository) -> None:
    work = repository.worktree
    (work / "dir").mkdir()
    (work / "dir" / "-odd *.txt").write_bytes(b"\r\n\xff")
    (work / "link").symlink_to("dir")
    (work / "big").write_bytes(b"")
    os.truncate(work / "big", 65 << 20)
    commit = (await repository.snapshot("files")).commit
    assert await repository.file_at(commit, "dir/-odd *.txt") == b"\r\n\xff"
    assert await repository.file_at(commit, "./dir//-odd *.txt") == b"\r\n\xff"
    for path in ("dir", "link", "none", "dir/*"):
        assert await repository.file_at(commit, path) is None
    with pytest.raises(FileTooLarge):
        await repository.file_at(commit, "big")
    assert await repository.has(commit)
    assert not await repository.has("0" * 40)


async def test_a_baseline_is_pinned_once_and_survives_a_collection(repository: HiddenRepository) -> None:
    (repository.worktree / "a").write_text("1")
    first = (await repository.snapshot("first")).commit
    await repository.pin_baseline("run_1", first)
    (repository.worktree / "a").write_text("2")
    second = (await repository.snapshot("second")).commit
    await repository.pin_baseline("run_1", second)
    assert await repository.baseline("run_1") == first
    assert await repository.baseline("run_2") is None
    git(repository.worktree, f"--git-dir={repository.git_dir}", "gc", "-q", "--prune=now")
    assert await repository.has(first)
    await repository.unpin_baseline("run_1")
    await repository.unpin_baseline("run_1")
    assert await repository.baseline("run_1") is None


async def test_a_git_killed_midway_does_not_block_the_next_snapshot(repository: HiddenRepository) -> None:
    (repository.worktree / "a").write_text("1")
    first = await repository.snapshot("first")
    (repository.git_dir / "index.lock").write_bytes(b"half")
    (repository.git_dir / "index").write_bytes(b"DIRC broken")
    assert await repository.snapshot("again") == first
    (repository.git_dir / "index.lock").write_bytes(b"half")
    await repository.ensure()
    assert await repository.snapshot("and again") == first


@pytest.mark.parametrize("name", ["--upload-pack=x", "HEAD", "", "0" * 39, "refs/heads/x"])
async def test_only_full_names_of_commits_are_accepted(repository: HiddenRepository, name: str) -> None:
    for operation in (repository.has, repository.diff):
        with pytest.raises(RepositoryFault):
            await operation(name)
    with pytest.raises(RepositoryFault):
        await repository.baseline("../escape")


async def test_a_failure_to_snapshot_is_visible(repository: HiddenRepository) -> None:
    (repository.worktree / "a").write_text("1")
    (repository.git_dir / "objects").rename(repository.git_dir / "elsewhere")
    with pytest.raises(RepositoryFault):
        await repository.snapshot("cannot")
