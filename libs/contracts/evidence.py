"""What a verifier asks the workspace's host, and what the host answers: facts, never judgements.

Invariant: every fact is about one commit, the snapshot made for the round and attempt; the working folder may go on.
"""

from typing import Literal

import msgspec

from libs.contracts.checks import BrowserStep

# Files that one question may be about: an answer that names more is a listing, not a claim.
FILES_MAX = 200
# What of a document's faults is told: a model mends the first few and looks again.
SCHEMA_FAULTS_MAX = 20
# What of a diff is told: more than a judge reads, and an answer fits a message in whatever script it is written.
DIFF_BYTES_MAX = 128 * 1024


class SnapshotQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Record the workspace now. `protected` are globs of paths whose folders are wanted as they were at the baseline. Where
    more has changed than an answer holds, paths that fit them or `forbidden` are told first, and then what fits `wanted`."""

    baseline: str | None
    protected: list[str] = []
    forbidden: list[str] = []
    wanted: list[str] = []


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One path in which the snapshot differs from the baseline."""

    path: str
    kind: Literal["added", "modified", "deleted"]


class SnapshotAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`unkept` names folders that no snapshot holds; `protected_folders` held protected files at the baseline. `left_out`: so
    many changes of protected or forbidden paths are not told."""

    commit: str
    baseline: str | None
    changed: list[Change]
    tests_command: list[str]
    protected_folders: list[str]
    unkept: list[str]
    left_out: int = 0


class CommandQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Run `argv` (null: the configured tests) in a fresh checkout of the commit."""

    commit: str
    argv: list[str] | None
    timeout_s: float
    expect_output: str | None = None


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`argv` is what ran (empty: no tests are configured), `problem` why it could not be run or matched."""

    argv: list[str]
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    matched: bool | None = None
    problem: str = ""
    duration_ms: int = 0


class HttpQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Start a server in a fresh checkout of the commit and ask it once."""

    commit: str
    start: list[str]
    url: str
    expect_status: int
    timeout_s: float
    expect_body: str | None = None


class BrowserQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Start a server in a fresh checkout of the commit, if there is one to start, and take steps on its page."""

    commit: str
    start: list[str] | None
    url: str
    steps: list[BrowserStep]
    timeout_s: float


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is what the server answered, `sha256` the digest of its body, `problem` why there is no answer, or why it
    could not be matched, or which step of a browser did not go as it should."""

    status: int | None = None
    sha256: str | None = None
    matched: bool | None = None
    problem: str = ""
    duration_ms: int = 0


class FileQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """`contains` is a pattern, `json_schema` what the file's JSON is held against."""

    path: str
    contains: str | None = None
    json_schema: dict[str, object] | None = None


class FilesQuestion(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    baseline: str | None
    files: list[FileQuestion]


class FileAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Digests (sha256) at the baseline and in the commit, null where there is no such file. `faults` is what the file has
    against the schema that was asked about, null when nobody held it against one."""

    path: str
    before: str | None
    after: str | None
    matched: bool | None = None
    faults: list[str] | None = None
    problem: str = ""


class FilesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    files: list[FileAnswer]


class DiffQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What the commit changes of the baseline."""

    commit: str
    baseline: str


class DiffAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A unified diff without secrets. `cut`: it goes on; `hidden`: so many files are left out by the policy."""

    text: str
    cut: bool = False
    hidden: int = 0
