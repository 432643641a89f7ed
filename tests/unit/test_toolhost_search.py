"""Searching: exact totals, and "no match", "not a pattern" and "too costly" are three answers."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.toolhost.tools import ToolContext
from services.toolhost.tools.ripgrep import PLACES, WORTH_BYTES, Sieve, means_the_same
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


# An example starts half a dozen processes; `make soak` asks for more of them.
SIEVED_EXAMPLES = int(os.environ.get("EXAMPLES", "15"))
RIPGREP = shutil.which("rg")
needs_ripgrep = pytest.mark.skipif(
    RIPGREP is None, reason="ripgrep is not installed: apt-get install ripgrep"
)


@pytest.mark.parametrize(
    "pattern",
    [
        r"def \w+\(",
        r"^import (os|sys)$",
        r"a.*b",
        r"[A-Za-z_][0-9]{2,3}?",
        r"x{2}",
        r"\bfoo\b",
        "a-b",
        r"[^ab]+\.",
        "@#~&",
    ],
)
def test_what_both_dialects_have_in_common_is_known(pattern: str) -> None:
    assert means_the_same(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(a)\\1",
            "(?=a)",
            "(?i)a",
            "(?P<n>a)",
            "a**",
            "a*+",
            "a{,3}",
            "a{x",
            "^*",
            "\\Z",
            "\\x41",
            "caf\u00e9",
            "a\nb",
        ),
        *(
            "[a-z&&b]",
            "[[:alpha:]]",
            "[a[b]]",
            "[a-]",
            "[]a]",
            "[z-a]",
            "(",
            "a)",
            "\\B",
            "|*",
            "\\/",
            "a{3}{2}",
            "a|^b",
            "$a",
            "(a$)",
        ),
    ],
)
def test_what_they_could_mean_differently_is_left_to_our_own_engine(pattern: str) -> None:
    assert not means_the_same(pattern)


_ATOMS = st.sampled_from(
    ["a", "b", "B", ".", r"\w", r"\d", r"\s", r"\W", "[ab]", "[^a ]", r"\.", " ", "-", "a|b", "(a|bb)"]
)
_EDGES = st.sampled_from(["", "^", "$", r"\b"])
_REPEATS = st.sampled_from(["", "*", "+", "?", "{2}", "+?", "{1,}"])
_PATTERNS = st.tuples(_EDGES, st.lists(st.tuples(_ATOMS, _REPEATS), min_size=1, max_size=4), _EDGES).map(
    lambda parts: parts[0] + "".join(f"(?:{atom}){repeat}" for atom, repeat in parts[1]) + parts[2]
)
_LINES = st.lists(
    st.sampled_from([b"a", b"b", b"B", b" ", b".", b"-", b"1", b"_", b"\n", b"\n", b"\r\n", b"\r", b"\xc3\xa9", b"\xff", b"\0", b"\x0b", b"\x1c"]),
    max_size=30,
).map(b"".join)  # fmt: skip


@needs_ripgrep
@settings(max_examples=SIEVED_EXAMPLES)
@given(st.lists(_LINES, min_size=1, max_size=5), _PATTERNS, st.booleans(), st.integers(1, 4))
def test_ripgrep_and_our_own_engine_give_the_same_answer(
    contents: list[bytes], pattern: str, ignore_case: bool, results: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tools = context(Path(folder))
        for number, content in enumerate(contents):
            (tools.guard.root / f"{number}.txt").write_bytes(content)
        # Makes the search worth a sieve, and is passed over as binary.
        (tools.guard.root / "filler").write_bytes(bytes(WORTH_BYTES))
        with_it, without = (
            asyncio.run(
                call(
                    context(Path(folder), ripgrep=program),
                    "search_text",
                    pattern=pattern,
                    ignore_case=ignore_case,
                    max_results=results,
                )
            )
            for program in (RIPGREP, None)
        )
        assert with_it == without


@needs_ripgrep
async def test_a_sieve_takes_out_what_has_no_match_and_counts_what_is_not_shown(tmp_path: Path) -> None:
    tools = context(tmp_path, ripgrep=RIPGREP)
    for number in range(600):
        (tools.guard.root / f"{number:03}.py").write_bytes(b"def f():\n    return 1\n" * 400)
    (tools.guard.root / "hit.py").write_bytes(b"def needle():\r\n" * 3)
    found = await call(tools, "search_text", pattern=r"def needle\(")
    assert found.output.splitlines()[0] == "hit.py:1: def needle():"
    assert (found.metadata["matches"], found.metadata["searched_files"]) == (3, 601)
    many = await call(tools, "search_text", pattern=r"return \d", max_results=2)
    assert (many.metadata["matches"], many.metadata["files"]) == (600 * 400, 600)
    # Both places are free again, whatever ended the searches.
    invalid = await call(tools, "search_text", pattern="[z-a]")
    assert not invalid.ok
    assert [PLACES.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    PLACES.release(2)
    assert many.output.splitlines()[:2] == ["000.py:2:     return 1", "000.py:4:     return 1"]


@needs_ripgrep
def test_a_ripgrep_that_fails_or_is_gone_leaves_everything_to_our_own_engine(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n")
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert RIPGREP is not None
        assert Sieve(RIPGREP, "x", ignore_case=False).counts([fd], PATIENCE_S) == [1]
        assert Sieve(RIPGREP, "(", ignore_case=False).counts([fd], PATIENCE_S) == [None]
        assert Sieve("/nonexistent/rg", "x", ignore_case=False).counts([fd], PATIENCE_S) == [None]
        assert Sieve(RIPGREP, "x", ignore_case=False).counts([fd], 0.0) == [None]
    finally:
        os.close(fd)
