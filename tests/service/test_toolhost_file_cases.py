"""Reported faults of other runtimes' file tools (cases 106 to 125), each against a real tool host over the bus."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus
from libs.contracts.tools import ToolResult
from tests.fakes.small_disk import SmallDisk
from tests.service.hosted import Host, hosted
from tests.service.hosting_owner import Owner, host_of, owned_run, toolhost_process

_numbers = itertools.count()


class Files:
    """A run with a workspace of its own on the shared host."""

    def __init__(self, host: Host, owner: Owner) -> None:
        self._host, self._owner = host, owner
        self.root = host.root / owner.workspace
        self._calls = 0

    async def read(self, name: str, /, **arguments: object) -> ToolResult:
        return await self._owner.read(self._host.boot, name, **arguments)

    async def do(self, name: str, /, **arguments: object) -> ToolResult:
        return await self.knowing({}, name, **arguments)

    async def knowing(self, seen: dict[str, str], name: str, /, **arguments: object) -> ToolResult:
        """An effect of a run that has seen these digests."""
        self._calls += 1
        call = self._owner.call(name, arguments, f"call_1_{self._calls}", seen=seen)
        return await self._owner.effect(self._host.boot, call)

    async def edit(self, path: str, old: str, new: str, **more: object) -> ToolResult:
        return await self.do("edit_file", path=path, old_str=old, new_str=new, **more)

    async def patch(self, body: str) -> ToolResult:
        return await self.do("apply_patch", patch=f"*** Begin Patch\n{body}\n*** End Patch")

    def put(self, path: str, data: bytes) -> Path:
        (self.root / path).write_bytes(data)
        return self.root / path


@pytest.fixture(scope="module")
async def host(nats_node: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    async with hosted(nats_node, tmp_path_factory.mktemp("workspaces")) as shared:
        yield shared


@pytest.fixture
async def files(host: Host) -> Files:
    owner = await owned_run(host.bus, f"w{next(_numbers)}")
    await owner.attach(host.boot)
    return Files(host, owner)


def code(result: ToolResult) -> object:
    assert not result.ok
    assert result.refused is None
    return result.metadata["error_code"]


async def test_an_edit_with_lf_matches_a_crlf_file_which_stays_crlf(files: Files) -> None:
    file = files.put("a.txt", b"a\r\nb\r\nc\r\n")
    assert (await files.edit("a.txt", "a\nb", "x\ny")).ok
    assert file.read_bytes() == b"x\r\ny\r\nc\r\n"
    assert (await files.patch("*** Update File: a.txt\n y\n-c\n+z\n+end")).ok
    assert file.read_bytes() == b"x\r\ny\r\nz\r\nend\r\n"


async def test_no_cr_is_doubled_and_what_is_written_is_written_byte_for_byte(files: Files) -> None:
    assert (await files.do("write_file", path="w.txt", content="a\r\nb\n\r\r\nc")).ok
    assert (files.root / "w.txt").read_bytes() == b"a\r\nb\n\r\r\nc"
    assert (await files.edit("w.txt", "c", "d\r\ne")).ok
    assert (files.root / "w.txt").read_bytes() == b"a\r\nb\n\r\r\nd\r\ne"
    file = files.put("c.txt", b"a\r\nb\r\n")
    assert (await files.edit("c.txt", "a\r\n", "x\r\ny\r\n")).ok
    assert file.read_bytes() == b"x\r\ny\r\nb\r\n"


async def test_a_byte_order_mark_does_not_hide_the_first_line_and_stays(files: Files) -> None:
    file = files.put("bom.md", b"\xef\xbb\xbf---\nname: x\n")
    assert (await files.edit("bom.md", "---\nname: x", "---\nname: y")).ok
    assert (await files.edit("bom.md", "\ufeff---", "\ufeff----")).ok
    assert (await files.patch("*** Update File: bom.md\n-----\n+---\n name: y")).ok
    assert file.read_bytes() == b"\xef\xbb\xbf---\nname: y\n"
    shown = await files.read("read_file", path="bom.md")
    assert "byte order mark" in shown.output
    assert "     1\t---" in shown.output
    assert (await files.read("search_text", pattern="^---$")).metadata["matches"] == 1


async def test_bytes_that_are_not_utf8_stay_when_another_line_is_edited(files: Files) -> None:
    data = b"one\n" + b"x\n" * 48 + b"caf\xe9\n"
    file = files.put("latin.txt", data)
    assert (await files.edit("latin.txt", "one", "zwei é")).ok
    assert (await files.patch("*** Update File: latin.txt\n-zwei é\n+drei")).ok
    assert file.read_bytes() == data.replace(b"one", b"drei")
    assert "not all UTF-8" in (await files.read("read_file", path="latin.txt", offset=50)).output


async def test_every_way_not_to_match_is_its_own_error_with_lines_to_look_at(files: Files) -> None:
    data = b"def f():\r\n    return 1\r\n\r\ndef g():\r\n    return 1\r\n"
    file = files.put("m.py", data)
    for old, new, expected, said in (
        ("return 2", "x", "EDIT_NO_MATCH", "closest line is 2: return 1"),
        ("return 1", "x", "EDIT_AMBIGUOUS", "2 times (lines 2, 5)"),
        ("", "x", "EDIT_EMPTY", "write_file"),
        ("def f", "def f", "EDIT_IDENTICAL", "same"),
        ("def f():\n    return 1", "def f():\r\n    return 1", "EDIT_IDENTICAL", "line ends"),
        ("     2\t    return 1", "x", "EDIT_NO_MATCH", "line numbers"),
    ):
        result = await files.edit("m.py", old, new)
        assert code(result) == expected
        assert said in result.output
    assert file.read_bytes() == data


async def test_a_replacement_is_literal(files: Files) -> None:
    text = r"$& $1 \1 \g<0> %s {x}"
    file = files.put("r.txt", b"old a.*b\n")
    assert (await files.edit("r.txt", "old a.*b", text)).ok
    assert file.read_bytes() == text.encode() + b"\n"
    assert (await files.patch(f"*** Update File: r.txt\n-{text}\n+{text}{text}")).ok
    assert file.read_bytes() == (text * 2).encode() + b"\n"


async def test_a_write_keeps_mode_and_attributes_and_leaves_no_other_file(files: Files) -> None:
    file = files.put("run.sh", b"old\n")
    file.chmod(0o751)
    os.setxattr(file, "user.kept", b"yes")
    assert (await files.edit("run.sh", "old", "new")).ok
    assert (await files.do("write_file", path="run.sh", content="newer\n")).ok
    assert (await files.patch("*** Update File: run.sh\n*** Move to: bin/run.sh\n-newer\n+newest")).ok
    moved = files.root / "bin" / "run.sh"
    assert moved.read_bytes() == b"newest\n"
    assert moved.stat().st_mode & 0o777 == 0o751
    assert [path.name for path in files.root.rglob("*")] == ["bin", "run.sh"]


async def test_a_full_disk_leaves_every_file_as_it_was_and_no_other(
    nats_node: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    within = ("unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=8m small "$0" && exec "$@"', str(root))
    if (await (await asyncio.create_subprocess_exec(*within, "true")).wait()) != 0:
        pytest.skip("no disk of its own can be mounted here")
    async with toolhost_process(nats_node, bus, root, within=within) as process:
        boot = (await host_of(bus, shared=False)).boot
        disk = SmallDisk(Path(f"/proc/{process.pid}/root{root}"))
        owner = await owned_run(bus)
        await owner.attach(boot)
        files = Files(Host(bus, boot, disk.path), owner)
        kept = [files.put(name, b"old\n" * 1000) for name in ("a.txt", "b.txt")]
        disk.fill()
        new = "new\n" * 20_000
        for result in (
            await files.do("write_file", path="a.txt", content=new),
            await files.do("write_file", path="c.txt", content=new),
            await files.edit("a.txt", "old\n" * 1000, new),
            await files.patch("*** Delete File: b.txt\n*** Add File: c.txt\n+" + "x" * 80_000),
        ):
            assert not result.ok
            assert "No space" in result.output, result.output
        assert {file.read_bytes() for file in kept} == {b"old\n" * 1000}
        assert sorted(os.listdir(files.root)) == ["a.txt", "b.txt"]
        disk.free()
        assert (await files.do("write_file", path="a.txt", content=new)).ok


async def test_a_patch_with_one_part_that_leads_out_writes_nothing(files: Files) -> None:
    result = await files.patch("*** Add File: safe.txt\n+x\n*** Add File: ../escape.txt\n+x")
    assert code(result) == "PATH_REFUSED"
    assert "nothing was changed" in result.output
    assert os.listdir(files.root) == []
    assert not (files.root.parent / "escape.txt").exists()


async def test_the_edge_forms_of_patches_have_defined_results(files: Files) -> None:
    file = files.put("e.txt", b"a\nb")
    assert code(await files.patch("*** Update File: e.txt")) == "PATCH_EMPTY"
    assert code(await files.patch("*** Delete File: none.txt")) == "FILE_NOT_FOUND"
    crlf = "*** Begin Patch\r\n*** Update File: e.txt\r\n a\r\n-b\r\n+c\r\n*** End Patch  \r\n \r\n"
    assert (await files.do("apply_patch", patch=crlf)).ok
    assert file.read_bytes() == b"a\nc"
    prefixed = "--- a/e.txt\n+++ b/e.txt\n@@ -1,2 +1,2 @@\n a\n-c\n\\ No newline at end of file\n+d\n"
    assert (await files.do("apply_patch", patch=prefixed)).ok
    assert file.read_bytes() == b"a\nd\n"
    assert (await files.patch("*** Update File: e.txt\n*** Move to: f/e.txt")).ok
    assert (files.root / "f" / "e.txt").read_bytes() == b"a\nd\n"
    gone = "--- a/f/e.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-d\n"
    assert (await files.do("apply_patch", patch=gone)).ok
    assert not (files.root / "f" / "e.txt").exists()
    assert (
        code(await files.do("apply_patch", patch="*** Begin Patch\n*** Add File: x\n+1")) == "PATCH_INVALID"
    )


@pytest.mark.parametrize(
    "name",
    [
        "naïve—é.txt",
        "nai\u0308ve—e\u0301.txt",
        "日本 語.md",
        "-rf",
        "a\nb.txt",
        "```x",
        "é" * 127 + "x",
        "*?[x].py",
    ],
)
async def test_an_odd_name_is_written_listed_edited_searched_and_compared(files: Files, name: str) -> None:
    assert (await files.do("write_file", path=name, content="one\n")).ok
    assert (await files.edit(name, "one", "two")).ok
    listed = (await files.read("list_files")).output
    assert name in listed or '"a\\nb.txt"' in listed or '"```x"' in listed
    assert (await files.read("read_file", path=name)).output.endswith("1\ttwo")
    assert (await files.read("search_text", pattern="two", path=name)).metadata["matches"] == 1
    diff = await files.read("get_git_diff", path=name)
    assert "+two" in diff.output
    assert (files.root / name).read_bytes() == b"two\n"


async def test_a_name_is_found_in_either_unicode_form_and_never_doubled(files: Files) -> None:
    files.put("nai\u0308ve.txt", b"one\n")
    assert (await files.read("read_file", path="na\u00efve.txt")).ok
    assert (await files.edit("na\u00efve.txt", "one", "two")).ok
    assert (await files.do("write_file", path="na\u00efve.txt", content="three\n")).ok
    assert (await files.patch("*** Update File: na\u00efve.txt\n-three\n+four")).ok
    assert os.listdir(files.root) == ["nai\u0308ve.txt"]
    assert (files.root / "nai\u0308ve.txt").read_bytes() == b"four\n"


async def test_loops_of_links_end_every_search_and_list(files: Files) -> None:
    for name, target in (("a", "b"), ("b", "a"), ("self", "."), ("up", "..")):
        (files.root / name).symlink_to(target)
    files.put("x.txt", b"needle\n")
    assert (await files.read("search_text", pattern="needle")).metadata["matches"] == 1
    assert (await files.read("list_files")).metadata["entries"] == 5
    assert code(await files.read("read_file", path="a")) == "PATH_REFUSED"
    assert code(await files.read("list_files", path="self")) == "PATH_REFUSED"


async def test_every_kind_of_file_has_a_typed_answer_and_a_pipe_never_blocks(files: Files) -> None:
    os.mkfifo(files.root / "pipe")
    (files.root / "folder").mkdir()
    files.put("empty", b"")
    files.put("binary", b"\x00\x01")
    files.put("paper.pdf", b"%PDF-1.7")
    files.put("short", b"a\nb\n")
    files.put("line.js", b"x" * 12_000_000)
    with (files.root / "huge").open("wb") as huge:
        huge.write(b"first\n")
        huge.truncate(1 << 30)
    assert (await files.read("read_file", path="empty")).output == "empty: empty, 0 lines"
    for path, expected in (
        ("pipe", "WRONG_FILE_KIND"),
        ("folder", "WRONG_FILE_KIND"),
        ("binary", "BINARY_FILE"),
        ("paper.pdf", "BINARY_FILE"),
        ("huge", "BINARY_FILE"),
        ("none", "FILE_NOT_FOUND"),
    ):
        assert code(await files.read("read_file", path=path)) == expected
    assert code(await files.read("read_file", path="short", offset=3)) == "OFFSET_BEYOND_END"
    line = await files.read("read_file", path="line.js")
    assert "lines 1-1 of 1" in line.output
    assert "[cut: the line has 12000000 bytes]" in line.output
    assert len(line.output) < 3_000
    for name, arguments in (
        ("write_file", {"content": "x"}),
        ("edit_file", {"old_str": "a", "new_str": "b"}),
    ):
        assert code(await files.do(name, path="pipe", **arguments)) == "WRONG_FILE_KIND"


async def test_reading_in_pages_meets_every_line_once_and_always_states_the_total(files: Files) -> None:
    files.put("long.txt", b"".join(b"line %d\n" % number for number in range(1, 26)))
    seen: list[str] = []
    offset = 1
    while len(seen) < 25:
        page = await files.read("read_file", path="long.txt", offset=offset, max_lines=7)
        assert page.metadata["total_lines"] == 25
        assert page.output.splitlines()[0].endswith("of 25")
        seen += [line.split("\t")[1] for line in page.output.splitlines() if "\t" in line]
        offset = len(seen) + 1
    assert seen == [f"line {number}" for number in range(1, 26)]


async def test_a_file_may_be_emptied(files: Files) -> None:
    file = files.put("full.txt", b"x\n")
    assert (await files.do("write_file", path="full.txt", content="")).ok
    assert file.read_bytes() == b""
    assert (await files.do("write_file", path="new.txt", content="")).ok
    assert (files.root / "new.txt").read_bytes() == b""


async def test_searching_tells_a_bad_pattern_from_no_match_and_counts_everything(files: Files) -> None:
    files.put("many.txt", b"needle\n" * 300_000 + b"--flag\n")
    assert code(await files.read("search_text", pattern="(")) == "INVALID_PATTERN"
    nothing = await files.read("search_text", pattern="nowhere")
    assert nothing.ok
    assert nothing.output.startswith("no match for 'nowhere'")
    assert (await files.read("search_text", pattern="--flag")).metadata["matches"] == 1
    many = await files.read("search_text", pattern="need[l]e", max_results=2)
    assert many.metadata["matches"] == 300_000
    assert many.output.endswith(
        "… the first 2 of 300000 matching lines in 1 of 1 files; narrow the pattern, path or glob"
    )


async def test_a_glob_means_the_same_in_every_tool_that_takes_one(files: Files) -> None:
    for path in ("a.py", "src/b.py", "src/deep/c.py", "src/d.ts", "node_modules/e.py", ".hidden/f.py"):
        (files.root / path).parent.mkdir(parents=True, exist_ok=True)
        files.put(path, b"needle\n")
    for glob in ("*.py", "src/*.py", "src/**/*.py", "**/deep/*", "{a,src/d}.{py,ts}", "[!a].py", "src/"):
        listed = (await files.read("list_files", glob=glob)).output
        found = (await files.read("search_text", pattern="needle", glob=glob)).output
        assert {line.split("\t")[0] for line in listed.splitlines() if "\t" in line} == {
            line.split(":")[0] for line in found.splitlines() if line.endswith(": needle")
        }, glob


async def test_what_the_run_saw_is_not_overwritten_once_somebody_else_changed_it(files: Files) -> None:
    file = files.put("shared.txt", b"theirs\n")
    # A file that this run never looked at is its to replace; its owner passes on what it saw (`ToolCall.seen`).
    assert (await files.do("write_file", path="shared.txt", content="mine\n")).ok
    before = hashlib.sha256(b"mine\n").hexdigest()
    file.write_bytes(b"theirs again\n")
    stale = await files.knowing({"shared.txt": before}, "write_file", path="shared.txt", content="mine too\n")
    assert code(stale) == "FILE_CHANGED"
    assert file.read_bytes() == b"theirs again\n"
