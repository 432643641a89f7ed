"""Checks: what a task wants proved, and what each proof leaves behind (contract, section 7).

Invariant: PASSED needs at least one applicable check and all of them green; nothing applicable is UNVERIFIED.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

# How long a check may run when it does not say, and the longest it may ask for: a test suite, not a build farm.
CHECK_TIMEOUT_S = 600.0
CHECK_TIMEOUT_S_MAX = 3600.0
# How long a server may take to come up and answer: one that needs longer says so.
HTTP_TIMEOUT_S = 60.0
# How long a judge may take in all, its retries included: a model thinks for a minute or two, and the run waits.
REVIEW_TIMEOUT_S = 300.0
# Reviews of one round: each is paid for. More rubrics are one rubric with more sentences.
REVIEWS_MAX = 8
# A rubric is a page of what to look at; what is longer belongs into the workspace.
RUBRIC_CHARS_MAX = 8_000


class CommandCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """An argv that must exit as expected, in a clean checkout of the workspace."""

    argv: list[str]
    timeout_s: float = CHECK_TIMEOUT_S
    expect_exit: int = 0
    expect_output: str | None = None


class TestsCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="tests"):
    """The configured test command of the task, project or deployment."""

    timeout_s: float = CHECK_TIMEOUT_S


class FileCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """A file that must (not) exist, whose text must match `contains` (regex), whose sha256 must be the given one."""

    path: str
    exists: bool = True
    contains: str | None = None
    sha256: str | None = None


class DiffCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="diff"):
    """Globs that the change since the run began must touch, and globs that it must not."""

    must_touch: list[str] = []
    must_not_touch: list[str] = []


class HttpCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="http"):
    """The workspace's own server, started with `start` in a clean checkout, must answer a GET of `url` (an address of this
    machine) with the status, and with a body that matches `expect_body` (regex), before `timeout_s` is over."""

    start: list[str]
    url: str
    expect_status: int = 200
    expect_body: str | None = None
    timeout_s: float = HTTP_TIMEOUT_S


class BrowserStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a person does or sees: `goto` a path, `click` an element, `fill` one with `text`, or `expect` one that
    is visible, with a `text` (regex) if that is named. Elements are named by selectors of playwright."""

    goto: str | None = None
    click: str | None = None
    fill: str | None = None
    expect: str | None = None
    text: str | None = None


class BrowserCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="browser"):
    """The page at `url` (an address of this machine), in a headless Chromium: every step must go as it says, before
    `timeout_s` is over. With `start` the workspace's own server is started first, as for `http`."""

    url: str
    steps: list[BrowserStep]
    start: list[str] | None = None
    timeout_s: float = HTTP_TIMEOUT_S


class JsonSchemaCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="json_schema"):
    """A file that must exist and hold JSON that fits the schema (the draft that it names, else 2020-12)."""

    path: str
    schema: dict[str, object]


class ReviewCheck(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="review"):
    """A second model judges the change by the rubric. Its word can fail a run and never passes one."""

    rubric: str


# What facts decide, and nobody's opinion.
Proof = CommandCheck | TestsCheck | FileCheck | DiffCheck | HttpCheck | BrowserCheck | JsonSchemaCheck
Check = Proof | ReviewCheck


def asks_review(checks: Sequence[Check]) -> bool:
    """Whether a model is asked about them."""
    return any(isinstance(check, ReviewCheck) for check in checks)


def proves_nothing(checks: Sequence[Check]) -> bool:
    """Whether there is none among them that could make a run PASSED by its own kind."""
    return all(isinstance(check, ReviewCheck) for check in checks)


def seconds_of(checks: Sequence[Check]) -> float:
    """How long they may take in all. Where none could pass a run, the configured tests may be run in their place."""
    reviews = sum(isinstance(check, ReviewCheck) for check in checks)
    others = sum(getattr(check, "timeout_s", 0.0) for check in checks)
    return (others or CHECK_TIMEOUT_S) + min(reviews, REVIEWS_MAX) * REVIEW_TIMEOUT_S


class LocalAddress(NamedTuple):
    """Where a server of the workspace listens, and what is asked of it."""

    host: str
    port: int
    target: str


def local_address(url: str) -> LocalAddress:
    """The parts of an address of this machine. Raises `ValueError`: a check asks the server that it started itself, and
    nobody else in the network."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address: {error}") from error
    if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError("must be http:// and this machine: 127.0.0.1, localhost or [::1]")
    if not port or parts.username is not None or parts.fragment:
        raise ValueError("must name the server's port (http://127.0.0.1:8000/), no user and no fragment")
    if not url.isascii() or any(character.isspace() for character in url) or not url.isprintable():
        raise ValueError("must be printable ASCII without spaces; escape the rest with %")
    query = f"?{parts.query}" if parts.query else ""
    return LocalAddress(parts.hostname, port, f"{parts.path or '/'}{query}")


class Verdict(StrEnum):
    """The outcome of a verification, terminal for the run unless FAILED leaves rounds."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    UNVERIFIED = "UNVERIFIED"


class CheckStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check with its evidence: what ran (`subject`), exit code, output tail, digests, duration."""

    kind: str
    subject: str
    status: CheckStatus
    reason: str = ""
    exit_code: int | None = None
    output_tail: str = ""
    digests: dict[str, str] = {}
    duration_ms: int = 0


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a round, and all of its evidence."""

    status: Verdict
    round: int
    checks: list[CheckResult] = []
    commit: str | None = None

    @property
    def evidence(self) -> list[str]:
        """One line a check, for people; the whole evidence stands in `checks`."""
        return [f"{check.kind} {check.subject}: {check.status}".strip() for check in self.checks]


class VerifyArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What a verifier is told: the claim (`answer`), what to prove, and where (`host` holds the workspace).

    `baseline` is the commit that the run began from; `last`: the next round is the last one, and the model is told.
    `by_default`: without checks the configured tests decide, which the first session of a project need not pass: it writes
    the tests of what others build. `written` is retired: the verifier compares the commits, whatever the run's tools have said.
    `goal` (clipped) is for reviews, and empty without any.
    """

    round: int
    checks: list[Check]
    answer: str
    host: str
    baseline: str | None
    written: list[str] = []
    last: bool = False
    by_default: bool = True
    goal: str = ""
