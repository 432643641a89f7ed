"""`apply_patch` on real files: all of a patch or nothing, also when the process dies in the middle."""

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.toolhost.errors import FileChanged, WorkspaceFault
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools import ToolContext, apply_patch
from services.toolhost.tools.files import apply, is_applied
from services.toolhost.undo import UndoLog
from tests.unit.toolhost_workspace import call, context


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def v4a(body: str) -> str:
    return f"*** Begin Patch\n{body}\n*** End Patch\n"


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def tools(tmp_path: Path) -> ToolContext:
    made = context(tmp_path)
    root = made.guard.root
    (root / "a.py").write_bytes(b"one\r\ntwo\r\n")
    (root / "b.py").write_bytes(b"\xef\xbb\xbfx\ncaf\xe9\n")
    (root / "run.sh").write_bytes(b"echo\n")
    (root / "run.sh").chmod(0o755)
    (root / "gone.txt").write_bytes(b"bye\n")
    return made


MANY = v4a(
    "*** Update File: a.py\n-two\n+zwei\n"
    "*** Add File: new/deep/n.txt\n+hello\n"
    "*** Update File: run.sh\n*** Move to: bin/run.sh\n-echo\n+echo hi\n"
    "*** Delete File: gone.txt\n"
    "*** Update File: b.py\n-x\n+y"
)
AFTER = {
    "a.py": b"one\r\nzwei\r\n",
    "new/deep/n.txt": b"hello\n",
    "bin/run.sh": b"echo hi\n",
    "b.py": b"\xef\xbb\xbfy\ncaf\xe9\n",
}


