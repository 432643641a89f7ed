"""Searching: exact totals, and "no match", "not a pattern" and "too costly" are three answers."""

import asyncio
import os
from pathlib import Path

import pytest

from services.toolhost.tools import ToolContext
from tests.unit.toolhost_workspace import PATIENCE_S, call, context


@pytest.fixture
def tools(tmp_path: Path) -> ToolContext:
    made = context(tmp_path)
    root = made.guard.root
    (root / "src").mkdir()
    (root / "src" / "a.py").write_bytes(b"import os\r\nx = 1\r\n--flag\r\n")
    (root / "src" / "b.txt").write_bytes("Import naïve\ncaf".encode() + b"\xe9\n")
    (root / "data.bin").write_bytes(b"import\0")
    os.mkfifo(root / "pipe")
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    return made


async def test_plain_text_and_expressions_find_the_same_lines(tools: ToolContext) -> None:
    for pattern in ("import os", "import (os)", "^import os$"):
        outcome = await call(tools, "search_text", pattern=pattern)
        assert outcome.output == (
            "src/a.py:1: import os\n(1 matching lines in 1 of 2 files)\nnot searched: 1 binary"
        )
        assert outcome.metadata == {"matches": 1, "files": 1, "searched_files": 2, "skipped_files": 1}


async def test_case_folders_and_globs_narrow_a_search(tools: ToolContext) -> None:
    for pattern in ("IMPORT", "IMP[O]RT"):
        assert (await call(tools, "search_text", pattern=pattern)).metadata["matches"] == 0
        assert (await call(tools, "search_text", pattern=pattern, ignore_case=True)).metadata["matches"] == 2
        only = await call(tools, "search_text", pattern=pattern, ignore_case=True, path="src", glob="*.txt")
        assert only.output.startswith("src/b.txt:1: Import naïve\n")
    assert (await call(tools, "search_text", pattern="x.=", path="src/a.py")).output.startswith(
        "src/a.py:2: x = 1\n"
    )
    assert (await call(tools, "search_text", pattern=r"na\wve$")).metadata["matches"] == 1


async def test_a_pattern_that_begins_with_a_dash_is_a_pattern(tools: ToolContext) -> None:
    for pattern in ("--flag", "--fl[a]g", "-"):
        assert "src/a.py:3: --flag" in (await call(tools, "search_text", pattern=pattern)).output


async def test_no_match_is_not_an_error_and_an_invalid_pattern_is(tools: ToolContext) -> None:
    nothing = await call(tools, "search_text", pattern="nowhere (here)?")
    assert nothing.ok
    assert nothing.output.startswith("no match for 'nowhere (here)?' in 2 files")
    for pattern in ("(", "a{2,1}", "*x", "(?P<n>a)(?P<n>b)", "[z-a]", "\\"):
        invalid = await call(tools, "search_text", pattern=pattern)
        assert (invalid.ok, invalid.metadata) == (False, {"error_code": "INVALID_PATTERN"})
    for arguments in ({"pattern": ""}, {"pattern": "x" * 5000}):
        assert (await call(tools, "search_text", **arguments)).metadata["error_code"] == "INVALID_PATTERN"
    assert (await call(tools, "search_text", pattern="a", path="none")).metadata[
        "error_code"
    ] == "FILE_NOT_FOUND"
    assert (await call(tools, "search_text", pattern="a", path="pipe")).metadata[
        "error_code"
    ] == "WRONG_FILE_KIND"


@pytest.mark.parametrize("pattern", ["needle", "need[l]e"])
async def test_a_million_matches_are_counted_and_few_are_shown(tools: ToolContext, pattern: str) -> None:
    (tools.guard.root / "many.txt").write_bytes(b"needle\n" * 1_000_000)
    outcome = await call(tools, "search_text", pattern=pattern, max_results=3)
    assert outcome.output.splitlines()[:4] == [
        "many.txt:1: needle",
        "many.txt:2: needle",
        "many.txt:3: needle",
        "… the first 3 of 1000000 matching lines in 1 of 3 files; narrow the pattern, path or glob",
    ]


async def test_a_long_line_is_cut_around_its_match(tools: ToolContext) -> None:
    (tools.guard.root / "min.js").write_bytes(b"x" * 6_000_000 + b"needle" + b"y" * 6_000_000)
    for pattern in ("needle", "ne+dle"):
        line = (await call(tools, "search_text", pattern=pattern, glob="*.js")).output.splitlines()[0]
        assert line.startswith("min.js:1: …xxx")
        assert "needle" in line
        assert len(line) < 400


async def test_an_invalid_pattern_over_much_text_does_not_hang(tools: ToolContext) -> None:
    (tools.guard.root / "much.txt").write_bytes(b"text\n" * 1_000_000)
    assert (await call(tools, "search_text", pattern="(")).metadata["error_code"] == "INVALID_PATTERN"


async def test_a_pattern_that_backtracks_for_ever_is_ended_and_the_host_lives_on(tmp_path: Path) -> None:
    tools = context(tmp_path, timeout_s=0.3)
    (tools.guard.root / "a.txt").write_text("a" * 40 + "b\n")
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        stuck = group.create_task(call(tools, "search_text", pattern="(a+)+$"))
        # The loop is free all the while: another tool answers in the middle of it.
        assert (await call(tools, "search_text", pattern="ab")).ok
        assert not stuck.done()
    assert stuck.result().metadata == {"error_code": "SEARCH_TOO_COSTLY"}
