"""The guard: nothing outside the workspace is reached, by whatever path, and nothing ever blocks."""

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from services.toolhost.entries import FileKind
from services.toolhost.errors import (
    FileMissing,
    FileTooLarge,
    PathRefused,
    ToolFailure,
    WorkspaceFault,
    WrongKind,
)
from services.toolhost.guard import WorkspaceGuard
from tests.fakes.swapper import swapping

SECRET = b"outside\n"
# Of each way in while names are swapped for links; `make soak` asks for 10,000.
SWAPPED_ATTEMPTS = int(os.environ.get("SWAPPED_ATTEMPTS", "300"))


@pytest.fixture(params=[True, False], ids=["openat2", "step-by-step"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkspaceGuard]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_bytes(SECRET)
    (tmp_path / "work").mkdir()
    with WorkspaceGuard(tmp_path / "work", openat2=request.param) as guard:
        yield guard


def _nothing_leaked(guard: WorkspaceGuard) -> None:
    outside = guard.root.parent / "outside"
    assert sorted(os.listdir(outside)) == ["secret.txt"]
    assert (outside / "secret.txt").read_bytes() == SECRET


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "..",
            "../outside/secret.txt",
            "a/../../outside/secret.txt",
            "a/..",
            "/etc/passwd",
            "//etc/passwd",
        ),
        *("a\0b", "/", "x" * 256, "x/" * 2500 + "y", "\ud800"),
    ],
    ids=range(12),
)
def test_a_path_that_could_lead_out_is_refused_in_every_operation(guard: WorkspaceGuard, path: str) -> None:
    with pytest.raises(PathRefused):
        guard.open_read(path)
    with pytest.raises(PathRefused):
        guard.replace(path, b"x")
    with pytest.raises(PathRefused):
        guard.open_dir(path)
    with pytest.raises(PathRefused):
        guard.unlink(path)
    with pytest.raises(PathRefused):
        guard.stat(path)
    with pytest.raises(PathRefused):
        guard.walk(path)
    _nothing_leaked(guard)


@pytest.mark.parametrize(
    "target", ["../outside/secret.txt", "../outside/new.txt", "inside.txt", "/etc/passwd"]
)
def test_a_symbolic_link_is_neither_read_nor_written_nor_removed(guard: WorkspaceGuard, target: str) -> None:
    (guard.root / "inside.txt").write_bytes(b"inside\n")
    (guard.root / "link").symlink_to(target)
    with pytest.raises(PathRefused, match="link"):
        guard.open_read("link")
    with pytest.raises(PathRefused, match="link"):
        guard.replace("link", b"x")
    with pytest.raises(PathRefused, match="link"):
        guard.unlink("link")
    assert guard.stat("link").kind is FileKind.SYMLINK
    assert (guard.root / "inside.txt").read_bytes() == b"inside\n"
    _nothing_leaked(guard)


@pytest.mark.parametrize("target", ["../outside", "real", "/"])
def test_nothing_passes_through_a_directory_link(guard: WorkspaceGuard, target: str) -> None:
    (guard.root / "real").mkdir()
    (guard.root / "real" / "secret.txt").write_bytes(b"inside\n")
    (guard.root / "link").symlink_to(target)
    for operation in (guard.open_read, guard.stat, guard.unlink):
        with pytest.raises(PathRefused, match="link"):
            operation("link/secret.txt")
    with pytest.raises(PathRefused, match="link"):
        guard.replace("link/new.txt", b"x")
    with pytest.raises(PathRefused, match="link"):
        guard.replace("link/deeper/new.txt", b"x")
    with pytest.raises(PathRefused, match="link"):
        guard.open_dir("link")
    with pytest.raises(PathRefused, match="link"):
        guard.walk("link")
    assert os.listdir(guard.root / "real") == ["secret.txt"]
    _nothing_leaked(guard)


def test_a_directory_swapped_for_a_link_never_lets_anything_out(guard: WorkspaceGuard) -> None:
    (guard.root / "dir").mkdir()
    (guard.root / "dir" / "secret.txt").write_bytes(b"inside\n")
    (guard.root / "other").symlink_to("../outside")
    reads = set[bytes]()
    with swapping((guard.root / "dir", guard.root / "other")):
        for _ in range(SWAPPED_ATTEMPTS):
            with suppress(ToolFailure):
                reads.add(guard.read("dir/secret.txt", bytes_max=100))
            with suppress(ToolFailure):
                guard.replace("dir/secret.txt", b"inside\n")
            with suppress(ToolFailure):
                assert {entry.path for entry in guard.walk("dir").entries} <= {"dir/secret.txt"}
    assert reads <= {b"inside\n"}
    _nothing_leaked(guard)