async def test_a_patch_adds_changes_moves_and_deletes_and_says_so(tools: ToolContext) -> None:
    outcome = await call(tools, "apply_patch", patch=MANY)
    root = tools.guard.root
    assert tree(root) == AFTER
    assert (root / "bin" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert outcome.output == (
        "patched 6 files:\nM a.py: 1 hunk at line 2\nA new/deep/n.txt: 1 lines\nR run.sh -> bin/run.sh: 1 hunk at line 1\n"
        "D gone.txt\nM b.py: 1 hunk at line 1"
    )
    assert outcome.metadata["files"] == {
        **{path: sha256(data) for path, data in AFTER.items()},
        "run.sh": None,
        "gone.txt": None,
    }
    assert outcome.metadata["files_before"] == {
        "a.py": sha256(b"one\r\ntwo\r\n"),
        "new/deep/n.txt": None,
        "run.sh": sha256(b"echo\n"),
        "bin/run.sh": None,
        "gone.txt": sha256(b"bye\n"),
        "b.py": sha256(b"\xef\xbb\xbfx\ncaf\xe9\n"),
    }


async def test_parts_of_a_patch_build_on_each_other(tools: ToolContext) -> None:
    patch = v4a(
        "*** Update File: a.py\n-one\n+uno\n*** Update File: a.py\n-two\n+due\n"
        "*** Delete File: gone.txt\n*** Add File: gone.txt\n+back\n"
        "*** Update File: run.sh\n*** Move to: tmp.sh\n*** Update File: tmp.sh\n*** Move to: end.sh"
    )
    outcome = await call(tools, "apply_patch", patch=patch)
    root = tools.guard.root
    assert outcome.ok, outcome
    assert (root / "a.py").read_bytes() == b"uno\r\ndue\r\n"
    assert (root / "gone.txt").read_bytes() == b"back\n"
    assert sorted(path.name for path in root.iterdir()) == ["a.py", "b.py", "end.sh", "gone.txt"]
    assert (root / "end.sh").stat().st_mode & 0o777 == 0o755


SAFE = "*** Add File: safe.txt\n+x\n"


@pytest.mark.parametrize(
    "patch,code,why",
    [
        (v4a(SAFE + "*** Add File: ../escape.txt\n+x"), "PATH_REFUSED", "'..'"),
        (v4a(SAFE + "*** Add File: /etc/escape.txt\n+x"), "PATH_REFUSED", "absolute"),
        (v4a(SAFE + "*** Add File: link/escape.txt\n+x"), "PATH_REFUSED", "symbolic link"),
        (v4a(SAFE + "*** Add File: .git/hooks/post-commit\n+x"), "PATH_REFUSED", "belongs to git"),
        (v4a(SAFE + "*** Update File: a.py\n*** Move to: ../a.py"), "PATH_REFUSED", "'..'"),
        (v4a(SAFE + "*** Update File: none.py\n-x\n+y"), "FILE_NOT_FOUND", "does not exist"),
        (v4a(SAFE + "*** Update File: a/a.py\n-x\n+y"), "FILE_NOT_FOUND", "did you mean a.py"),
        (v4a(SAFE + "*** Delete File: none.py"), "FILE_NOT_FOUND", "does not exist"),
        (v4a(SAFE + "*** Add File: a.py\n+x"), "PATCH_CONFLICT", "exists already"),
        (v4a(SAFE + "*** Update File: a.py\n*** Move to: b.py"), "PATCH_CONFLICT", "cannot become b.py"),
        (v4a(SAFE + "*** Update File: a.py"), "PATCH_EMPTY", "no hunks"),
        (v4a(SAFE + "*** Update File: a.py\n-three\n+drei"), "PATCH_NO_MATCH", "a.py: hunk 1 was not found"),
        (v4a("*** Update File: a.py\n-two\n+two"), "PATCH_EMPTY", "nothing would change"),
        (v4a(SAFE + "*** Update File: folder\n-x\n+y"), "WRONG_FILE_KIND", "directory"),
        (v4a(SAFE + "*** Update File: pipe\n-x\n+y"), "WRONG_FILE_KIND", "pipe"),
        (v4a(SAFE + "*** Add File: a.py/x\n+y"), "WRONG_FILE_KIND", "not a directory"),
        (v4a(SAFE + "*** Add File: odd.txt\n+\ud83c"), "INVALID_ARGUMENTS", "surrogate"),
        ("*** Begin Patch\n" + SAFE, "PATCH_INVALID", "cut off"),
        ("--- a/a.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "PATCH_NO_MATCH", "holds more"),
    ],
)
async def test_a_patch_of_which_one_part_fails_changes_nothing(
    tools: ToolContext, patch: str, code: str, why: str
) -> None:
    root = tools.guard.root
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to("..")
    before = tree(root)
    outcome = await call(tools, "apply_patch", patch=patch)
    assert (outcome.ok, outcome.metadata) == (False, {"error_code": code})
    assert why in outcome.output
    assert tree(root) == before
    assert sorted(os.listdir(root.parent)) == ["work"]


async def test_a_unified_diff_with_prefixes_changes_permissions_and_deletes(tools: ToolContext) -> None:
    patch = (
        "diff --git a/a.py b/a.py\nold mode 100644\nnew mode 100755\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"
        "diff --git a/run.sh b/run.sh\nold mode 100755\nnew mode 100644\n"
        "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "--- /dev/null\n+++ b/naïve — é.txt\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
    )
    outcome = await call(tools, "apply_patch", patch=patch)
    assert outcome.ok, outcome
    root = tools.guard.root
    assert (root / "a.py").read_bytes() == b"one\r\nzwei\r\n"
    assert (root / "a.py").stat().st_mode & 0o777 == 0o755
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o644
    assert not (root / "gone.txt").exists()
    assert (root / "naïve — é.txt").read_bytes() == b"x"


async def test_an_old_name_that_is_nobody_s_stands_for_the_new_one(tools: ToolContext) -> None:
    patch = "--- a.py.orig\t2026\n+++ a.py\t2026\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"
    assert (await call(tools, "apply_patch", patch=patch)).ok
    assert (tools.guard.root / "a.py").read_bytes() == b"one\r\nzwei\r\n"


async def test_the_same_plan_again_is_no_error_and_changes_nothing(tools: ToolContext) -> None:
    plan = await apply_patch.plan(tools, {"patch": MANY})
    assert not is_applied(tools.guard, plan.after)
    first = apply(tools.guard, plan, tools.undo)
    inodes = {path: (tools.guard.root / path).stat().st_ino for path in AFTER}
    assert is_applied(tools.guard, plan.after)
    assert apply(tools.guard, plan, tools.undo) == first
    assert inodes == {path: (tools.guard.root / path).stat().st_ino for path in AFTER}
    # Another call with the same patch is told what it finds.
    again = await call(tools, "apply_patch", patch=v4a("*** Update File: a.py\n one\n-two\n+zwei"))
    assert "applied already" in again.output


async def test_a_plan_over_what_somebody_else_wrote_is_refused_whole(tools: ToolContext) -> None:
    plan = await apply_patch.plan(tools, {"patch": MANY})
    (tools.guard.root / "b.py").write_bytes(b"theirs\n")
    before = tree(tools.guard.root)
    with pytest.raises(FileChanged, match=r"b\.py"):
        apply(tools.guard, plan, tools.undo)
    assert tree(tools.guard.root) == before


class FailingGuard(WorkspaceGuard):
    """A disk that takes so many more files and is full then, until a change is taken back."""

    left = 2

    def replace(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise WorkspaceFault("no space left on device")
        super().replace(path, data, mode=mode)


async def test_a_disk_that_is_full_in_the_middle_takes_everything_back(tools: ToolContext) -> None:
    plan = await apply_patch.plan(tools, {"patch": MANY})
    before = tree(tools.guard.root)
    with FailingGuard(tools.guard.root) as guard, pytest.raises(WorkspaceFault, match="no space"):
        apply(guard, plan, tools.undo)
    assert tree(tools.guard.root) == before
    assert not (tools.guard.root / "new").exists()
    assert tools.undo.restore(tools.guard) == []


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools.files import apply
from services.toolhost.undo import UndoLog
from tests.unit.test_toolhost_apply_patch import AFTER, MANY, tree
from tests.unit.toolhost_workspace import context
from services.toolhost.tools import apply_patch

class Dying(WorkspaceGuard):
    steps = 0
    def _step(self):
        Dying.steps -= 1
        if Dying.steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def replace(self, path, data, *, mode=None):
        self._step()
        super().replace(path, data, mode=mode)
        self._step()
    def unlink(self, path):
        self._step()
        super().unlink(path)
        self._step()

base = Path(sys.argv[1])
tools = context(base)
before = tree(tools.guard.root)
plan = asyncio.run(apply_patch.plan(tools, {"patch": MANY}))
outcomes = []
for step in range(1, 20):
    pid = os.fork()
    if pid == 0:
        Dying.steps = step
        apply(Dying(tools.guard.root), plan, tools.undo)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    # As the next holder of the workspace.
    UndoLog(base / ".perdure-git" / "work.undo").restore(tools.guard)
    found = tree(tools.guard.root)
    assert found in (before, AFTER), (step, found)
    assert not any(".perdure" in name for name in found)
    outcomes.append((killed, found == AFTER))
    if found == AFTER:
        break
print(outcomes[-1], len(outcomes), all(killed and not whole for killed, whole in outcomes[:-1]))
"""


@pytest.mark.usefixtures("tools")
def test_a_process_killed_at_any_step_leaves_all_or_nothing_once_somebody_takes_over(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", DYING, tmp_path], capture_output=True, text=True, check=False, timeout=120
    )
    # Six changes, each with a step before and one behind it; then the patch goes through.
    assert run.stdout == "(False, True) 13 True\n", run.stderr


async def test_taking_back_spares_what_somebody_else_wrote_meanwhile(tools: ToolContext) -> None:
    plan = await apply_patch.plan(tools, {"patch": MANY})
    changes = [(change.path, change.before_sha256, change.after_sha256) for change in plan.changes]
    tools.undo.begin(tools.guard, changes)
    root = tools.guard.root
    (root / "a.py").write_bytes(AFTER["a.py"])
    (root / "b.py").write_bytes(b"theirs\n")
    (root / "gone.txt").unlink()
    undo = UndoLog(root.parent / ".perdure-git" / "work.undo")
    assert sorted(undo.restore(tools.guard)) == ["a.py", "gone.txt"]
    assert (root / "a.py").read_bytes() == b"one\r\ntwo\r\n"
    assert (root / "b.py").read_bytes() == b"theirs\n"
    assert undo.restore(tools.guard) == []


@pytest.mark.usefixtures("tools")
async def test_what_changed_since_the_run_saw_it_is_not_deleted(tmp_path: Path) -> None:
    stale = context(tmp_path, seen={"gone.txt": sha256(b"as it was\n")})
    refused = await call(stale, "apply_patch", patch=v4a("*** Delete File: gone.txt"))
    assert refused.metadata == {"error_code": "FILE_CHANGED"}
    fresh = context(tmp_path, seen={"gone.txt": sha256(b"bye\n")})
    assert (await call(fresh, "apply_patch", patch=v4a("*** Delete File: gone.txt"))).ok


async def test_patches_of_different_files_at_the_same_time_leave_each_other_whole(tools: ToolContext) -> None:
    names = [[f"{side}{number}.txt" for number in range(12)] for side in "lr"]
    for name in (*names[0], *names[1]):
        (tools.guard.root / name).write_text("0\n")
    for turn in range(3):
        both = [
            apply_patch.run(
                tools,
                {"patch": v4a("\n".join(f"*** Update File: {name}\n-{turn}\n+{turn + 1}" for name in side))},
            )
            for side in names
        ]
        assert [outcome.ok for outcome in await asyncio.gather(*both)] == [True, True]
        written = {(tools.guard.root / name).read_text() for name in (*names[0], *names[1])}
        assert written == {f"{turn + 1}\n"}
