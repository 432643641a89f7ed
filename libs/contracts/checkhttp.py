"""The checks that a request names, with their bounds; `checks.py` has them as runs carry them.

Invariant: as for all bodies, what passed here is valid all the way down.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from libs.contracts.bodies import (
    ARGUMENTS_MAX,
    PATTERN_CHARS_MAX,
    Argument,
    Argv,
    CheckSeconds,
    Glob,
    JsonObject,
    Name,
    Pattern,
    Request,
    Text,
    compiles,
    inside,
    not_blank,
)
from libs.contracts.checks import CHECK_TIMEOUT_S, HTTP_TIMEOUT_S, RUBRIC_CHARS_MAX, local_address

CHECKS_MAX = 64
GLOBS_MAX = 256
# More is a test suite, which belongs into the workspace.
STEPS_MAX = 64
SUPPORTED_CHECKS = ("command", "tests", "file", "diff", "http", "browser", "json_schema", "review")

_HEX_DIGEST = r"^[0-9a-f]{64}$"


def _is_local(url: str) -> str:
    local_address(url)
    return url


class CommandCheckIn(Request):
    """An argv that must exit as expected, run in a clean checkout of the workspace."""

    kind: Literal["command"]
    argv: Annotated[list[Argument], Field(min_length=1, max_length=ARGUMENTS_MAX)]
    timeout_s: CheckSeconds = CHECK_TIMEOUT_S
    expect_exit: Annotated[int, Field(ge=0, le=255)] = 0
    expect_output: Pattern | None = None

    @model_validator(mode="after")
    def _names_a_program(self) -> "CommandCheckIn":
        if not self.argv[0].strip():
            raise ValueError("argv.0: must name a program")
        return self


class TestsCheckIn(Request):
    """The configured test command."""

    kind: Literal["tests"]
    timeout_s: CheckSeconds = CHECK_TIMEOUT_S


class FileCheckIn(Request):
    """A file that must (not) exist, contain a pattern, or have a digest."""

    kind: Literal["file"]
    path: Annotated[Text, Field(min_length=1, max_length=4096), AfterValidator(inside)]
    exists: bool = True
    contains: Pattern | None = None
    sha256: Annotated[str, Field(pattern=_HEX_DIGEST)] | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> "FileCheckIn":
        if not self.exists and (self.contains is not None or self.sha256 is not None):
            raise ValueError("a file that must not exist has neither 'contains' nor 'sha256'")
        return self


class DiffCheckIn(Request):
    """Globs that the change since the run began must touch, and globs that it must not."""

    kind: Literal["diff"]
    must_touch: list[Glob] = Field(default=[], max_length=GLOBS_MAX)
    must_not_touch: list[Glob] = Field(default=[], max_length=GLOBS_MAX)

    @model_validator(mode="after")
    def _says_something(self) -> "DiffCheckIn":
        if not self.must_touch and not self.must_not_touch:
            raise ValueError("name at least one glob in 'must_touch' or 'must_not_touch'")
        return self


class HttpCheckIn(Request):
    """The workspace's own server, started in a clean checkout, must answer a GET as expected."""

    kind: Literal["http"]
    start: Argv
    url: Annotated[Name, AfterValidator(_is_local)]
    expect_status: Annotated[int, Field(ge=100, le=599)] = 200
    expect_body: Pattern | None = None
    timeout_s: CheckSeconds = HTTP_TIMEOUT_S


class BrowserStepIn(Request):
    """One of `goto` (a path), `click`, `fill` (with `text`) and `expect` (perhaps with `text`, a pattern)."""

    goto: Annotated[Name, Field(pattern="^/")] | None = None
    click: Name | None = None
    fill: Name | None = None
    expect: Name | None = None
    text: Annotated[Text, Field(max_length=PATTERN_CHARS_MAX)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "BrowserStepIn":
        if sum(each is not None for each in (self.goto, self.click, self.fill, self.expect)) != 1:
            raise ValueError("name one of 'goto', 'click', 'fill' and 'expect'")
        if (self.text is None) if self.fill is not None else (self.text is not None and self.expect is None):
            raise ValueError("'text' is what 'fill' types, or a pattern of 'expect'")
        if self.expect is not None and self.text is not None:
            compiles(self.text)
        return self


class BrowserCheckIn(Request):
    """A page of the workspace's own server in a headless Chromium; every step must go as it says."""

    kind: Literal["browser"]
    url: Annotated[Name, AfterValidator(_is_local)]
    steps: Annotated[list[BrowserStepIn], Field(min_length=1, max_length=STEPS_MAX)]
    start: Argv | None = None
    timeout_s: CheckSeconds = HTTP_TIMEOUT_S

    @model_validator(mode="after")
    def _expects_something(self) -> "BrowserCheckIn":
        if all(step.expect is None for step in self.steps):
            raise ValueError("name at least one step with 'expect': without one nothing is proved")
        return self


class JsonSchemaCheckIn(Request):
    """A file that must hold JSON that fits the schema: of the draft that it names, else of 2020-12. Its references lead
    into the schema itself."""

    # `schema` is a method of the base.
    model_config = ConfigDict(serialize_by_alias=True)

    kind: Literal["json_schema"]
    path: Annotated[Text, Field(min_length=1, max_length=4096), AfterValidator(inside)]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class ReviewCheckIn(Request):
    """A second model judges the change by the rubric. It can fail a run and never passes one alone."""

    kind: Literal["review"]
    rubric: Annotated[Text, Field(min_length=1, max_length=RUBRIC_CHARS_MAX), AfterValidator(not_blank)]


CheckIn = Annotated[
    CommandCheckIn
    | TestsCheckIn
    | FileCheckIn
    | DiffCheckIn
    | HttpCheckIn
    | BrowserCheckIn
    | JsonSchemaCheckIn
    | ReviewCheckIn,
    Field(discriminator="kind"),
]
