"""The tools on real files: typed answers for everything odd, digests for everything changed."""

import hashlib
import os
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from libs.contracts.tools import Semantics
from services.toolhost.errors import FileChanged
from services.toolhost.sandbox import Sandbox, SandboxMode, choose
from services.toolhost.tools import ToolContext, edit_file, write_file
from services.toolhost.tools.catalog import TOOLS
from services.toolhost.tools.files import apply, is_applied
from tests.unit.toolhost_workspace import call, context


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_tool_is_declared_as_the_contract_says() -> None:
    declared = {
        name: (list(_properties(name)), tool.spec.parameters["required"]) for name, tool in TOOLS.items()
    }
    assert declared == {
        "list_files": (["path", "glob"], []),
        "read_file": (["path", "offset", "max_lines"], ["path"]),
        "write_file": (["path", "content"], ["path", "content"]),
        "edit_file": (["path", "old_str", "new_str", "replace_all"], ["path", "old_str", "new_str"]),
        "apply_patch": (["patch"], ["patch"]),
        "search_text": (["pattern", "path", "glob", "ignore_case", "max_results"], ["pattern"]),
        "get_git_diff": (["path"], []),
        "run_tests": ([], []),
        "run_command": (["command", "timeout_s"], ["command"]),
        "run_program": (["code"], ["code"]),
        "echo": (["text"], ["text"]),
        "search_knowledge": (["query", "limit"], ["query"]),
    }
    idempotent = {name for name, tool in TOOLS.items() if tool.spec.semantics is Semantics.IDEMPOTENT}
    assert idempotent == {"write_file", "edit_file", "apply_patch", "run_tests"}
    assert {name for name, tool in TOOLS.items() if tool.plan} == {"write_file", "edit_file", "apply_patch"}
    assert all(tool.spec.parameters["additionalProperties"] is False for tool in TOOLS.values())


def _properties(name: str) -> dict[str, object]:
    properties = TOOLS[name].spec.parameters["properties"]
    assert isinstance(properties, dict)
    return properties  # pyright: ignore[reportUnknownVariableType] - a JSON schema is a free dict.


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a\0b", "link", "dir-link/x", "dangling", ""])
async def test_an_escape_is_an_answer_of_every_tool_that_takes_a_path(tmp_path: Path, path: str) -> None:
    tools = context(tmp_path)
    (tmp_path / "x").write_text("outside")
    for name, target in (("link", "../x"), ("dir-link", ".."), ("dangling", "../nowhere")):
        (tools.guard.root / name).symlink_to(target)
    for name, arguments in (
        ("read_file", {"path": path}),
        ("write_file", {"path": path, "content": "x"}),
        ("edit_file", {"path": path, "old_str": "outside", "new_str": "y"}),
    ):
        outcome = await call(tools, name, **arguments)
        assert not outcome.ok
        assert outcome.output.startswith("PATH_REFUSED: ")
        assert outcome.metadata == {"error_code": "PATH_REFUSED"}
    if path:
        for name, arguments in (
            ("list_files", {"path": path}),
            ("search_text", {"pattern": "o", "path": path}),
        ):
            assert (await call(tools, name, **arguments)).metadata["error_code"] == "PATH_REFUSED"
    assert (tmp_path / "x").read_text() == "outside"
    assert sorted(os.listdir(tmp_path)) == ["work", "x"]


async def test_reading_always_states_the_total(tmp_path: Path) -> None:
    tools = context(tmp_path)
    data = b"".join(b"line %d\n" % number for number in range(1, 51))
    (tools.guard.root / "a.txt").write_bytes(data)
    whole = await call(tools, "read_file", path="a.txt")
    assert whole.output.startswith("a.txt: lines 1-50 of 50\n     1\tline 1\n")
    assert whole.metadata["sha256"] == sha256(data)
    assert whole.metadata["total_lines"] == 50
    part = await call(tools, "read_file", path="a.txt", offset=10, max_lines=2)
    assert part.output == (
        "a.txt: lines 10-11 of 50\n    10\tline 10\n    11\tline 11\n… 39 more lines; continue with offset=12"
    )
    assert part.metadata["sha256"] == sha256(data)
    last = await call(tools, "read_file", path="a.txt", offset=50)
    assert last.output == "a.txt: lines 50-50 of 50\n    50\tline 50"
    beyond = await call(tools, "read_file", path="a.txt", offset=51)
    assert beyond.output == "OFFSET_BEYOND_END: 'a.txt' has 50 lines; offset 51 is beyond the end"
    assert (await call(tools, "read_file", path="a.txt", offset=0, max_lines=1)).ok
    assert not (await call(tools, "read_file", path="a.txt", offset=-1)).ok


