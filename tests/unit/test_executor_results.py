"""Results that are shown in part: how they are clipped, and how the rest is read page by page."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.executor.egress.clipping import clipped
from services.executor.egress.results import LINE_CHARS_MAX, page
from services.executor.ingress.tokens import tokens_in


def test_every_character_of_a_result_can_be_read_page_by_page() -> None:
    text = "a\n\n" + "x" * 4_500 + "\n" + "🎉" * 2_100 + "\nend"
    read, offset, pages = list[str](), 1, 0
    while True:
        ok, shown = page(text, {"path": "result:call_1_0", "offset": offset}, 2_500)
        assert ok
        lines = shown.split("\n")[1:]
        read += [line.split("\t", 1)[1] for line in lines if not line.startswith("… ")]
        pages += 1
        more = re.fullmatch(r"… \d+ more lines; continue with offset=(\d+)", lines[-1])
        if more is None:
            break
        offset = int(more[1])
    assert "".join(read) == text.replace("\n", "")
    assert max(map(len, read)) <= LINE_CHARS_MAX
    assert pages > 2


@pytest.mark.parametrize(
    "arguments, wrong",
    [
        ({"path": "result:call_1_0", "offset": 7}, "has 1 lines; offset 7"),
        ({"path": "result:call_1_0", "offset": "x"}, "Expected `int"),
    ],
)
def test_what_is_wrong_with_a_page_is_said(arguments: dict[str, object], wrong: str) -> None:
    ok, shown = page("out", arguments, 500)
    assert not ok
    assert wrong in shown


@given(st.text(max_size=400), st.integers(1, 500), st.integers(1, 200))
def test_a_clipped_text_keeps_to_its_bounds_or_says_hardly_anything(text: str, chars: int, most: int) -> None:
    found = clipped(text, chars_max=chars, tokens_max=most)
    assert found == text or "characters left out" in found
    if found == text:
        assert len(text) <= chars
        assert tokens_in(text.encode()) <= most
