"""What a person approves shows all that it holds, and is exactly what it was made of."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.visible import visible_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_it_decodes_to_the_value_and_shows_nothing_that_hides(value: object) -> None:
    shown = visible_json(value)
    assert json.loads(shown) == value
    assert all(char == " " or unicodedata.category(char)[0] not in "CZ" for char in shown)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("a\u200bb\u2060c\ufeffd", "a\\u200bb\\u2060c\\ufeffd"),
        ("a\tb\nc\x1b[2J\x7f", "a\\tb\\nc\\u001b[2J\\u007f"),
        ("a\u00a0b\u3000c", "a\\u00a0b\\u3000c"),
        ("a\u3164b\u115fc\u2800d\u034fe", "a\\u3164b\\u115fc\\u2800d\\u034fe"),
        ("x\ufe0fy\U000e0041", "x\\ufe0fy\\udb40\\udc41"),
        ("rm -rf 日本/Größe", "rm -rf 日本/Größe"),
    ],
)
def test_what_hides_is_escaped_and_the_rest_stays_readable(text: str, shown: str) -> None:
    assert visible_json({"command": text}) == f'{{"command": "{shown}"}}'


def test_the_order_of_arguments_is_always_the_same() -> None:
    assert visible_json({"b": 1, "a": {"d": 1, "c": 2}}) == '{"a": {"c": 2, "d": 1}, "b": 1}'