async def test_reading_is_bounded_by_the_room_for_output_and_gets_on(tmp_path: Path) -> None:
    tools = context(tmp_path, output_chars_max=100)
    (tools.guard.root / "a.txt").write_text("".join(f"{number:030}\n" for number in range(10)))
    outcome = await call(tools, "read_file", path="a.txt")
    assert outcome.output.startswith("a.txt: lines 1-2 of 10\n")
    assert outcome.output.endswith("… 8 more lines; continue with offset=3")
    (tools.guard.root / "wide.txt").write_text("x" * 500 + "\ny\n")
    assert (
        "… 1 more lines; continue with offset=2" in (await call(tools, "read_file", path="wide.txt")).output
    )


async def test_odd_files_get_typed_answers(tmp_path: Path) -> None:
    tools = context(tmp_path)
    root = tools.guard.root
    (root / "empty").write_bytes(b"")
    (root / "crlf").write_bytes(b"\xef\xbb\xbfa\r\nb")
    (root / "latin").write_bytes(b"caf\xe9\n")
    (root / "zeros").write_bytes(b"a\0b")
    (root / "paper.pdf").write_bytes(b"%PDF-1.7 plain")
    (root / "utf16").write_bytes(b"\xff\xfet\0x")
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    empty = await call(tools, "read_file", path="empty")
    assert (empty.ok, empty.output) == (True, "empty: empty, 0 lines")
    crlf = await call(tools, "read_file", path="crlf")
    assert crlf.output == (
        "crlf: lines 1-2 of 2 (CRLF line ends; byte order mark; no line end at the end of the file)\n"
        "     1\ta\n     2\tb"
    )
    assert "not all UTF-8" in (await call(tools, "read_file", path="latin")).output
    for name, code, word in (
        ("zeros", "BINARY_FILE", "binary, 3 bytes"),
        ("paper.pdf", "BINARY_FILE", "PDF"),
        ("utf16", "BINARY_FILE", "UTF-16"),
        ("folder", "WRONG_FILE_KIND", "directory"),
        ("pipe", "WRONG_FILE_KIND", "pipe"),
        ("none", "FILE_NOT_FOUND", "does not exist"),
    ):
        outcome = await call(tools, "read_file", path=name)
        assert (outcome.ok, outcome.metadata["error_code"]) == (False, code)
        assert word in outcome.output


@pytest.mark.parametrize("name,mark", [("utf-16-le", b"\xff\xfe"), ("utf-16-be", b"\xfe\xff")])
async def test_a_text_in_utf16_is_read_searched_edited_and_patched_in_its_own_encoding(
    tmp_path: Path, name: str, mark: bytes
) -> None:
    tools = context(tmp_path)
    file = tools.guard.root / "win.reg"
    file.write_bytes(mark + "one\r\ntwö\r\n".encode(name))
    shown = await call(tools, "read_file", path="win.reg")
    assert (
        shown.output == f"win.reg: lines 1-2 of 2 ({name.upper()}; CRLF line ends)\n     1\tone\n     2\ttwö"
    )
    assert shown.metadata["sha256"] == sha256(file.read_bytes())
    assert (await call(tools, "search_text", pattern="^twö$")).metadata["matches"] == 1
    assert (await call(tools, "edit_file", path="win.reg", old_str="one\ntwö", new_str="uno 🎉\ndue")).ok
    patch = "*** Begin Patch\n*** Update File: win.reg\n uno 🎉\n-due\n+tre\n*** End Patch"
    assert (await call(tools, "apply_patch", patch=patch)).ok
    assert file.read_bytes() == mark + "uno 🎉\r\ntre\r\n".encode(name)


async def test_a_huge_file_and_an_endless_line_are_read_in_bounded_memory(tmp_path: Path) -> None:
    tools = context(tmp_path)
    with (tools.guard.root / "huge.log").open("wb") as file:
        file.write(b"first\n" * 10_000)
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast")
    before = _peak_kib()
    huge = await call(tools, "read_file", path="huge.log", offset=2, max_lines=1)
    assert huge.output.splitlines()[:2] == [
        "huge.log: lines 2-2 of 10002 (no line end at the end of the file)",
        "     2\tfirst",
    ]
    assert _peak_kib() - before < 100_000
    (tools.guard.root / "line.js").write_bytes(b"x\n" + "é".encode() * 6_000_000 + b"\nz\n")
    line = await call(tools, "read_file", path="line.js")
    assert "of 3\n" in line.output
    assert "é … [cut: the line has 12000000 bytes]\n     3\tz" in line.output
    assert "�" not in line.output
    assert "UTF-8" not in line.output


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


