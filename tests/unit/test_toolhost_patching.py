"""Hunks in the bytes of one file: what fits, where, and what stays as it was."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.patches import parse
from services.toolhost.errors import PatchAmbiguous, PatchNoMatch
from services.toolhost.tools.patching import content_of, patched


def update(data: bytes, hunks: str) -> bytes:
    [part] = parse(f"*** Begin Patch\n*** Update File: a\n{hunks}\n*** End Patch\n")
    return patched(data, part.hunks).after


def diff(data: bytes, hunks: str) -> bytes:
    [part] = parse(f"--- a/a\n+++ b/a\n{hunks}")
    return patched(data, part.hunks).after


@pytest.mark.parametrize(
    "before,hunks,after",
    [
        (b"a\nb\nc\n", " a\n-b\n+x\n c", b"a\nx\nc\n"),
        (b"a\r\nb\r\nc\r\n", " a\n-b\n+x\n+y\n c", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\nc\r\n", " a\n-b\n+x\n c", b"a\r\nx\nc\r\n"),
        (b"a\r\nb\nc\r\n", "-a\n-b\n+x\n+y\n c", b"x\r\ny\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\n", "-a\n+x", b"\xef\xbb\xbfx\nb\n"),
        (b"\xef\xbb\xbfa\nb\n", "-\ufeffa\n+\ufeffx", b"\xef\xbb\xbfx\nb\n"),
        (b"caf\xe9\nb\n\0\xff\n", "-b\n+x", b"caf\xe9\nx\n\0\xff\n"),
        (b"a\nb", "-b\n+x", b"a\nx"),
        (b"a\nb", " b\n+c", b"a\nb\nc"),
        (b"a\nb", " a\n-b", b"a"),
        (b"a\n", "+b", b"a\nb\n"),
        (b"", "+b", b"b\n"),
        (b"a  \nb\n", " a\n-b\n+x", b"a  \nx\n"),
        (b"say \xe2\x80\x9chi\xe2\x80\x9d \xe2\x80\x93 now\nb\n", ' say "hi" - now\n-b\n+x', b"say \xe2\x80\x9chi\xe2\x80\x9d \xe2\x80\x93 now\nx\n"),
        (b"x\ndef f():\n    x\n", "@@ def f():\n-    x\n+    y", b"x\ndef f():\n    y\n"),
        (b"a\nx\nb\nx\n", "@@ b\n-x\n+y", b"a\nx\nb\ny\n"),
        (b"a\nx\nb\nx\n", "@@ b\n+y", b"a\nx\nb\ny\nx\n"),
        (b"class A:\n  def f(self, x):\n    1\n", "@@ class A:\n@@ def f(\n-    1\n+    2", b"class A:\n  def f(self, x):\n    2\n"),
        (b"x\ny\nx\n", "-x\n+z\n*** End of File", b"x\ny\nz\n"),
        (b"x\nx\n", "@@ x\n-x\n+y\n x", b"y\nx\n"),
        (b"a\nb\n", "-a\n-b", b""),
        (b"a\nb\n", r"-a" + "\n" + r"+\1 $& \g<0>", b"\\1 $& \\g<0>\nb\n"),
    ],
)  # fmt: skip
def test_a_hunk_changes_its_lines_and_nothing_else(before: bytes, hunks: str, after: bytes) -> None:
    assert update(before, hunks) == after


@pytest.mark.parametrize(
    "before,hunks,after",
    [
        (b"x\na\nx\na\nx\na\n", "@@ -4 +4 @@\n-a\n+b\n", b"x\na\nx\nb\nx\na\n"),
        (b"n\nx\na\nx\na\n", "@@ -1,2 +1,2 @@\n x\n-a\n+b\n", b"n\nx\nb\nx\na\n"),
        (b"a\nb\n", "@@ -1,0 +2 @@\n+x\n", b"a\nx\nb\n"),
        (b"a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", b"a\nb\n"),
        (b"a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", b"a\nb"),
        (b"a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n", b"a\r\nc\r\n"),
    ],
)
def test_a_unified_hunk_goes_to_the_nearest_place_and_says_how_the_file_ends(
    before: bytes, hunks: str, after: bytes
) -> None:
    assert diff(before, hunks) == after


def test_a_hunk_that_fits_nowhere_or_anywhere_is_refused_with_the_reason() -> None:
    with pytest.raises(PatchNoMatch, match="hunk 1 was not found; the closest line is 2: return 1"):
        update(b"def f():\n    return 1\n", "-    return 11\n+    return 2")
    with pytest.raises(PatchNoMatch, match="same but for blanks"):
        update(b"def f():\n    return 1\n", "-\treturn 1\n+\treturn 2")
    with pytest.raises(PatchNoMatch, match="applied already"):
        update(b"a\nnew\nc\n", " a\n-old\n+new\n c")
    with pytest.raises(PatchNoMatch, match=r"no line 'def g.*closest line is 1: def f"):
        update(b"def f():\n    x\n", "@@ def g():\n-    x\n+    y")
    with pytest.raises(PatchAmbiguous, match=r"fits 3 places \(lines 1, 2, 3\)"):
        update(b"x\nx\nx\n", "-x\n+y")
    with pytest.raises(PatchNoMatch, match="hunk 2"):
        update(b"a\nb\n", "-b\n+y\n@@\n-a\n+x")
    with pytest.raises(PatchNoMatch):
        update(b"x\ny\n", "-x\n+z\n*** End of File")
    with pytest.raises(PatchNoMatch):
        update(b"", "-x\n+y")


def test_what_was_overlooked_is_named() -> None:
    [part] = parse("*** Begin Patch\n*** Update File: a\n-x\n+y\n*** End Patch")
    assert patched(b"x\n", part.hunks).overlooked == []
    assert patched(b"x \t\n", part.hunks).overlooked == ["blanks at line ends"]
    assert patched(b"\xe2\x80\x8bx\n", part.hunks).overlooked == ["typographic look-alikes"]


_TEXT = st.lists(st.sampled_from(["a", "b", "", "  c", "é"]), max_size=12)


@given(_TEXT, _TEXT, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(0, 3))
def test_any_unified_diff_turns_the_old_file_into_the_new_one(
    old: list[str], new: list[str], end: str, open_end: bool, context: int
) -> None:
    before, after = ("".join(line + end for line in lines) for lines in (old, new))
    if open_end:
        before, after = before.removesuffix(end), after.removesuffix(end)
    made = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/f", "b/f", n=context
    )
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in made
    )
    if not text:
        return
    [part] = parse(text)
    assert patched(before.encode(), part.hunks).after == after.encode()


def test_an_added_file_is_what_its_lines_say() -> None:
    [part] = parse("*** Begin Patch\n*** Add File: a\n+one\n+\n+ two\n*** End Patch")
    assert content_of(part.hunks) == b"one\n\n two\n"
    [open_end] = parse("--- /dev/null\n+++ b/a\n@@ -0,0 +1,2 @@\n+a\r\n+b\n\\ No newline at end of file\n")
    assert content_of(open_end.hunks) == b"a\r\nb"
    assert content_of(()) == b""
