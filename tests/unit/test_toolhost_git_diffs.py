"""What git says two trees differ in, `apply_patch` makes of the one the other, byte for byte."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.unit.toolhost_workspace import call, context, git

# Each takes half a second of git; `make soak` asks for more of them.
SEEDS = int(os.environ.get("EXAMPLES", "5"))
NAMES = ["a.py", "dir/b.txt", "naïve é.md", "sp ace", "-dash", 'q"uote', "tab\tname", "x/y/z"]
LINES = [b"a", b"b", b"", b"  c", b"-- x", b"++ y", "é".encode(), b"@@", b"*** End Patch", b"caf\xe9"]
NEW_LINES = [b"new", b"x\r", b"--- a", b"+++ b", b""]


def _tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Contents and executable bits."""
    files = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o111) for path in files
    }


def _content(chance: random.Random) -> bytes:
    lines = chance.choices(LINES, k=chance.randint(0, 25))
    end = chance.choice([b"\n", b"\n", b"\r\n"])
    return end.join(lines) + (end if lines and chance.random() < 0.8 else b"")


def _put(root: Path, name: str, data: bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)


def _changed(chance: random.Random, root: Path, path: Path) -> None:
    """One file goes, moves, becomes executable, has other lines, or stays."""
    match chance.choice(["go", "move", "mode", "edit", "edit", "edit", "stay"]):
        case "go":
            path.unlink()
        case "move":
            _put(root, chance.choice(["moved", "new dir/moved", "moved é"]), path.read_bytes())
            path.unlink()
        case "mode":
            path.chmod(0o755)
        case "edit":
            lines = path.read_bytes().split(b"\n")
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(lines) + 1)
                lines[at : at + chance.randint(0, 2)] = chance.choices(NEW_LINES, k=chance.randint(0, 2))
            path.write_bytes(b"\n".join(lines))
        case _:
            pass


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_diff_of_git_makes_the_old_tree_the_new_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tools, repository = context(tmp_path), tmp_path / "repository"
    repository.mkdir()
    for name in chance.sample(NAMES, 5):
        data = _content(chance)
        _put(repository, name, data)
        _put(tools.guard.root, name, data)
    git(repository, "init", "-q")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "old")
    for name in sorted(_tree(repository)):
        _changed(chance, repository, repository / name)
    _put(repository, "added", _content(chance))
    git(repository, "add", "-A")
    context_lines = chance.choice([1, 3])
    diff = git(repository, "diff", "--cached", "-M", f"-U{context_lines}", "--text")
    outcome = await call(tools, "apply_patch", patch=diff.decode("utf-8", "surrogateescape"))
    assert outcome.ok, outcome.output
    assert _tree(tools.guard.root) == _tree(repository)
