"""What request bodies are made of: the strict base, and texts, names, patterns and numbers with their bounds.

Invariant: exact types, no unknown fields, nothing unbounded, and no error repeats what was sent.
"""

import re
from typing import Annotated, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from libs.contracts.checks import CHECK_TIMEOUT_S_MAX
from libs.contracts.ids import is_token

# A goal is a brief, not a corpus: files belong into the workspace. The answer and a message are of its size.
TEXT_CHARS_MAX = 100_000
# Names: long enough for a path of a repository or a ticket's title, short enough for a line of a list.
NAME_CHARS_MAX = 512
ARGUMENTS_MAX = 256
ARGUMENT_CHARS_MAX = 32_768
# Patterns are matched against output that a model wrote; a short one is readable and quick to compile.
PATTERN_CHARS_MAX = 1000

# A schema, as people write it; it stands in the run's first record.
JSON_CHARS_MAX = 64 * 1024
JSON_DEPTH_MAX = 64

BLANK = "is blank; say what is meant"


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains the character U+0000, which cannot be stored everywhere; leave it out")
    return text


def not_blank(text: str) -> str:
    """`text`, when it says something. Raises `ValueError`."""
    if not text.strip():
        raise ValueError(BLANK)
    return text


def compiles(pattern: str) -> str:
    """`pattern`, when it is a regular expression. Raises `ValueError`."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression of Python: {error}") from error
    return pattern


def inside(path: str) -> str:
    """`path`, when it is one inside of a workspace. Raises `ValueError`."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path inside the workspace: relative and without '..'")
    return path


def _json(given: dict[str, object]) -> dict[str, object]:
    """`given`, when it is a document that every reader of JSON reads alike. Raises `ValueError`."""
    level: list[object] = [given]
    size = 0
    for _ in range(JSON_DEPTH_MAX):
        below: list[object] = []
        for value in level:
            size += _size(value)
            if isinstance(value, dict):
                below += cast("dict[str, object]", value).values()
            elif isinstance(value, list):
                below += cast("list[object]", value)
        if size > JSON_CHARS_MAX:
            raise ValueError(
                f"takes more than {JSON_CHARS_MAX} characters; put a larger one into a command's check"
            )
        if not below:
            return given
        level = below
    raise ValueError(f"is nested more than {JSON_DEPTH_MAX} levels deep")


def _size(value: object) -> int:
    """About how many characters the value itself takes. Raises `ValueError` for what is no JSON."""
    match value:
        case bool() | None:
            return 4
        case str():
            return len(_storable(value)) + 2
        case int() | float():
            if not -(2**53) <= value <= 2**53:
                raise ValueError("has a number that not every reader of JSON holds exactly, at most 2**53 do")
            return len(str(value))
        case dict():
            return sum(_size(key) + 2 for key in cast("dict[str, object]", value)) + 2
        case list():
            return 2 + len(cast("list[object]", value))
        case _:
            raise ValueError(f"has a value that JSON has not: {type(value).__name__}")


def _tenant(name: str) -> str:
    if not is_token(name):
        raise ValueError("must match [a-z0-9_-]{1,64}")
    return name


def _names_a_program(argv: list[str]) -> list[str]:
    if not argv[0].strip():
        raise ValueError("must name a program")
    return argv


Tenant = Annotated[str, AfterValidator(_tenant)]
Text = Annotated[str, AfterValidator(_storable)]
Brief = Annotated[Text, Field(min_length=1, max_length=TEXT_CHARS_MAX), AfterValidator(not_blank)]
Name = Annotated[Text, Field(min_length=1, max_length=NAME_CHARS_MAX), AfterValidator(not_blank)]
Pattern = Annotated[Text, Field(min_length=1, max_length=PATTERN_CHARS_MAX), AfterValidator(compiles)]
Glob = Annotated[Text, Field(min_length=1, max_length=NAME_CHARS_MAX), AfterValidator(inside)]
Argument = Annotated[Text, Field(max_length=ARGUMENT_CHARS_MAX)]
Argv = Annotated[
    list[Argument], Field(min_length=1, max_length=ARGUMENTS_MAX), AfterValidator(_names_a_program)
]
JsonObject = Annotated[dict[str, object], AfterValidator(_json)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
CheckSeconds = Annotated[float, Field(gt=0, le=CHECK_TIMEOUT_S_MAX, allow_inf_nan=False)]
# Counts and sizes: positive, and within what JSON readers of other languages hold exactly.
Count = Annotated[int, Field(ge=1, le=2**53)]


class Request(BaseModel):
    """A body: exact types, no unknown fields, no echo of what was sent in an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)