async def test_writing_reports_digests_and_keeps_every_byte(tmp_path: Path) -> None:
    tools = context(tmp_path)
    made = await call(tools, "write_file", path="sub/a.txt", content="one\r\ntwo\n\ufeffé🎉")
    data = "one\r\ntwo\n\ufeffé🎉".encode()
    assert (tools.guard.root / "sub" / "a.txt").read_bytes() == data
    assert made.output == f"created sub/a.txt: 3 lines, {len(data)} bytes"
    assert (made.metadata["sha256_before"], made.metadata["sha256"]) == (None, sha256(data))
    emptied = await call(tools, "write_file", path="sub/a.txt", content="")
    assert emptied.ok
    assert (tools.guard.root / "sub" / "a.txt").read_bytes() == b""
    assert (emptied.metadata["sha256_before"], emptied.metadata["sha256"]) == (sha256(data), sha256(b""))
    odd = await call(tools, "write_file", path="x.txt", content="\ud83c")
    assert odd.metadata["error_code"] == "INVALID_ARGUMENTS"
    assert (await call(tools, "write_file", path="sub/a.txt/b", content="")).metadata[
        "error_code"
    ] == "WRONG_FILE_KIND"


async def test_applying_a_plan_twice_is_applying_it_once(tmp_path: Path) -> None:
    tools = context(tmp_path)
    target = tools.guard.root / "a.txt"
    target.write_bytes(b"one\n")
    plan = await edit_file.plan(tools, {"path": "a.txt", "old_str": "one", "new_str": "two"})
    assert target.read_bytes() == b"one\n"
    assert (plan.before, plan.after) == ({"a.txt": sha256(b"one\n")}, {"a.txt": sha256(b"two\n")})
    assert not is_applied(tools.guard, plan.after)
    first = apply(tools.guard, plan, tools.undo)
    inode = target.stat().st_ino
    assert apply(tools.guard, plan, tools.undo) == first
    assert target.stat().st_ino == inode
    assert is_applied(tools.guard, plan.after)


async def test_a_plan_does_not_overwrite_what_somebody_else_wrote(tmp_path: Path) -> None:
    tools = context(tmp_path)
    target = tools.guard.root / "a.txt"
    fresh = await write_file.plan(tools, {"path": "a.txt", "content": "mine"})
    target.write_bytes(b"theirs")
    with pytest.raises(FileChanged):
        apply(tools.guard, fresh, tools.undo)
    plan = await write_file.plan(tools, {"path": "a.txt", "content": "mine"})
    target.unlink()
    with pytest.raises(FileChanged):
        apply(tools.guard, plan, tools.undo)
    assert not target.exists()


async def test_editing_reports_where_and_the_digests(tmp_path: Path) -> None:
    tools = context(tmp_path)
    target = tools.guard.root / "a.py"
    target.write_bytes(b"a\r\nb\r\ncaf\xe9\r\n")
    target.chmod(0o755)
    outcome = await call(tools, "edit_file", path="a.py", old_str="a\nb", new_str="x\ny")
    after = b"x\r\ny\r\ncaf\xe9\r\n"
    assert target.read_bytes() == after
    assert target.stat().st_mode & 0o777 == 0o755
    assert outcome.output == "edited a.py: 1 replacement at line 1; the file now has 3 lines"
    assert outcome.metadata["sha256"] == sha256(after)
    assert outcome.metadata["replacements"] == 1
    missing = await call(tools, "edit_file", path="a.py", old_str="nope", new_str="")
    assert (missing.ok, missing.metadata["error_code"]) == (False, "EDIT_NO_MATCH")
    assert (await call(tools, "edit_file", path="none", old_str="a", new_str="b")).metadata[
        "error_code"
    ] == "FILE_NOT_FOUND"


async def test_listing_is_bounded_and_follows_no_loop(tmp_path: Path) -> None:
    tools = context(tmp_path)
    root = tools.guard.root
    assert (await call(tools, "list_files")).output == "the folder is empty"
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "self").symlink_to(".")
    (root / "src").mkdir()
    (root / "src" / "new\nline.py").write_bytes(b"12")
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.pyc").write_bytes(b"")
    outcome = await call(tools, "list_files")
    assert outcome.output.splitlines() == [
        "__pycache__/ (contents not listed)",
        "a\t(symbolic link, not followed)",
        "b\t(symbolic link, not followed)",
        "self\t(symbolic link, not followed)",
        "src/",
        '"src/new\\nline.py"\t2',
    ]
    assert (await call(tools, "list_files", path="src", glob="*.py")).output == '"src/new\\nline.py"\t2'
    assert (await call(tools, "list_files", glob="*.js")).output == "nothing here matches '*.js'"
    assert (await call(tools, "list_files", path="src/new\nline.py")).metadata[
        "error_code"
    ] == "WRONG_FILE_KIND"
    (root / "many").mkdir()
    for number in range(1500):
        (root / "many" / f"{number:04}").write_bytes(b"")
    many = await call(tools, "list_files", path="./many/")
    assert len(many.output.splitlines()) == 1001
    assert many.output.endswith("… 500 more of 1500 entries in all; narrow the list with path or glob")


