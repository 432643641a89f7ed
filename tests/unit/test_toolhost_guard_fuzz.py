"""A hostile workspace: made-up paths, links, pipes and second names, and somebody who swaps them while they are used."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from services.toolhost.errors import ToolFailure
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.room import Usage
from services.toolhost.tools.files import sha256_of
from services.toolhost.undo import UndoLog
from tests.fakes.swapper import swapping

SECRET = b"the secret of somebody else"
# Both ways of opening share them; `make soak` asks for a million.
OPERATIONS = int(os.environ.get("FUZZ_OPERATIONS", "3000"))
SEED = int(os.environ.get("FUZZ_SEED", "17"))

PARTS = [
    *(
        "dir",
        "dir",
        "dir",
        "link",
        "file",
        "file",
        "deep",
        "hard",
        "pipe",
        "loop",
        "new",
        "outside",
        "secret",
    ),
    *("..", "..", ".", "", "~", "proc", "self", "root", "fd", "3", ".git", "node_modules", "*", "-rf"),
    *("naïve", "nai\u0308ve", "\udce9", "a\nb", "%2e%2e", "..\\\\..", "x" * 255),
]
PREFIXES = ["", "", "", "", "/", "./", "../", "/proc/self/root/", "//", "file://"]


def _hostile(base: Path) -> tuple[Path, Path]:
    """A workspace and what lies outside of it."""
    root, outside = base / "work", base / "outside"
    for folder in (root / "dir" / "deep", root / "deep" / "dir", root / "node_modules", outside / "deep"):
        folder.mkdir(parents=True)
    for folder in (outside, outside / "deep"):
        for name in ("secret", "file", "only-outside"):
            (folder / name).write_bytes(SECRET)
    for folder in (root, root / "dir", root / "dir" / "deep", root / "deep"):
        (folder / "file").write_bytes(b"inside")
    (root / "link").symlink_to("../outside")
    (root / "file-link").symlink_to("../outside/secret")
    (root / "deep" / "link").symlink_to(outside)
    (root / "loop").symlink_to("loop")
    (root / "abs").symlink_to("/proc/self/root")
    os.link(outside / "secret", root / "hard")
    os.mkfifo(root / "pipe")
    return root, outside


def _operations(guard: WorkspaceGuard, undo: UndoLog) -> list[Callable[[str], object]]:
    def read(path: str) -> None:
        assert SECRET not in guard.read(path, bytes_max=1_000)

    def walk(path: str) -> None:
        assert not any("only-outside" in entry.path for entry in guard.walk(path, entries_max=200).entries)

    def undone(path: str) -> None:
        undo.begin(guard, [(path, None, None)])
        undo.restore(guard)

    reads: list[Callable[[str], object]] = [
        read,
        read,
        guard.stat,
        guard.require_writable,
        guard.spelled,
        walk,
        lambda path: sha256_of(guard, path),
        lambda path: os.close(guard.open_dir(path)),
    ]
    writes: list[Callable[[str], object]] = [
        lambda path: guard.replace(path, b"inside"),
        guard.unlink,
        guard.remove_if_empty,
        undone,
    ]
    # A write waits for the disk; one in eight keeps the tree changing without making that all there is.
    return reads * 4 + writes


@pytest.mark.parametrize("openat2", [True, False], ids=["openat2", "step-by-step"])
def test_nothing_outside_is_read_or_written_whatever_is_asked_and_swapped(
    tmp_path: Path, *, openat2: bool
) -> None:
    root, outside = _hostile(tmp_path)
    before = {path: path.stat() for path in [outside, *outside.rglob("*")]}
    chance = random.Random(SEED)
    with (
        WorkspaceGuard(root, openat2=openat2) as guard,
        swapping(
            (root / "dir", root / "link"),
            (root / "file", root / "file-link"),
            (root / "deep" / "dir", root / "deep" / "link"),
        ),
    ):
        operations = _operations(guard, UndoLog(tmp_path / "undo"))
        for _ in range(OPERATIONS // 2):
            path = chance.choice(PREFIXES) + "/".join(chance.choices(PARTS, k=chance.randint(1, 4)))
            with suppress(ToolFailure, ValueError):
                chance.choice(operations)(path)
        guard.room.take(Usage(1, 1))
        guard.remove_temporaries()
    assert {path: path.stat().st_mtime_ns for path in [outside, *outside.rglob("*")]} == {
        path: status.st_mtime_ns for path, status in before.items()
    }
    assert all(path.read_bytes() == SECRET for path in outside.rglob("*") if path.is_file())
