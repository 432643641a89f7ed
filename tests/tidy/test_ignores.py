"""A rule is silenced one line at a time, by its name and with a reason a reader can check."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.tidy.source import Module, expect_none, modules, parse

IGNORE = re.compile(
    r"#\s*(?P<tool>type:\s*ignore|pyright:\s*ignore|noqa)\b(?P<rules>[:\[][^#]*)?", re.IGNORECASE
)
RULES = re.compile(r"\[\w+(,\s*\w+)*\]|:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*")
# Such comments silence or loosen a whole file instead of one line.
WHOLE_FILE = re.compile(r"#\s*(ruff:|flake8:|fmt:\s*off|pyright:(?!\s*ignore)|mypy:)", re.IGNORECASE)


def test_every_ignore_names_its_rule_and_its_reason() -> None:
    expect_none(
        (found for module in modules() for found in bad_ignores(module)),
        "An ignore is `# pyright: ignore[rule]` or `# noqa: RULE`, and says why behind it or in the comment above it.",
    )


def test_blanket_and_unexplained_ignores_are_found() -> None:
    noqa = "# no" + "qa"
    module = parse(
        f"a = 1  {noqa}\n"
        f"b = 1  {noqa}: E501\n"
        f"c = 1  {noqa}: E501 the address is one word\n"
        "# The server counts from zero.\n"
        f"d = 1  {noqa}: E501\n"
        "e = 1  # ty" + "pe: ignore[x] because\n"
        "f = 1  # py" + "right: ignore\n"
        "# py" + "right: basic\n"
    )
    assert [found.split(":")[1] for found in bad_ignores(module)] == ["1", "2", "6", "7", "8"]


def bad_ignores(module: Module) -> Iterator[str]:
    comments = dict(module.comments())
    alone = {line for line, text in enumerate(module.text.splitlines(), 1) if text.lstrip().startswith("#")}
    for line, comment in comments.items():
        if WHOLE_FILE.search(comment):
            yield module.at(line, f"{comment} loosens a whole file")
        if not (ignore := IGNORE.search(comment)):
            continue
        rules = RULES.match(ignore["rules"] or "")
        if ignore["tool"].startswith("type"):
            yield module.at(line, "use `pyright: ignore[rule]`")
        elif not rules:
            yield module.at(line, f"{comment} names no rule")
        else:
            behind = comment[ignore.start("rules") + rules.end() :]
            if line - 1 not in alone and not re.search(r"\w+\W+\w+", behind):
                yield module.at(line, f"{comment} gives no reason")
