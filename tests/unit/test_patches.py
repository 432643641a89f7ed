"""Reading patches: two forms, the same files; and what could have been cut off is never a shorter patch."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.errors import PatchUnreadable
from libs.contracts.patches import parse, paths_of
from libs.contracts.patches.files import FilePatch, Hunk, Line

V4A = """*** Begin Patch
*** Update File: src/a.py
*** Move to: src/b.py
@@ class A:
@@ def f(self):
 context
-old
+new

@@
-last
*** End of File
*** Add File: new file.txt
+one
+
*** Delete File: gone.txt
*** End Patch"""


def lines(*signed: str) -> tuple[Line, ...]:
    return tuple(Line(sign=text[0], text=text[1:]) for text in signed)  # pyright: ignore[reportArgumentType] - checked at run time.


EXPECTED = [
    FilePatch(
        kind="update",
        path="src/a.py",
        move="src/b.py",
        hunks=(
            Hunk(lines=lines(" context", "-old", "+new"), anchors=("class A:", "def f(self):")),
            Hunk(lines=lines("-last"), at_end=True),
        ),
    ),
    FilePatch(kind="add", path="new file.txt", hunks=(Hunk(lines=lines("+one", "+")),)),
    FilePatch(kind="delete", path="gone.txt"),
]


@pytest.mark.parametrize(
    "text",
    [
        V4A,
        V4A + "   \n\n",
        V4A.replace("\n", "\r\n") + "\r\n",
        "\ufeff" + V4A + "\n",
        f"Here it is:\n```patch\n{V4A}\n```\n",
        f"apply_patch <<'EOF'\n{V4A}\nEOF\n",
        V4A.removeprefix("*** Begin Patch\n"),
    ],
    ids=["plain", "blanks behind", "CRLF", "byte order mark", "fence", "here-document", "no begin"],
)
def test_a_v4a_patch_is_read_through_what_may_stand_around_it(text: str) -> None:
    assert parse(text) == EXPECTED


GIT = """diff --git a/src/a.py b/src/a.py
index 1234567..89abcde 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+zwei
 three
