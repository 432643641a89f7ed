"""Facts for a verifier: a snapshot of the workspace, commands in clean checkouts of it, files in it.

Invariant: nothing here judges, and a command of a check never touches the workspace itself.
"""

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from libs.chassis.effects import Stopped
from libs.contracts.evidence import (
    DIFF_BYTES_MAX,
    FILES_MAX,
    BrowserQuestion,
    Change,
    CommandAnswer,
    CommandQuestion,
    DiffAnswer,
    DiffQuestion,
    FileAnswer,
    FileQuestion,
    FilesAnswer,
    FilesQuestion,
    HttpAnswer,
    HttpQuestion,
    SnapshotAnswer,
    SnapshotQuestion,
)
from libs.policy.globs import matches_any
from libs.policy.redaction import AROUND_BYTES, Redaction
from services.toolhost import servers
from services.toolhost.attach import Attached
from services.toolhost.entries import BULK_FOLDERS
from services.toolhost.errors import CommandNotStarted, PathRefused, ToolFailure
from services.toolhost.jsonschemas import held_against
from services.toolhost.launched import ProcessOutcome
from services.toolhost.output import plain
from services.toolhost.patterns import is_found
from services.toolhost.predecessor import checks_folder
from services.toolhost.processes import Command, OnStarted, Processes
from services.toolhost.repository import HiddenRepository
from services.toolhost.sandbox import Sandbox
from services.toolhost.tools.get_git_diff import without

# Of a command's output, for the evidence and for `expect_output`.
_OUTPUT_BYTES_MAX = 256 * 1024
# Changes that a verifier is told, and the bytes of their paths: more are a generated tree, and the answer has to fit a
# message.
_CHANGES_MAX = 5_000
_CHANGES_BYTES_MAX = 300_000
_FOLDERS_MAX = 1_000
# The name of the tree without files, which every git knows: all paths of a commit are what it adds to this.
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_KINDS: dict[str, Literal["added", "modified", "deleted"]] = {"A": "added", "D": "deleted"}


class Running(NamedTuple):
    """How a command of a check is told apart, noted and ended."""

    key: str
    on_started: OnStarted
    stop: asyncio.Event


