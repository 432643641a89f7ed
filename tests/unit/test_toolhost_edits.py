"""Edits: only the matched bytes change, and every refusal says which one it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.toolhost.errors import EditAmbiguous, EditEmpty, EditIdentical, EditNoMatch, InvalidArguments
from services.toolhost.tools.edits import edit
from services.toolhost.tools.names import shown


@pytest.mark.parametrize(
    "before,old,new,after",
    [
        (b"a\nb\n", "a", "x", b"x\nb\n"),
        (b"a\r\nb\r\nc\r\n", "a\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "a\r\nb", "x\ny", b"x\r\ny\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b", "b\nb2", b"a\r\nb\r\nb2\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "\nb", "\nx", b"a\r\nx\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "\nb\n", "\n", b"a\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", "b\r\n", "x\r\ny\r\n", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\nb\n", "a\r\nb", "x\r\ny", b"x\ny\n"),
        (b"a\nb\n", "a\nb", "a\r\nb", b"a\r\nb\n"),
        (b"a\r\nb\nc\n", "a\nb", "x\ny", b"x\r\ny\nc\n"),
        (b"a\r\nb\nc\n", "b\nc", "x\ny", b"a\r\nx\ny\n"),
        (b"\xef\xbb\xbfhead\nb\n", "head", "top", b"\xef\xbb\xbftop\nb\n"),
        (b"\xef\xbb\xbfhead\nb\n", "\ufeffhead", "\ufefftop", b"\xef\xbb\xbftop\nb\n"),
        (b"\xef\xbb\xbfhead\nb\n", "\ufeffhead", "top", b"\xef\xbb\xbftop\nb\n"),
        (b"one\ncaf\xe9\n\xff\xfe\0\n", "one", "two", b"two\ncaf\xe9\n\xff\xfe\0\n"),
        (b"caf\xe9 one\n", "one", "zwei é", b"caf\xe9 zwei \xc3\xa9\n"),
        (b"caf\xe9 one\n", "caf\udce9", "tea", b"tea one\n"),
        (b"a.*b\n", "a.*b", r"$& $1 \1 \g<0> \\n", rb"$& $1 \1 \g<0> \\n" + b"\n"),
        (b"a\nb", "b", "", b"a\n"),
        (b"a\r\r\nb\r\n", "b", "c", b"a\r\r\nc\r\n"),
    ],
)
def test_an_edit_changes_the_matched_bytes_only(before: bytes, old: str, new: str, after: bytes) -> None:
    assert edit(before, old, new).after == after


def test_each_refusal_is_its_own() -> None:
    data = b"def f():\n    return 1\n\ndef g():\n    return 1\n"
    with pytest.raises(EditEmpty):
        edit(data, "", "x")
    with pytest.raises(EditIdentical, match="same"):
        edit(data, "return 1", "return 1")
    with pytest.raises(EditIdentical, match="line ends"):
        edit(b"a\r\nb\r\n", "a\nb", "a\r\nb")
    with pytest.raises(EditAmbiguous, match=r"2 times \(lines 2, 5\)"):
        edit(data, "return 1", "return 2")
    with pytest.raises(EditAmbiguous, match="2 times"):
        edit(b"aaa\n", "aa", "b")
    with pytest.raises(EditNoMatch, match="lines 4-5 are the same but for blanks"):
        edit(data, "def g():\n\treturn 1", "x")
    with pytest.raises(EditNoMatch, match=r"closest line is 1: def f\(\):"):
        edit(data, "def ff():", "x")
    with pytest.raises(EditNoMatch, match="read the file"):
        edit(data, "nothing like it", "x")
    with pytest.raises(EditNoMatch):
        edit(b"", "a", "b")
    with pytest.raises(InvalidArguments):
        edit(data, "\ud83c", "x")


@pytest.mark.parametrize(
    "before,old,new,after,overlooked",
    [
        (b"a  \nb\t\nc\n", "a\nb\n", "a\nx\n", b"a  \nx\nc\n", "blanks at line ends"),
        (b"a\r\nb\r\n", "a \nb", "a \nx", b"a\r\nx\r\n", "blanks at line ends"),
        (
            b"say(\xe2\x80\x9chi\xe2\x80\x9d)\nb\n",
            'say("hi")\nb',
            'say("hi")\nc',
            b"say(\xe2\x80\x9chi\xe2\x80\x9d)\nc\n",
            "typographic look-alikes",
        ),
        (b"x\xc2\xa0= 1 \xe2\x80\x94 2\n", "x = 1 - 2", "x = 3", b"x = 3\n", "typographic look-alikes"),
        ("nai\u0308ve\n".encode(), "na\u00efve", "plain", b"plain\n", "typographic look-alikes"),
        (b"\xef\xbb\xbfa \nb\n", "\ufeffa\nb", "\ufeffa\nc", b"\xef\xbb\xbfa \nc\n", "blanks at line ends"),
        (b"a \nb\n", "a\nb\n", "", b"", "blanks at line ends"),
    ],
)
def test_what_matches_nothing_is_looked_for_in_whole_lines_and_what_was_overlooked_is_named(
    before: bytes, old: str, new: str, after: bytes, overlooked: str
) -> None:
    edited = edit(before, old, new)
    assert (edited.after, edited.lines, edited.overlooked) == (after, [1], [overlooked])


def test_a_looser_match_has_to_be_the_only_one_and_indentation_always_counts() -> None:
    with pytest.raises(EditAmbiguous, match="copy it exactly"):
        edit(b"a \nb\na\t\nb\n", "a\nb", "x", replace_all=True)
    with pytest.raises(EditNoMatch, match="same but for blanks"):
        edit(b"  a \n", "\ta", "x")
    with pytest.raises(EditNoMatch):
        edit(b"xa \ny\n", "a\ny", "b")
    with pytest.raises(EditIdentical):
        edit(b"a\nb\n", "a \nb", "a\nb")
    with pytest.raises(EditNoMatch, match="line numbers that read_file shows"):
        edit(b"a\nb\n", "     1\ta\n     2\tb", "x")


def test_replacing_all_names_every_line() -> None:
    edited = edit(b"a\r\nb a\r\na", "a", "x\ny", replace_all=True)
    assert edited.after == b"x\r\ny\r\nb x\r\ny\r\nx\r\ny"
    assert edited.lines == [1, 2, 3]
    assert edit(b"aaaa", "aa", "b", replace_all=True).after == b"bb"


@given(
    st.lists(st.binary(max_size=8), min_size=1, max_size=6),
    st.text(st.sampled_from("ab\n\r$\\é"), min_size=1, max_size=6),
    st.text(st.sampled_from("ab\n\r$\\é"), max_size=6),
)
def test_what_surrounds_a_unique_match_is_kept_and_no_line_end_is_doubled(
    around: list[bytes], old: str, new: str
) -> None:
    data = b"|" + b"|".join(around) + b"|" + old.encode() + b"|"
    try:
        after = edit(data, old, new).after
    except (EditAmbiguous, EditIdentical):
        return
    assert after.startswith(b"|" + b"|".join(around) + b"|")
    assert after.endswith(b"|")
    assert after.count(b"\r\r\n") <= data.count(b"\r\r\n") + new.encode().count(
        b"\r\r\n"
    ) + old.encode().count(b"\r")


@pytest.mark.parametrize(
    "name,expected",
    [
        ("src/app.py", "src/app.py"),
        ("naïve—é.txt", "naïve—é.txt"),
        ("-rf", "-rf"),
        ("a\nb", r'"a\nb"'),
        (" a", '" a"'),
        ("```x", '"```x"'),
        ('"q"', r'"\"q\""'),
        ("a\u202eb", r'"a\u202eb"'),
        ("latin-\udce9", r'"latin-\udce9"'),
    ],
)
def test_a_name_is_shown_so_that_it_cannot_be_mistaken(name: str, expected: str) -> None:
    assert shown(name) == expected