def test_a_file_swapped_for_a_link_is_never_followed(guard: WorkspaceGuard) -> None:
    (guard.root / "file").write_bytes(b"inside\n")
    (guard.root / "other").symlink_to("../outside/secret.txt")
    reads = set[bytes]()
    with swapping((guard.root / "file", guard.root / "other")):
        for attempt in range(SWAPPED_ATTEMPTS):
            with suppress(ToolFailure):
                reads.add(guard.read("file", bytes_max=100))
            # Writing waits for the disk, which the swapping keeps busy.
            if attempt % 8 == 0:
                with suppress(ToolFailure):
                    guard.replace("file", b"inside\n")
    assert reads <= {b"inside\n"}
    _nothing_leaked(guard)


def test_a_hard_link_is_neither_read_nor_written(guard: WorkspaceGuard) -> None:
    os.link(guard.root.parent / "outside" / "secret.txt", guard.root / "hard")
    with pytest.raises(PathRefused, match="hard link"):
        guard.read("hard", bytes_max=100)
    with pytest.raises(PathRefused, match="hard link"):
        guard.replace("hard", b"x")
    with pytest.raises(PathRefused, match="hard link"):
        guard.require_writable("hard")
    _nothing_leaked(guard)


def test_the_folders_of_package_managers_may_link_to_their_stores(guard: WorkspaceGuard) -> None:
    (guard.root / "node_modules").mkdir()
    os.link(guard.root.parent / "outside" / "secret.txt", guard.root / "node_modules" / "index.js")
    assert guard.read("node_modules/index.js", bytes_max=100) == SECRET
    with pytest.raises(PathRefused, match="hard link"):
        guard.replace("node_modules/index.js", b"x")
    _nothing_leaked(guard)


def test_pipes_sockets_devices_and_directories_are_named_and_never_block(guard: WorkspaceGuard) -> None:
    os.mkfifo(guard.root / "pipe")
    (guard.root / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(guard.root / "socket"))
        for name in ("pipe", "socket", "folder"):
            with pytest.raises(WrongKind):
                guard.open_read(name)
            with pytest.raises(WrongKind):
                guard.replace(name, b"x")
    assert guard.stat("pipe").kind is FileKind.SPECIAL
    assert guard.stat("folder").kind is FileKind.DIRECTORY
    with pytest.raises(WrongKind):
        guard.replace(".", b"x")


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", ".GIT/config", "sub/.git", ".git"])
def test_what_git_would_execute_is_not_written(guard: WorkspaceGuard, path: str) -> None:
    with pytest.raises(PathRefused, match="git"):
        guard.replace(path, b"#!/bin/sh\n")
    assert os.listdir(guard.root) == []


def test_a_new_file_gets_its_folders_and_plain_permissions(guard: WorkspaceGuard) -> None:
    guard.replace("a/./b//c.txt", b"hello")
    assert (guard.root / "a" / "b" / "c.txt").read_bytes() == b"hello"
    assert guard.stat("a/b/c.txt").mode == 0o644
    guard.replace("run.sh", b"", mode=0o755)
    assert guard.stat("run.sh").mode == 0o755
    assert guard.read("run.sh", bytes_max=0) == b""


def test_replacing_keeps_permissions_owner_and_extended_attributes(guard: WorkspaceGuard) -> None:
    target = guard.root / "script.sh"
    target.write_bytes(b"old")
    target.chmod(0o751)
    if os.geteuid() == 0:
        os.chown(target, 1234, 2345)
    with suppress(OSError):
        os.setxattr(target, "user.origin", b"test")
    before = target.stat(), os.listxattr(target)
    guard.replace("script.sh", b"new")
    after = target.stat()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(after.st_mode) == 0o751
    assert (after.st_uid, after.st_gid, os.listxattr(target)) == (
        before[0].st_uid,
        before[0].st_gid,
        before[1],
    )
    assert after.st_ino != before[0].st_ino


def test_a_write_that_fails_midway_leaves_the_old_file_and_no_trace(guard: WorkspaceGuard) -> None:
    (guard.root / "data.bin").write_bytes(b"old")
    program = """
import resource, sys
from pathlib import Path
from services.toolhost.errors import WorkspaceFault
from services.toolhost.guard import WorkspaceGuard
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    WorkspaceGuard(Path(sys.argv[1])).replace("data.bin", b"n" * 100_000)
except WorkspaceFault as fault:
    print(fault.code)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, guard.root], capture_output=True, text=True, check=True
    )
    assert run.stdout == "WORKSPACE_IO\n"
    assert (guard.root / "data.bin").read_bytes() == b"old"
    assert os.listdir(guard.root) == ["data.bin"]


KILLED_WRITER = """
import os, select, signal, sys
from pathlib import Path
from services.toolhost.guard import WorkspaceGuard
guard = WorkspaceGuard(Path(sys.argv[1]))
versions = [bytes([65 + index]) * 100_000 for index in range(4)]
guard.replace("file", versions[0])
for round in range(12):
    pid = os.fork()
    if pid == 0:
        while True:
            for version in versions:
                guard.replace("file", version)
    select.select([], [], [], 0.002 * round)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert guard.read("file", bytes_max=200_000) in versions