async def test_the_diff_shows_what_the_run_changed(tmp_path: Path) -> None:
    tools = context(tmp_path)
    assert (await call(tools, "get_git_diff")).metadata["error_code"] == "TOOL_NOT_CONFIGURED"
    await tools.repository.ensure()
    (tools.guard.root / "a.txt").write_text("one\n")
    tools = context(tmp_path, baseline_commit=(await tools.repository.snapshot("baseline")).commit)
    assert (await call(tools, "get_git_diff")).output == "no changes since the run began"
    await call(tools, "edit_file", path="a.txt", old_str="one", new_str="two")
    await call(tools, "write_file", path="-日本 語.md", content="new\n")
    outcome = await call(tools, "get_git_diff")
    assert "-one\n+two\n" in outcome.output
    assert "+++ b/-日本 語.md" in outcome.output
    assert "one" not in (await call(tools, "get_git_diff", path="-日本 語.md")).output
    assert (await call(tools, "get_git_diff", path="../..")).metadata["error_code"] == "PATH_REFUSED"


@pytest.mark.parametrize("mode", [SandboxMode.NONE, SandboxMode.AUTO])
async def test_the_configured_tests_run_in_the_workspace(tmp_path: Path, mode: SandboxMode) -> None:
    tools = context(tmp_path)
    assert (await call(tools, "run_tests")).metadata["error_code"] == "TOOL_NOT_CONFIGURED"
    async with aclosing(tools.processes):
        sandbox = await choose(mode, tools.processes, tmp_path)
        await red_and_green(tools, sandbox)


async def red_and_green(tools: ToolContext, sandbox: Sandbox) -> None:
    argv = (sys.executable, "-m", "unittest", "-v")
    tools = replace(tools, sandbox=sandbox, run_tests_command=argv)
    test = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(1, {})\n"
    (tools.guard.root / "test_it.py").write_text(test.format(2))
    red = await call(tools, "run_tests")
    assert not red.ok
    assert "AssertionError: 1 != 2" in red.output
    assert red.output.endswith("[exit code 1]")
    (tools.guard.root / "test_it.py").write_text(test.format(1))
    green = await call(tools, "run_tests")
    assert green.ok
    assert (green.metadata["exit_code"], green.metadata["sandbox"]) == (0, sandbox.name)
    hanging = replace(tools, run_tests_command=("sleep", "1000"), timeout_s=0.3)
    assert (await call(hanging, "run_tests")).output == "[timed out after 0.3 s and was ended]"
    wrong = replace(tools, run_tests_command=("no-such-program",))
    assert not (await call(wrong, "run_tests")).ok


async def test_a_program_runs_in_the_workspace_and_its_exit_code_is_told(tmp_path: Path) -> None:
    tools = context(tmp_path)
    async with aclosing(tools.processes):
        code = "import pathlib, sys\npathlib.Path('made').write_text('x')\nprint(6 * 7)\nsys.exit(3)"
        ran = await call(tools, "run_program", code=code)
        assert (ran.ok, ran.output, ran.metadata["exit_code"]) == (False, "42\n[exit code 3]", 3)
        assert (tools.guard.root / "made").read_text() == "x"
        broken = await call(tools, "run_program", code="print(")
        assert not broken.ok
        assert "SyntaxError" in broken.output


async def test_a_command_that_any_signal_ended_says_which(tmp_path: Path) -> None:
    tools = context(tmp_path)
    async with aclosing(tools.processes):
        for number, told in (("9", "SIGKILL"), ("40", "40")):
            ended = await call(tools, "run_command", command=f"kill -{number} $$")
            assert (ended.ok, ended.output) == (False, f"[ended by signal {told}]")


async def test_echo_returns_the_text(tmp_path: Path) -> None:
    assert (await call(context(tmp_path), "echo", text="🎉\n")).output == "🎉\n"
    assert (await call(context(tmp_path), "echo", text=1)).metadata["error_code"] == "INVALID_ARGUMENTS"
