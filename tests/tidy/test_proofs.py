"""`docs/proofs.md` says which test holds what: the tests are there, and each row of its lists stands there once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.e2e.test_field_cases import CASES, STEERED
from tests.tidy.source import ROOT, expect_none, modules

PAGE = "docs/proofs.md"
# `unit/cron::a_time_that…` stands for `tests/unit/test_cron.py::test_a_time_that…`, cut where nobody can mistake it.
NAMED = re.compile(r"`(?P<folder>\w+)/(?P<file>\w+)(?:::(?P<test>\w+)(?P<cut>…?)|\[(?P<cases>[^]]+)\])`")
CODE = re.compile(r"`[^`]*`")
ROW = re.compile(r"^\| ((?:[A-Z]{2}-D?)?\d+) \|(.*)\|$")
LIST = re.compile(r"^Rows: (.+)\.$")
RANGE = re.compile(r"^(\D*)(\d+)(?: to \1(\d+))?$")
# What a row says that no test holds, or holds in full.
OPEN = ("not built yet (", "no test")


def test_every_test_that_the_page_names_is_there() -> None:
    expect_none(
        missing(page(), named_tests()), "A proof that is gone proves nothing; name what holds it now:"
    )


def test_every_row_of_the_lists_is_there_once_and_says_what_holds_it() -> None:
    expect_none(
        misplaced(page()), "Each row of a list stands once, in its order, with a test or a plain word:"
    )


def test_what_is_wrong_with_a_page_is_found() -> None:
    sound = "## A\n\nRows: AR-09 to AR-11, AR-20.\n" + "".join(
        f"| AR-{number} | x | `unit/a::it_ho…`; `e2e/field_cases[1a]` |\n"
        for number in ("09", "10", "11", "20")
    )
    tests = {"unit/a": {"it_holds", "it_is"}, "e2e/field_cases": set[str]()}
    assert list(missing(sound, tests)) == []
    assert list(misplaced(sound)) == []
    for wrong in (
        "`unit/a::it_had`",
        "`unit/a::it_…`",
        "`unit/b::it_holds`",
        "`e2e/field_cases[0]`",
        "`unit/a:it_is`",
    ):
        assert len(list(missing(sound.replace("`unit/a::it_ho…`", wrong, 1), tests))) == 1, wrong
    for broken in (
        sound.replace("AR-20.", "AR-21."),
        sound.replace("| AR-10 |", "| AR-11 |"),
        sound + "| AR-20 | again | no test |\n",
        sound.replace("`unit/a::it_ho…`; `e2e/field_cases[1a]`", "surely", 1),
    ):
        assert list(misplaced(broken)), broken


def page() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def named_tests() -> dict[str, set[str]]:
    """The names of all tests by their file, both as the page writes them."""
    return {
        module.path.removeprefix("tests/").removesuffix(".py").replace("/test_", "/"): {
            function.name.removeprefix("test_")
            for function in module.functions()
            if function.name.startswith("test_")
        }
        for module in modules("tests")
        if "/test_" in module.path
    }


def missing(text: str, tests: dict[str, set[str]]) -> Iterator[str]:
    """Every name of the page's tables that is not that of one test."""
    numbers = {case.number for case in (*CASES, *STEERED)}
    for place, line in enumerate(text.split("\n"), 1):
        if not (row := ROW.match(line)):
            continue
        for code in CODE.findall(row[2].rpartition("|")[2]):
            if not (found := NAMED.fullmatch(code)):
                yield f"{PAGE}:{place}: {code} names no test"
            elif cases := found["cases"]:
                strange = [one for one in cases.split(", ") if one not in numbers]
                if strange or found["file"] != "field_cases":
                    yield f"{PAGE}:{place}: {code}: no case {', '.join(strange)}"
            elif not one_of(found, tests.get(f"{found['folder']}/{found['file']}", set())):
                yield f"{PAGE}:{place}: {code} is not the name of one test"


def one_of(found: re.Match[str], names: set[str]) -> bool:
    """Whether this is the name, or the beginning of the name, of exactly one of the tests."""
    if not found["cut"]:
        return found["test"] in names
    return sum(name.startswith(found["test"]) for name in names) == 1


def misplaced(text: str) -> Iterator[str]:
    """Every list whose rows are not those of the tables below it, and every row without proof or plain word."""
    for section in text.split("\n## "):
        lines = section.split("\n")
        listed = [one for line in lines if (found := LIST.match(line)) for one in expanded(found[1])]
        rows = [found for line in lines if (found := ROW.match(line))]
        if listed != [found[1] for found in rows]:
            differing = sorted(set(listed) ^ {found[1] for found in rows}) or "another order, or one twice"
            yield f"{PAGE}: {lines[0]}: the list and the tables differ: {differing}"
        for found in rows:
            held = found[2].rpartition("|")[2]
            if not NAMED.search(held) and not any(word in held for word in OPEN):
                yield f"{PAGE}: {found[1]} names no test and does not say so"


def expanded(listed: str) -> Iterator[str]:
    """`AR-09 to AR-11, AR-20`: AR-09, AR-10, AR-11, AR-20."""
    for one in listed.split(", "):
        found = RANGE.match(one)
        assert found, one
        prefix, first, last = found.groups()
        for number in range(int(first), int(last or first) + 1):
            yield f"{prefix}{number:0{len(first)}d}"
