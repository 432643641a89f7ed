"""The payloads of events as they come over HTTP: read without trust in their shape, and what a line says of one.

Invariant: pure; a field that is missing or of another type reads as empty.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple, cast

from deploy.cli.terminal import Tone

Fields = Mapping[str, object]


class Line(NamedTuple):
    """What an event says, without its number and its type."""

    text: str
    tone: Tone = "plain"


def fields(value: object) -> Fields:
    """`value` as an object; empty when it is something else."""
    return cast("Fields", value) if isinstance(value, Mapping) else {}


def items(value: object) -> list[Fields]:
    """`value` as a list of objects; empty when it is something else."""
    return [fields(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """`value` as a list of texts; empty when it is something else."""
    return [text(item) for item in cast("list[object]", value)] if isinstance(value, list) else []


def text(value: object) -> str:
    """`value` for people: strings as they are, nothing for null, JSON for the rest."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