@@ -9 +9,0 @@
-nine
diff --git a/new.txt b/new.txt
new file mode 100755
--- /dev/null
+++ b/new.txt
@@ -0,0 +1 @@
+hi
\\ No newline at end of file
diff --git a/old.txt b/old.txt
deleted file mode 100644
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-bye
diff --git "a/caf\\303\\251 x.txt" "b/caf\\303\\251 x.txt"
old mode 100644
new mode 100755
diff --git a/from b/to
similarity index 100%
rename from from
rename to to
diff --git a/empty b/empty
new file mode 100644
index 0000000..e69de29
"""


def test_a_diff_of_git_is_read_with_its_modes_renames_and_quoted_names() -> None:
    first = FilePatch(
        kind="update",
        path="src/a.py",
        hunks=(
            Hunk(lines=lines(" one", "-two", "+zwei", " three"), old_start=1),
            Hunk(lines=lines("-nine"), old_start=9),
        ),
    )
    new = Hunk(lines=lines("+hi"), old_start=0, new_ends=False)
    assert parse(GIT) == [
        first,
        FilePatch(kind="add", path="new.txt", hunks=(new,), executable=True),
        FilePatch(
            kind="delete", path="old.txt", hunks=(Hunk(lines=lines("-bye"), old_start=1),), executable=None
        ),
        FilePatch(kind="update", path="café x.txt", executable=True),
        FilePatch(kind="update", path="from", move="to"),
        FilePatch(kind="add", path="empty", executable=False),
    ]
    assert paths_of(GIT) == ("café x.txt", "empty", "from", "new.txt", "old.txt", "src/a.py", "to")


def test_a_plain_diff_without_prefixes_and_with_times_is_read() -> None:
    text = "--- ./src/a.py\t2026-01-01 00:00:00\n+++ ./src/a.py\t2026-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse(text)[0].path == "src/a.py"
    assert parse("--- a/x\n+++ y\n@@ -1 +1 @@\n-a\n+b\n")[0] == FilePatch(
        kind="update", path="a/x", move="y", hunks=(Hunk(lines=lines("-a", "+b"), old_start=1),)
    )


def test_lines_that_look_like_names_of_files_belong_to_the_hunk_that_counts_them() -> None:
    text = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,2 @@\n--- a comment\n+++ a number\n x\n--- a/r\n+++ b/r\n@@ -1 +1 @@\n-a\n+b\n"
    first, second = parse(text)
    assert first.hunks[0].lines == lines("--- a comment", "+++ a number", " x")
    assert second.path == "r"
    # Marks of the other form are content, too, where a sign stands before them.
    quoted = "--- a/d.md\n+++ b/d.md\n@@ -1,2 +1,2 @@\n *** Begin Patch\n-*** End Patch\n+*** End Patch.\n"
    assert parse(quoted)[0].path == "d.md"


def test_miscounted_heads_and_lost_blanks_are_forgiven() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1,9 +1,9 @@\n one\n\n-two\n+zwei\n@@ -20 +20,7 @@\n-a\n+b\n+c\n+d\n+e\n+f\n+g\n+h\n"
    hunks = parse(text)[0].hunks
    assert hunks[0].lines == lines(" one", " ", "-two", "+zwei")
    assert len(hunks[1].lines) == 8


def test_a_mail_with_a_patch_ends_at_its_signature() -> None:
    mail = "From 1234 Mon Sep 17\nSubject: [PATCH] x\n\n a | 2 +-\n\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n-- \n2.39.5\n\n"
    assert [one.hunks[0].lines for one in parse(mail + mail.replace("a/a", "a/b").replace("b/a", "b/b"))] == [
        lines("-x", "+y")
    ] * 2


@pytest.mark.parametrize(
    "text,why",
    [
        ("", "changes no file"),
        ("just words", "changes no file"),
        ("*** Begin Patch\n*** End Patch", "changes no file"),
        ("*** Begin Patch\n*** Update File: a\n-x\n+y\n", "may be cut off"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\n-b\n", "may be cut off"),
        ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", "begins with '[+]'"),
        ("*** Begin Patch\n*** Delete File: a\n-x\n*** End Patch", "is followed by"),
        ("*** Begin Patch\n*** Update File: a\nx\n*** End Patch", "begins with a blank"),
        ("*** Begin Patch\n*** Update File:  \n-x\n*** End Patch", "names no file"),
        ("*** Begin Patch\nhello\n*** End Patch", "belongs to no file"),
        (V4A + "\n" + V4A, "one patch at a time"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both sides"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n",
            "regular",
        ),
        ("diff --git a/x b/x\ndeleted file mode 100644\n--- /dev/null\n+++ b/x\n", "no such file"),
        ("diff --git a/b b/b\nindex 1..2\nGIT binary patch\nliteral 1\n", "binary"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n a\nb\n-c\n+d\n", "line 5 .*belongs to no hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\nand then\n", "belongs to no hunk"),
        ("--- a/x\n+++ b/x\n@@ def f():\n-a\n+b\n", "begins with '@@ -LINE"),
        ("diff --cc x\n--- a/x\n+++ b/x\n@@@ -1,2 -1,2 +1,2 @@@\n  a\n--b\n++c\n", "begins with '@@ -LINE"),
        ("x" * (3 << 20), "split it"),
        ("*** Begin Patch\n" + "*** Delete File: a\n" * 201 + "*** End Patch", "more than 200 files"),
    ],
)
def test_what_is_no_whole_patch_is_refused_and_told_why(text: str, why: str) -> None:
    with pytest.raises(PatchUnreadable, match=why):
        parse(text)


_DIFF_LINES = (
    *("diff --git a/x b/x", "--- a/x", "+++ b/x", "--- /dev/null", "+++ /dev/null", "--- ", "+++ "),
    *("new file mode 100644", "deleted file mode 100644", "rename from x", "rename to y", "rename from "),
    *("@@ -1 +1 @@", f"@@ -{'9' * 5000} +1 @@", "+a", "-a", " a", "", "\\ No newline at end of file"),
    *("*** Begin Patch", "*** End Patch", "*** Update File: x", "*** Delete File: x", "*** Move to: y"),
)


@given(st.lists(st.sampled_from(_DIFF_LINES), max_size=9))
def test_no_order_of_the_lines_of_patches_breaks_the_reader(mixed: list[str]) -> None:
    with suppress(PatchUnreadable):
        assert all(one.paths for one in parse("\n".join(mixed)))


@given(st.text(st.sampled_from("*@+- \\\nab/\r\ufeff"), max_size=60), st.integers(0, len(V4A)))
def test_no_text_breaks_the_reader_and_no_beginning_of_a_patch_is_one(noise: str, cut: int) -> None:
    for text in (noise, V4A[:cut] + noise, GIT[:cut] + noise):
        try:
            assert all(one.path for one in parse(text))
        except PatchUnreadable:
            continue
    if cut < len(V4A) - 1:
        with pytest.raises(PatchUnreadable):
            parse(V4A[:cut])
