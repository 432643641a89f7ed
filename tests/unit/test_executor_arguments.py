"""Tool arguments: what is tolerated, what is coerced, and what must never be made up."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.executor.ingress.arguments import CUT_OFF, DEPTH_MAX, read_arguments
from services.executor.ingress.scan import ObjectScan

PROPERTIES: dict[str, object] = {
    "path": {"type": "string"},
    "timeout": {"type": "integer"},
    "ratio": {"type": "number"},
    "all": {"type": "boolean"},
    "view_range": {"type": "array", "items": {"type": "integer"}},
    "names": {"type": "array", "items": {"type": "string"}},
    "tasks": {"type": "object"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "free": {},
}
SCHEMA: dict[str, object] = {"type": "object", "properties": PROPERTIES, "required": ["path"]}


@pytest.mark.parametrize(
    "raw, value",
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ('{"a": 1}', {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('""', {}),
        ('{"a": "x\ty\nz"}', {"a": "x\ty\nz"}),
        ('{\\n  "a": "x\\ny"\\n}', {"a": "x\ny"}),
        ('{"a": "C:\\\\n", \\n "b": 1}', {"a": "C:\\n", "b": 1}),
        ('{"text": "\\ud83c\\udf78"}', {"text": "🍸"}),
        ('{"text": "\\ud83d"}', {"text": "\N{REPLACEMENT CHARACTER}"}),
        ('{"\\ud83d": 1}', {"\N{REPLACEMENT CHARACTER}": 1}),
    ],
)
def test_what_a_model_means_is_read_without_changing_it(raw: str, value: object) -> None:
    read = read_arguments(raw, None)
    assert (read.value, read.problem) == (value, None)


@pytest.mark.parametrize(
    "raw",
    [
        '{"path":"a.py","content":"import os\nos.rem',
        '{"path":"a.py","content":"import os\\',
        '{"path":"a.py"',
        '{"path":',
        "{",
        '{"a":[1,2',
    ],
)
def test_arguments_that_end_in_the_middle_are_never_closed(raw: str) -> None:
    read = read_arguments(raw, None)
    assert read.value is None
    assert read.cut_off
    assert read.problem == CUT_OFF


@pytest.mark.parametrize(
    "raw",
    [
        '{"commands": find /w -type f | head -20}',
        '{"path":"a"}{"path":"b"}',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        "[1]",
        "3",
        "true",
        '"text"',
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1),
        '{"a": ' + "9" * 5_000 + "}",
    ],
    ids=range(12),
)
def test_what_is_no_json_object_is_a_problem_the_model_can_read(raw: str) -> None:
    read = read_arguments(raw, None)
    if read.value is None:
        assert read.problem
        assert not read.cut_off
    else:
        msgspec.json.encode(read.value)


@pytest.mark.parametrize(
    "given, wanted",
    [
        ({"view_range": "[1, 5]"}, {"view_range": [1, 5]}),
        ({"timeout": "30"}, {"timeout": 30}),
        ({"timeout": 30.0}, {"timeout": 30}),
        ({"ratio": "0.5"}, {"ratio": 0.5}),
        ({"all": "True"}, {"all": True}),
        ({"names": "one"}, {"names": ["one"]}),
        ({"names": '["one","two"]'}, {"names": ["one", "two"]}),
        ({"names": ["a", 1]}, {"names": ["a", "1"]}),
        ({"timeout": None}, {}),
        ({"note": None}, {"note": None}),
        ({"path": None}, {"path": None}),
        ({"path": 5}, {"path": "5"}),
        ({"path": "30"}, {"path": "30"}),
        ({"tasks": '{"batch1": "Build TWO apps\nFollow"}'}, {"tasks": {"batch1": "Build TWO apps\nFollow"}}),
        ({"items": [{"n": "1"}]}, {"items": [{"n": 1}]}),
        ({"free": "[1]"}, {"free": "[1]"}),
        ({"unknown": "5"}, {"unknown": "5"}),
        ({"timeout": "soon"}, {"timeout": "soon"}),
        ({"tasks": "{broken"}, {"tasks": "{broken"}),
        ({"view_range": "1"}, {"view_range": "1"}),
    ],
    ids=str,
)
def test_types_follow_the_schema_only_where_the_value_leaves_no_doubt(
    given: dict[str, object], wanted: dict[str, object]
) -> None:
    raw = msgspec.json.encode(given).decode()
    assert read_arguments(raw, SCHEMA).value == wanted


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=4), _VALUES, max_size=4))
def test_valid_json_is_taken_as_it_is(value: dict[str, object]) -> None:
    read = read_arguments(msgspec.json.encode(value).decode(), None)
    assert read.value == value


@given(st.dictionaries(st.text(min_size=1, max_size=4), _VALUES, min_size=1, max_size=4), st.data())
def test_no_prefix_of_valid_json_is_taken_for_the_whole(
    value: dict[str, object], data: st.DataObject
) -> None:
    raw = msgspec.json.encode(value).decode()
    read = read_arguments(raw[: data.draw(st.integers(1, len(raw) - 1))], None)
    assert read.value is None
    assert read.problem


@given(st.dictionaries(st.sampled_from(list(PROPERTIES)), _VALUES))
def test_coercion_never_fails_and_gives_what_can_be_stored(value: dict[str, object]) -> None:
    read = read_arguments(msgspec.json.encode(value).decode(), SCHEMA)
    assert read.value is not None
    msgspec.json.encode(read.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_and_never_raises(raw: str) -> None:
    read = read_arguments(raw, SCHEMA)
    assert (read.value is None) == (read.problem is not None)


@given(
    st.dictionaries(st.text(max_size=4), _VALUES, max_size=4),
    st.lists(st.integers(0, 99), max_size=6),
    st.text(max_size=3),
)
def test_the_end_of_an_object_is_found_in_any_pieces_and_only_there(
    value: dict[str, object], cuts: list[int], behind: str
) -> None:
    def closed(text: str) -> bool:
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        scan = ObjectScan()
        for start, end in pairwise(places):
            scan.take(text[start:end])
        return scan.closed

    raw = json.dumps(value)
    assert closed(f" {raw}\n")
    assert not closed(raw[:-1])
    assert closed(raw + behind) == (not behind.strip())
    assert not closed(f"[{raw}]")
