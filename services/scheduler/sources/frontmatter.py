"""A task as a text: YAML front matter with the fields of a task, then the goal. Pure.

    ---
    workspace: shop
    acceptance: [{kind: tests}]
    ---
    Make the failing test pass.

Invariant: what is read here passes the same validation as a posted task. A text without front matter is its goal.
"""

from collections.abc import Iterator
from typing import cast

import yaml

from libs.contracts.errors import ValidationFailed
from libs.contracts.http import TaskCreate, read_body

_FENCE = "---"


def read_task(text: str) -> TaskCreate:
    """The task of a text. Raises `ValidationFailed` that says what is wrong with it."""
    fields, goal = _parts(text.removeprefix("\ufeff"))
    if goal.strip():
        if "goal" in fields:
            raise ValidationFailed(
                "the goal is given twice: as a field and as the text below the front matter"
            )
        fields["goal"] = goal.strip()
    return read_body(TaskCreate, fields)


def _parts(text: str) -> tuple[dict[str, object], str]:
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return {}, text
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == _FENCE:
            return _fields("\n".join(lines[1:number])), "\n".join(lines[number + 1 :])
    raise ValidationFailed("the front matter has no end: put a line '---' below it")


def _fields(text: str) -> dict[str, object]:
    try:
        # An alias is a few bytes that stand for many, again and again.
        tokens = cast("Iterator[object]", yaml.scan(text))  # pyright: ignore[reportUnknownMemberType] the stub gives none
        if any(isinstance(token, yaml.AliasToken) for token in tokens):
            raise ValidationFailed("the front matter has aliases (*name); write out what they stand for")
        loaded: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValidationFailed(
            f"the front matter is no YAML: {' '.join(str(error).split())[:500]}"
        ) from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(
        isinstance(key, str) for key in cast("dict[object, object]", loaded)
    ):
        raise ValidationFailed("the front matter is no list of fields, as in 'workspace: shop'")
    return dict(cast("dict[str, object]", loaded))