print(guard.remove_temporaries() < 12, os.listdir(sys.argv[1]))
"""


def test_a_writer_that_is_killed_leaves_one_version_whole_and_what_it_left_is_cleared(
    guard: WorkspaceGuard,
) -> None:
    (guard.root / ".perdure-tmp-1-1").write_bytes(b"half")
    run = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, guard.root], capture_output=True, text=True, check=False
    )
    assert run.stdout == "True ['file']\n", run.stderr


@pytest.mark.parametrize("there,asked", [("nai\u0308ve", "na\u00efve"), ("na\u00efve", "nai\u0308ve")])
def test_a_name_stands_for_the_one_that_differs_only_in_its_unicode_form(
    guard: WorkspaceGuard, there: str, asked: str
) -> None:
    (guard.root / there).mkdir()
    (guard.root / there / there).write_bytes(b"x")
    assert guard.spelled(f"./{asked}//{asked}") == f"{there}/{there}"
    assert guard.spelled(f"{asked}/other-\u00e9") == f"{asked}/other-\u00e9"
    # A name that is there is itself.
    (guard.root / asked).write_bytes(b"y")
    assert guard.spelled(asked) == asked
    with pytest.raises(PathRefused):
        guard.spelled(f"../{asked}")


def test_a_reader_sees_the_old_file_or_the_new_one_whole(guard: WorkspaceGuard) -> None:
    versions = [bytes([65 + index]) * 50_000 for index in range(4)]
    guard.replace("file", versions[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                guard.replace("file", version)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {guard.read("file", bytes_max=60_000) for _ in range(300)}
    finally:
        stop.set()
        writer.join()
    assert seen <= set(versions)
    assert os.listdir(guard.root) == ["file"]


def test_missing_and_oversized_files_are_said_to_be_so(guard: WorkspaceGuard) -> None:
    (guard.root / "big").write_bytes(b"x" * 11)
    with pytest.raises(FileTooLarge):
        guard.read("big", bytes_max=10)
    for path in ("none", "none/deeper"):
        with pytest.raises(FileMissing):
            guard.open_read(path)
    with pytest.raises(WrongKind):
        guard.open_read("big/deeper")
    guard.unlink("big")
    with pytest.raises(FileMissing):
        guard.unlink("big")


def test_a_walk_is_sorted_shallow_first_and_follows_no_link(guard: WorkspaceGuard) -> None:
    root = guard.root
    (root / "b").mkdir()
    (root / "b" / "deep.py").write_bytes(b"12345")
    (root / "a.txt").write_bytes(b"")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_bytes(b"")
    (root / "node_modules").mkdir()
    (root / "node_modules" / "x.js").write_bytes(b"")
    (root / "loop").symlink_to(".")
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    listing = guard.walk()
    kinds = {entry.path: entry.kind for entry in listing.entries}
    assert list(kinds) == ["a.txt", "b", "loop", "node_modules", "x", "y", "b/deep.py"]
    assert kinds["loop"] is kinds["x"] is FileKind.SYMLINK
    assert listing.complete
    assert [entry.path for entry in guard.walk("node_modules").entries] == ["node_modules/x.js"]
    assert [entry.size_bytes for entry in guard.walk("b").entries] == [5]


def test_a_walk_is_bounded_in_number_and_depth(guard: WorkspaceGuard) -> None:
    for index in range(20):
        (guard.root / f"f{index:02}").write_bytes(b"")
    assert not guard.walk(entries_max=10).complete
    assert len(guard.walk(entries_max=10).entries) == 10
    deep = guard.root
    for _ in range(80):
        deep /= "d"
        deep.mkdir()
    assert guard.walk().unreadable == 1


def test_odd_names_are_reached_byte_for_byte(guard: WorkspaceGuard) -> None:
    names = [
        "naïve—é.txt",
        "nai\u0308ve.txt",
        "日本 語.md",
        "-rf",
        "a\nb",
        "```x",
        "é" * 127 + "x",
        "back\\slash",
    ]
    for name in names:
        guard.replace(name, name.encode())
    (guard.root / os.fsdecode(b"latin-\xe9")).write_bytes(b"bytes")
    assert {entry.path for entry in guard.walk().entries} == {*names, "latin-\udce9"}
    assert all(guard.read(name, bytes_max=300) == name.encode() for name in names)
    assert guard.read("latin-\udce9", bytes_max=10) == b"bytes"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_closed_file_is_a_fault_of_the_workspace(guard: WorkspaceGuard) -> None:
    (guard.root / "closed").write_bytes(b"")
    (guard.root / "closed").chmod(0)
    with pytest.raises(WorkspaceFault):
        guard.open_read("closed")
