"""Bodies are valid all the way down, and every problem is named by its field."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from libs.contracts import http
from libs.contracts.checks import (
    CommandCheck,
    DiffCheck,
    FileCheck,
    HttpCheck,
    JsonSchemaCheck,
    ReviewCheck,
    TestsCheck,
)
from libs.contracts.errors import ValidationFailed
from libs.contracts.tasks import LimitOverrides


def body(**fields: object) -> bytes:
    return json.dumps({"goal": "Mend it.", **fields}).encode()


def problems(data: bytes) -> dict[str, str]:
    with pytest.raises(ValidationFailed) as caught:
        http.parse_task(data)
    assert caught.value.details
    return {item["field"]: item["message"] for item in caught.value.details}


def test_a_task_becomes_the_spec_that_a_run_carries() -> None:
    task = http.parse_task(
        body(
            workspace="shop",
            auto_start=True,
            priority="high",
            metadata={"team": "a"},
            limits={"max_iterations": 7, "timeout_s": 60},
            acceptance=[
                {"kind": "tests"},
                {"kind": "command", "argv": ["true"], "timeout_s": 5},
                {"kind": "file", "path": "a.py", "contains": "def f"},
                {"kind": "diff", "must_not_touch": ["tests/**"]},
                {"kind": "http", "start": ["./serve"], "url": "http://[::1]:8000/a?b", "expect_status": 204},
                {"kind": "json_schema", "path": "a.json", "schema": {"const": None, "x": {"y": [None]}}},
                {"kind": "review", "rubric": "Is it\nreadable?"},
            ],
        )
    )
    spec = task.spec()
    assert (task.auto_start, spec.workspace, spec.priority, spec.metadata) == (
        True,
        "shop",
        "high",
        {"team": "a"},
    )
    assert spec.limits == LimitOverrides(max_iterations=7, timeout_s=60.0)
    assert spec.acceptance == [
        TestsCheck(),
        CommandCheck(argv=["true"], timeout_s=5.0),
        FileCheck(path="a.py", contains="def f"),
        DiffCheck(must_not_touch=["tests/**"]),
        HttpCheck(start=["./serve"], url="http://[::1]:8000/a?b", expect_status=204),
        JsonSchemaCheck(path="a.json", schema={"const": None, "x": {"y": [None]}}),
        ReviewCheck(rubric="Is it\nreadable?"),
    ]


BAD: list[tuple[dict[str, object], str]] = [
    ({"goal": ""}, "goal"),
    ({"goal": " \n\t"}, "goal"),
    ({"goal": "x" * 100_001}, "goal"),
    ({"goal": 7}, "goal"),
    ({"goal": "a\0b"}, "goal"),
    ({"auto_start": "yes"}, "auto_start"),
    ({"auto_start": 1}, "auto_start"),
    ({"gaol": "x"}, "gaol"),
    ({"priority": "urgent"}, "priority"),
    ({"workspace": "x" * 513}, "workspace"),
    ({"metadata": {"k": 1}}, "metadata.k"),
    ({"metadata": {f"k{n}": "v" for n in range(65)}}, "metadata"),
    ({"limits": {"max_iterations": 0}}, "limits.max_iterations"),
    ({"limits": {"max_iterations": 1.5}}, "limits.max_iterations"),
    ({"limits": {"max_steps": 3}}, "limits.max_steps"),
    ({"acceptance": [{"kind": "review"}]}, "acceptance.0.rubric"),
    ({"acceptance": [{"kind": "review", "rubric": " \n"}]}, "acceptance.0.rubric"),
    ({"acceptance": [{"kind": "review", "rubric": "x" * 8_001}]}, "acceptance.0.rubric"),
    ({"acceptance": [{"kind": "review", "rubric": "x", "model": "mine"}]}, "acceptance.0.model"),
    ({"acceptance": [{"kind": "http", "url": "http://localhost:80/"}]}, "acceptance.0.start"),
    *(
        ({"acceptance": [{"kind": "browser", "url": "http://localhost:80/", "steps": steps}]}, field)
        for steps, field in (
            ([], "acceptance.0.steps"),
            ([{"click": "a"}], "acceptance.0"),
            ([{"click": "a", "expect": "b"}], "acceptance.0.steps.0"),
            ([{"fill": "a"}, {"expect": "b"}], "acceptance.0.steps.0"),
            ([{"click": "a", "text": "x"}, {"expect": "b"}], "acceptance.0.steps.0"),
            ([{"expect": "a", "text": "("}], "acceptance.0.steps.0"),
            ([{"goto": "a"}, {"expect": "b"}], "acceptance.0.steps.0.goto"),
        )
    ),
    *(
        ({"acceptance": [{"kind": "http", "start": ["a"], "url": url}]}, "acceptance.0.url")
        for url in (
            "http://example.org:80/",
            "http://localhost/",
            "http://localhost:99999/",
            "https://localhost:80/",
            "http://me@localhost:80/",
            "http://127.0.0.1.example.org:80/",
            "http://localhost:80/a b",
        )
    ),
    ({"acceptance": [{}]}, "acceptance.0"),
    ({"acceptance": [{"kind": "tests"}, {"kind": "command"}]}, "acceptance.1.argv"),
    ({"acceptance": [{"kind": "command", "argv": []}]}, "acceptance.0.argv"),
    (
        {"acceptance": [{"kind": "command", "argv": ["x"], "expect_output": "("}]},
        "acceptance.0.expect_output",
    ),
    ({"acceptance": [{"kind": "file", "path": "../x"}]}, "acceptance.0.path"),
    ({"acceptance": [{"kind": "file", "path": "/etc/passwd"}]}, "acceptance.0.path"),
    ({"acceptance": [{"kind": "file", "path": "a", "sha256": "ABC"}]}, "acceptance.0.sha256"),
    ({"acceptance": [{"kind": "file", "path": "a", "exists": False, "contains": "b"}]}, "acceptance.0"),
    ({"acceptance": [{"kind": "diff"}]}, "acceptance.0"),
    ({"acceptance": [{"kind": "json_schema", "path": "a"}]}, "acceptance.0.schema"),
    ({"acceptance": [{"kind": "json_schema", "path": "../a", "schema": {}}]}, "acceptance.0.path"),
    *(
        ({"acceptance": [{"kind": "json_schema", "path": "a", "schema": schema}]}, "acceptance.0.schema")
        for schema in (
            True,
            {"a": "\0"},
            {"a": 1e300},
            {"a": 2**60},
            {"a": ["x" * 1000] * 70},
            json.loads('{"a":' * 70 + "1" + "}" * 70),
        )
    ),
]


@pytest.mark.parametrize("fields, named", BAD)
def test_a_bad_field_is_named(fields: dict[str, object], named: str) -> None:
    assert named in problems(body(**fields))


def test_an_unsupported_kind_of_check_says_which_are_supported() -> None:
    found = problems(body(acceptance=[{"kind": "vote", "rubric": "x"}]))
    assert found == {
        "acceptance.0": "this kind is not supported; "
        "supported: command, tests, file, diff, http, browser, json_schema, review"
    }


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b'{"goal": "\xff"}', b'{"goal": "\\ud83d"}', b"[" * 5000, b'{"goal": 1e999}'],
)
def test_what_is_no_task_at_all_is_refused(data: bytes) -> None:
    assert problems(data)


def test_an_error_never_repeats_what_was_sent() -> None:
    with pytest.raises(ValidationFailed) as caught:
        http.parse_task(body(auto_start="hunter2-secret"))
    assert "hunter2" not in f"{caught.value.message}{caught.value.details}"


def test_a_task_that_would_not_fit_a_record_is_refused() -> None:
    # Each of these characters takes six bytes in JSON, so the goal alone is within its own bound.
    assert "bytes" in problems(body(goal="\x01" * 100_000))["body"]


def test_the_hash_of_a_body_ignores_form_but_not_meaning() -> None:
    hashes: Callable[[bytes], str] = lambda data: http.body_hash(http.parse_task(data))  # noqa: E731 one line reads best here
    plain = hashes(b'{"goal":"g","limits":{"timeout_s":60}}')
    assert hashes(b'{ "limits": {"timeout_s": 60.0}, "goal": "g", "auto_start": false }') == plain
    assert hashes(b'{"goal":"g","limits":{"timeout_s":61}}') != plain
    assert hashes(b'{"goal":"g","limits":{"timeout_s":60},"auto_start":true}') != plain


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "a\0b"])
def test_a_bad_idempotency_key_is_refused(key: str) -> None:
    with pytest.raises(ValidationFailed):
        http.idempotency_key(key)


def test_a_command_without_a_body_takes_an_empty_object_and_nothing_else() -> None:
    assert http.parse_body(http.Nothing, b"") == http.parse_body(http.Nothing, b"{}")
    with pytest.raises(ValidationFailed):
        http.parse_body(http.Nothing, b'{"force": true}')
