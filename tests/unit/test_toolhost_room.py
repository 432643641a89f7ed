"""Quotas: what does not fit is refused before it begins, and what makes room is always allowed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.toolhost.guard import WorkspaceGuard
from services.toolhost.room import Quota, Usage
from services.toolhost.settings import ToolhostSettings
from services.toolhost.tools import ToolContext
from tests.unit.toolhost_workspace import call, context


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[ToolContext]:
    (tmp_path / "work").mkdir()
    with WorkspaceGuard(tmp_path / "work", quota=Quota(bytes_max=1_000, files_max=4)) as guard:
        yield context(tmp_path, guard=guard)


async def test_a_write_beyond_the_bytes_is_refused_and_says_what_to_do(tools: ToolContext) -> None:
    assert (await call(tools, "write_file", path="a", content="x" * 900)).ok
    full = await call(tools, "write_file", path="b", content="y" * 101)
    assert full.metadata == {"error_code": "WORKSPACE_FULL"}
    assert "900 of 1000 bytes, and 101 more do not fit" in full.output
    assert "PERDURE_WORKSPACE_BYTES_MAX" in full.output
    assert os.listdir(tools.guard.root) == ["a"]
    # A file that becomes smaller makes room, also for the next one.
    assert (await call(tools, "edit_file", path="a", old_str="x" * 900, new_str="x")).ok
    assert (await call(tools, "write_file", path="b", content="y" * 999)).ok
    assert (await call(tools, "write_file", path="b", content="y" * 998)).ok


async def test_a_write_beyond_the_files_is_refused(tools: ToolContext) -> None:
    for name in "abcd":
        assert (await call(tools, "write_file", path=name, content="")).ok
    full = await call(tools, "write_file", path="e", content="")
    assert "4 of 4 files and folders, and 1 more do not fit" in full.output
    assert "PERDURE_WORKSPACE_FILES_MAX" in full.output
    assert (await call(tools, "write_file", path="a", content="again")).ok
    patch = "*** Begin Patch\n*** Delete File: a\n*** Update File: b\n*** Move to: e\n*** End Patch"
    assert (await call(tools, "apply_patch", patch=patch)).ok
    assert (await call(tools, "write_file", path="f", content="")).ok


async def test_a_patch_counts_as_a_whole(tools: ToolContext) -> None:
    patch = (
        "*** Begin Patch\n"
        + "".join(f"*** Add File: {name}\n+{name * 400}\n" for name in "abc")
        + "*** End Patch"
    )
    full = await call(tools, "apply_patch", patch=patch)
    assert full.metadata == {"error_code": "WORKSPACE_FULL"}
    assert os.listdir(tools.guard.root) == []


async def test_what_others_wrote_or_removed_is_measured_before_anything_is_refused(
    tools: ToolContext,
) -> None:
    assert (await call(tools, "write_file", path="a", content="x" * 900)).ok
    (tools.guard.root / "a").unlink()
    assert (await call(tools, "write_file", path="b", content="x" * 900)).ok
    (tools.guard.root / "c").write_bytes(b"x" * 90)
    tools.guard.room.forget()
    assert not (await call(tools, "write_file", path="d", content="x" * 20)).ok
    # A hole takes no room; `.git` and what packages bring along do.
    (tools.guard.root / "b").unlink()
    with (tools.guard.root / "c").open("wb") as file:
        file.truncate(1 << 30)
    assert tools.guard.room.measure().bytes == 0
    (tools.guard.root / ".git").mkdir()
    (tools.guard.root / ".git" / "pack").write_bytes(b"x" * 500)
    assert tools.guard.room.measure() == Usage(500, 3)


def test_the_quota_is_a_setting() -> None:
    environment = {"PERDURE_WORKSPACE_BYTES_MAX": "1000", "PERDURE_WORKSPACE_FILES_MAX": "7"}
    assert ToolhostSettings.load("toolhost", environment).quota == Quota(1000, 7)
    assert ToolhostSettings.load("toolhost", {}).quota == Quota()