class Evidence:
    """Answers a verifier's questions about one attached workspace at a time."""

    def __init__(
        self, processes: Processes, sandbox: Sandbox, tests_command: Sequence[str], redaction: Redaction
    ) -> None:
        self._processes, self._sandbox, self._redaction = processes, sandbox, redaction
        self._tests_command = list(tests_command)

    async def snapshot(self, attached: Attached, question: SnapshotQuestion) -> SnapshotAnswer:
        """Record the workspace, and what changed since the baseline. Raises `ToolFailure`."""
        repository = attached.repository
        commit = (await repository.snapshot("verification")).commit
        baseline = question.baseline
        if baseline is not None and not await repository.has(baseline):
            baseline = None
        changed: list[Change] = []
        folders: set[str] = set()
        if baseline is not None:
            changed = [
                Change(path=_text(change.path), kind=_KINDS.get(change.status, "modified"))
                for change in await repository.changed_paths(baseline, commit)
            ]
            paths = [_text(change.path) for change in await repository.changed_paths(_EMPTY_TREE, baseline)]
            folders = {path.rpartition("/")[0] for path in paths if matches_any(path, question.protected)}
        told, left_out = await asyncio.to_thread(_told, changed, question)
        return SnapshotAnswer(
            commit=commit,
            baseline=baseline,
            changed=told,
            left_out=left_out,
            tests_command=self._tests_command,
            protected_folders=sorted(folders)[:_FOLDERS_MAX],
            unkept=sorted(BULK_FOLDERS),
        )

    async def command(
        self, attached: Attached, question: CommandQuestion, running: Running
    ) -> tuple[CommandAnswer, str]:
        """Run a command in a fresh checkout; with its output. Raises `ToolFailure` when there can be no checkout, and
        `Stopped`."""
        argv = self._tests_command if question.argv is None else question.argv
        if not argv:
            return CommandAnswer(argv=[], problem="no test command is configured"), ""
        async with _checkout(attached, question.commit) as checkout:
            try:
                ended = await self._run(argv, checkout, question.timeout_s, _OUTPUT_BYTES_MAX, running)
            except CommandNotStarted as failure:
                return CommandAnswer(argv=argv, problem=failure.message), ""
        answer = CommandAnswer(
            argv=argv,
            exit_code=ended.exit_code,
            signal=ended.signal,
            timed_out=ended.timed_out,
            duration_ms=round(ended.duration_s * 1000),
        )
        if question.expect_output is not None and not answer.problem:
            found = await is_found(question.expect_output, ended.output)
            answer = (
                msgspec.structs.replace(answer, matched=found)
                if isinstance(found, bool)
                else msgspec.structs.replace(answer, problem=found)
            )
        return answer, ended.kept.told(self._redaction)

    async def served(
        self, attached: Attached, question: HttpQuestion | BrowserQuestion, running: Running
    ) -> tuple[HttpAnswer, str]:
        """Start a server in a fresh checkout and ask it, once or in a browser; with what it answered and said. Nothing of it lives on.
        Raises `ToolFailure` when there can be no checkout, and `Stopped`."""
        async with _checkout(attached, question.commit) as checkout:
            try:
                ended = await self._run(
                    servers.probe(question, self._sandbox.name),
                    checkout,
                    question.timeout_s + servers.GRACE_S,
                    servers.REPORT_BYTES_MAX,
                    running,
                )
            except CommandNotStarted as failure:
                return HttpAnswer(problem=servers.unavailable(failure.message)), ""
        report = servers.reported(ended.output)
        if isinstance(report, str):
            return HttpAnswer(problem=report, duration_ms=round(ended.duration_s * 1000)), ""
        answer = HttpAnswer(
            status=report.status,
            sha256=report.sha256,
            problem=report.problem,
            duration_ms=round(ended.duration_s * 1000),
        )
        expect_body = question.expect_body if isinstance(question, HttpQuestion) else None
        if expect_body is not None and not answer.problem:
            found = await is_found(expect_body, report.body)
            answer = (
                msgspec.structs.replace(answer, matched=found)
                if isinstance(found, bool)
                else msgspec.structs.replace(answer, problem=found)
            )
        return answer, self._redaction.text(plain(report.told))

    async def _run(
        self, argv: Sequence[str], checkout: Path, timeout_s: float, bytes_max: int, running: Running
    ) -> ProcessOutcome:
        """Raises `CommandNotStarted` and `Stopped`."""
        command = Command(
            argv=list(argv),
            directory=checkout,
            call_id=running.key,
            timeout_s=timeout_s,
            output_bytes_max=bytes_max,
        )
        confined = self._sandbox.confine(command, root=checkout)
        ended = await self._processes.run(confined, on_started=running.on_started, stop=running.stop)
        if ended.cancelled:
            raise Stopped("the command was cancelled before it had ended")
        return ended

    async def files(self, attached: Attached, question: FilesQuestion) -> FilesAnswer:
        """Look at files of the commit. A path that cannot be one is a file that does not exist."""
        return FilesAnswer(
            files=[
                await self._fact(attached.repository, question, wanted)
                for wanted in question.files[:FILES_MAX]
            ]
        )

    async def diff(
        self, attached: Attached, question: DiffQuestion, hidden: Callable[[str], bool] | None
    ) -> DiffAnswer:
        """What the commit changes, without the files that are `hidden`. Raises `ToolFailure`."""
        # More than is told, so that a secret which reaches over the end is seen whole.
        bytes_max = DIFF_BYTES_MAX + AROUND_BYTES
        raw = await attached.repository.difference(
            question.baseline, question.commit, None, bytes_max=bytes_max
        )
        text, left_out = raw[:bytes_max].decode("utf-8", "replace"), 0
        if hidden is not None:
            text, left_out = without(text, hidden)
        end = len(text.encode()[:DIFF_BYTES_MAX].decode("utf-8", "ignore"))
        return DiffAnswer(
            text=self._redaction.part(text, 0, end),
            cut=end < len(text) or len(raw) > bytes_max,
            hidden=left_out,
        )

    async def _fact(
        self, repository: HiddenRepository, question: FilesQuestion, wanted: FileQuestion
    ) -> FileAnswer:
        try:
            after = await repository.file_at(question.commit, wanted.path)
            before = None
            if question.baseline is not None:
                before = await repository.file_at(question.baseline, wanted.path)
        except PathRefused as failure:
            return FileAnswer(path=wanted.path, before=None, after=None, problem=failure.message)
        except ToolFailure as failure:
            return FileAnswer(
                path=wanted.path, before=None, after=None, problem=f"{failure.code}: {failure.message}"
            )
        matched: bool | None = None
        faults: list[str] | None = None
        problem = ""
        if wanted.contains is not None and after is not None:
            found = await is_found(wanted.contains, after.decode("utf-8", "surrogateescape"))
            matched, problem = (found, "") if isinstance(found, bool) else (None, found)
        if wanted.json_schema is not None and after is not None:
            held = await held_against(wanted.json_schema, after)
            faults, problem = (None, held.problem) if held.problem else (held.faults, problem)
        return FileAnswer(
            path=wanted.path,
            before=_sha256(before),
            after=_sha256(after),
            matched=matched,
            faults=[self._redaction.text(fault) for fault in faults] if faults is not None else None,
            problem=self._redaction.text(problem),
        )


def _told(changed: list[Change], question: SnapshotQuestion) -> tuple[list[Change], int]:
    """As many changes as an answer holds, and how many that count are not among them: thousands of other files must not
    hide a test that was changed, nor thousands of new tests."""
    if len(changed) <= _CHANGES_MAX and sum(map(_size, changed)) <= _CHANGES_BYTES_MAX:
        return changed, 0
    counting = [*question.protected, *question.forbidden]
    places = [
        0 if matches_any(change.path, counting) else 1 if matches_any(change.path, question.wanted) else 2
        for change in changed
    ]
    order = sorted(range(len(changed)), key=lambda at: (places[at], changed[at].kind == "added"))
    size = 0
    for count, at in enumerate(order[: _CHANGES_MAX + 1]):
        size += _size(changed[at])
        if count == _CHANGES_MAX or size > _CHANGES_BYTES_MAX:
            order = order[:count]
            break
    return [changed[at] for at in order], max(0, places.count(0) - len(order))


def _size(change: Change) -> int:
    """What a change takes in JSON, about: names beyond ASCII take as many bytes there as here."""
    return len(change.path.encode()) + 32


@asynccontextmanager
async def _checkout(attached: Attached, commit: str) -> AsyncGenerator[Path]:
    """A clean copy of the commit, for as long as the context lasts."""
    folder = await asyncio.to_thread(_fresh_folder, checks_folder(attached.place))
    try:
        await attached.repository.checkout(commit, folder)
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _fresh_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=parent))


def _text(path: str) -> str:
    """The path as it can stand in JSON."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _sha256(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None
