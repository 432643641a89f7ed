"""No tool shows a secret of a file, and none takes the mark of one for text of the file; bytes and digests stay true."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from libs.policy.redaction import MARK, Redaction
from services.toolhost.tools import ToolContext
from tests.unit.toolhost_workspace import call, context

KNOWN = "key-4-this-deployment"
TOKEN = "sk-proj-" + "a1B2c3D4e5F6g7H8i9J0"
# In parts, so that this file holds nothing that looks like a secret itself.
PEM = "PRIVATE " + "KEY-----"
BODY = [f"MIIE{number:04d}" + "A1b2" * 14 for number in range(20)]
KEY_FILE = "\n".join([f"-----BEGIN {PEM}", *BODY, f"-----END {PEM}", "end", ""])
CONFIG = f"host = a.example\ntoken = {TOKEN}\nname = me  # {KNOWN}\nport = 1\n"


def work(tmp_path: Path, **changes: object) -> ToolContext:
    """A workspace with a configuration and a key in it."""
    tools = context(tmp_path, redaction=Redaction(lambda: [KNOWN.encode()]), **changes)
    (tmp_path / "work" / "config").write_text(CONFIG)
    (tmp_path / "work" / "key.txt").write_text(KEY_FILE)
    return tools


def secret_free(text: str) -> bool:
    return not any(part in text for part in (TOKEN, TOKEN[8:], KNOWN, *BODY))


async def test_reading_shows_everything_but_secrets_and_the_digest_is_that_of_the_file(
    tmp_path: Path,
) -> None:
    tools = work(tmp_path)
    found = await call(tools, "read_file", path="config")
    assert found.output.split("\n")[1:] == [
        "     1\thost = a.example",
        f"     2\ttoken = {MARK}",
        f"     3\tname = me  # {MARK}",
        "     4\tport = 1",
    ]
    assert found.metadata["sha256"] == hashlib.sha256(CONFIG.encode()).hexdigest()
    assert found.metadata["size_bytes"] == len(CONFIG)
    assert found.metadata["total_lines"] == 4


@pytest.mark.parametrize(
    "offset,lines,filler",
    [
        (1, 30, 0),
        (2, 1, 0),
        (5, 3, 0),
        (21, 2, 0),
        (1, 3, 0),
        (12, 30, 0),
        (5, 3, 2_200_000),
        (1, 30, 1 << 20),
    ],
)
async def test_a_page_in_the_middle_of_a_key_shows_none_of_it(
    tmp_path: Path, offset: int, lines: int, filler: int
) -> None:
    tools = work(tmp_path)
    before = "x\n" * (filler // 2)
    (tmp_path / "work" / "key.txt").write_text(before + KEY_FILE)
    found = await call(tools, "read_file", path="key.txt", offset=offset + filler // 2, max_lines=lines)
    assert found.ok
    assert secret_free(found.output)
    shown = found.output.split("\n")[1:]
    assert [line.partition("\t")[2] for line in shown if f"{filler // 2 + 23}\t" in line] in ([], ["end"])
    assert found.metadata["total_lines"] == 23 + filler // 2


async def test_a_secret_at_the_cut_of_a_long_line_is_not_shown(tmp_path: Path) -> None:
    tools = work(tmp_path)
    for start in range(1_975, 2_003, 4):
        (tmp_path / "work" / "long").write_text("x " * (start // 2) + KNOWN + " y" * 3_000)
        found = await call(tools, "read_file", path="long")
        assert KNOWN[-8:] not in found.output
        assert KNOWN[:8] not in found.output, start


@pytest.mark.parametrize("pattern", ["token", "MIIE", "A1b2|deploy", KNOWN, "sk-proj.*"])
async def test_a_search_finds_lines_and_shows_no_secret_of_them(tmp_path: Path, pattern: str) -> None:
    found = await call(work(tmp_path), "search_text", pattern=pattern)
    assert found.metadata["matches"], found.output
    assert MARK in found.output
    # What was looked for is said again only where nothing was found.
    assert secret_free(found.output)


@pytest.mark.parametrize("pattern", ["needle", "nee[d]le"])
async def test_a_search_in_a_long_line_shows_no_part_of_a_secret(tmp_path: Path, pattern: str) -> None:
    tools = work(tmp_path)
    for distance in (60, 150, 250):
        line = "x " * 500 + TOKEN + "." * distance + " needle " + "." * distance + TOKEN + " y" * 500
        (tmp_path / "work" / "long").write_text(line)
        found = await call(tools, "search_text", pattern=pattern)
        assert "needle" in found.output
        assert "J0" not in found.output
        assert "sk-proj-a1" not in found.output


async def test_a_diff_shows_no_secret_of_what_changed(tmp_path: Path) -> None:
    tools = work(tmp_path)
    await tools.repository.ensure()
    commit = (await tools.repository.snapshot("begin")).commit
    (tmp_path / "work" / "config").write_text(CONFIG.replace("port = 1", f"port = 2\nagain = {TOKEN}"))
    (tmp_path / "work" / "key.txt").write_text("gone\n")
    found = await call(replace(tools, baseline_commit=commit), "get_git_diff")
    shown = tools.redaction.text(found.output)
    assert "+port = 2" in shown
    assert secret_free(shown)


async def test_an_edit_that_looks_for_the_mark_is_told_so_and_changes_nothing(tmp_path: Path) -> None:
    tools = work(tmp_path)
    for wanted in (f"token = {MARK}", f"host = a.example\ntoken = {MARK}\n"):
        refused = await call(tools, "edit_file", path="config", old_str=wanted, new_str="x")
        assert refused.metadata == {"error_code": "REDACTED_TEXT"}
        assert "stands for a secret" in refused.output
    patch = (
        f"*** Begin Patch\n*** Update File: config\n@@\n host = a.example\n-token = {MARK}\n+x\n*** End Patch"
    )
    refused = await call(tools, "apply_patch", patch=patch)
    assert refused.metadata == {"error_code": "REDACTED_TEXT"}
    assert (tmp_path / "work" / "config").read_text() == CONFIG


async def test_a_change_that_would_write_the_mark_over_a_secret_is_refused(tmp_path: Path) -> None:
    tools = work(tmp_path)
    shown = CONFIG.replace(TOKEN, MARK).replace(KNOWN, MARK)
    refused = await call(tools, "write_file", path="config", content=shown)
    assert refused.metadata == {"error_code": "REDACTED_TEXT"}
    new = f"port = 1\ntoken = {MARK}"
    refused = await call(tools, "edit_file", path="config", old_str="port = 1", new_str=new)
    assert refused.metadata == {"error_code": "REDACTED_TEXT"}
    patch = f"*** Begin Patch\n*** Update File: config\n@@\n port = 1\n+token = {MARK}\n*** End Patch"
    refused = await call(tools, "apply_patch", patch=patch)
    assert refused.metadata == {"error_code": "REDACTED_TEXT"}
    again = f"*** Begin Patch\n*** Delete File: config\n*** Add File: config\n+token = {MARK}\n*** End Patch"
    refused = await call(tools, "apply_patch", patch=again)
    assert refused.metadata == {"error_code": "REDACTED_TEXT"}
    assert (tmp_path / "work" / "config").read_text() == CONFIG


async def test_what_is_around_a_secret_can_be_changed_and_the_secret_stays_byte_for_byte(
    tmp_path: Path,
) -> None:
    tools = work(tmp_path)
    before = (await call(tools, "read_file", path="config")).metadata["sha256"]
    edited = await call(tools, "edit_file", path="config", old_str="port = 1", new_str="port = 2")
    assert edited.ok, edited.output
    assert edited.metadata["sha256_before"] == before
    assert (tmp_path / "work" / "config").read_text() == CONFIG.replace("port = 1", "port = 2")
    # Who replaces the secret says what shall be there.
    anew = CONFIG.replace(TOKEN, "from the environment").replace(KNOWN, "")
    assert (await call(tools, "write_file", path="config", content=anew)).ok


async def test_a_text_about_the_mark_can_be_written_and_edited(tmp_path: Path) -> None:
    tools = work(tmp_path)
    written = await call(tools, "write_file", path="doc.md", content=f"Secrets are shown as {MARK}.\n")
    assert written.ok
    assert "brings no secret back" in written.output
    edited = await call(
        tools, "edit_file", path="doc.md", old_str=f"as {MARK}.", new_str=f"so: {MARK}, {MARK}"
    )
    assert edited.ok, edited.output
    assert (tmp_path / "work" / "doc.md").read_text() == f"Secrets are shown so: {MARK}, {MARK}\n"


async def test_a_file_that_changed_is_noticed_by_its_bytes_although_it_looks_the_same(tmp_path: Path) -> None:
    tools = work(tmp_path)
    seen = (await call(tools, "read_file", path="config")).metadata["sha256"]
    (tmp_path / "work" / "config").write_text(CONFIG.replace("J0", "K1"))
    aware = replace(tools, seen={"config": str(seen)})
    refused = await call(aware, "write_file", path="config", content="new\n")
    assert refused.metadata == {"error_code": "FILE_CHANGED"}
