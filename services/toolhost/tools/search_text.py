"""`search_text`: lines of files that match a regular expression, with exact totals.

Invariant: an invalid pattern, a pattern that takes too long and "no match" are three different answers. Plain texts
are looked for here; anything that could backtrack runs in a worker process that is killed when its time is over. Where
ripgrep is installed it takes files without a match out before (`ripgrep.py`).
"""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.globs import matches
from libs.policy.redaction import MARK, Redaction, key_lines
from services.toolhost.entries import FileKind
from services.toolhost.errors import FileTooLarge, InvalidPattern, SearchTooCostly, ToolFailure
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded, matching
from services.toolhost.tools.encodings import as_utf8
from services.toolhost.tools.names import shown
from services.toolhost.tools.ripgrep import BATCH_FILES, PLACES, Sieve, sieve_for

_RESULTS_DEFAULT = 100
_RESULTS_MAX = 1_000
_PATTERN_CHARS_MAX = 4_000
# One file is held in memory while it is searched; all of them take a few seconds at most.
_FILE_BYTES_MAX = 32 << 20
_SEARCHED_BYTES_MAX = 256 << 20
_SNIFF_BYTES = 8_192
_PATIENCE_S = 10.0
_SPECIAL = frozenset(r".^$*+?{}[]\|()")

SPEC = ToolSpec(
    name="search_text",
    description=(
        "Searches the files of the workspace line by line for a regular expression (Python syntax). Answers "
        "path:line: text, and the totals also when there are more matches than are shown. Binary files are skipped."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "Regular expression, applied to single lines."},
            "path": {"type": "string", "description": "File or folder to search. Default: the workspace."},
            "glob": {
                "type": "string",
                "description": "Only files that match, relative to the folder, such as *.py.",
            },
            "ignore_case": {"type": "boolean", "description": "Default false."},
            "max_results": {
                "type": "integer",
                "minimum": 1,
                "description": f"How many matching lines to show. Default {_RESULTS_DEFAULT}, at most {_RESULTS_MAX}.",
            },
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
    timeout_s=60.0,
)


class SearchTextArguments(msgspec.Struct, frozen=True, kw_only=True):
    pattern: str
    path: str | None = None
    glob: str | None = None
    ignore_case: bool | None = None
    max_results: int | None = None

    @property
    def results_max(self) -> int:
        return max(1, min(self.max_results or _RESULTS_DEFAULT, _RESULTS_MAX))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, SearchTextArguments)
    patience_s = min(_PATIENCE_S, context.timeout_s)
    return await asyncio.to_thread(_searched, context, wanted, patience_s)


class _Result(NamedTuple):
    """A line that matches; `start` to `end` is what of `text` is shown."""

    path: str
    line: int
    text: str
    start: int
    end: int


class _Found:
    """What a search came to: results, totals, and what was not searched. `keys` are the lines of private keys."""

    def __init__(self) -> None:
        self.results: list[_Result] = []
        self.keys: dict[str, frozenset[int]] = {}
        self.matches = self.files = self.searched_files = self.searched_bytes = 0
        self.skipped: dict[str, int] = {}

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def _searched(context: ToolContext, wanted: SearchTextArguments, patience_s: float) -> Outcome:
    guard = context.guard
    if not wanted.pattern or len(wanted.pattern) > _PATTERN_CHARS_MAX:
        raise InvalidPattern(f"a pattern has 1 to {_PATTERN_CHARS_MAX} characters")
    found = _Found()
    files = _files(context, wanted, found)
    plain = _SPECIAL.isdisjoint(wanted.pattern)
    sieve = sieve_for(
        # Plain bytes are found nowhere faster than in memory.
        None if plain and not wanted.ignore_case else context.ripgrep,
        wanted.pattern,
        ignore_case=bool(wanted.ignore_case),
        bytes_in_all=sum(size for _, size in files),
    )
    candidates = _sieved(guard, [path for path, _ in files], sieve, patience_s)
    contents = _contents(guard, candidates, found, wanted.results_max, single=len(files) == 1)
    if plain:
        _search_here(wanted, contents, found)
    else:
        _search_in_worker(wanted, contents, found, patience_s)
    return _answer(wanted, found, context.redaction)


def _files(context: ToolContext, wanted: SearchTextArguments, found: _Found) -> list[tuple[str, int]]:
    """The files to search with their sizes, in the order of their paths."""
    guard, hidden = context.guard, context.hidden
    where = guard.spelled(wanted.path or ".")
    status = guard.stat(where)
    if status.kind is not FileKind.DIRECTORY:
        return [(where, status.size_bytes)]
    below = 0 if where == "." else len(where) + 1
    listing = guard.walk(where)
    if not listing.complete:
        found.skip("beyond the limit of a walk")
    files = [
        (entry.path, entry.size_bytes)
        for entry in listing.entries
        if entry.kind is FileKind.FILE and (not wanted.glob or matches(entry.path[below:], wanted.glob))
    ]
    if hidden is None:
        return sorted(files)
    for path, _ in files:
        if hidden(path):
            found.skip("left out by the policy")
    return sorted(file for file in files if not hidden(file[0]))


def _sieved(
    guard: WorkspaceGuard, paths: list[str], sieve: Sieve | None, patience_s: float
) -> Iterator[tuple[str, int | None, int]]:
    """The files with the number of lines that match and the size, as far as the sieve knows them."""
    if sieve is None or not PLACES.acquire(blocking=False):
        yield from ((path, None, 0) for path in paths)
        return
    try:
        for start in range(0, len(paths), BATCH_FILES):
            yield from _batch(guard, paths[start : start + BATCH_FILES], sieve, patience_s)
    finally:
        PLACES.release()


def _batch(
    guard: WorkspaceGuard, batch: list[str], sieve: Sieve, patience_s: float
) -> list[tuple[str, int | None, int]]:
    """Some of the files; their descriptors are closed again when it returns."""
    with ExitStack() as stack:
        opened: dict[str, tuple[int, int]] = {}
        for path in batch:
            # What cannot be opened is said to be so when it is read.
            with suppress(ToolFailure):
                fd = guard.open_read(path)
                stack.callback(os.close, fd)
                opened[path] = (fd, os.fstat(fd).st_size)
        small = {path: file for path, file in opened.items() if file[1] <= _FILE_BYTES_MAX}
        counts = dict(zip(small, sieve.counts([fd for fd, _ in small.values()], patience_s), strict=True))
    return [(path, counts.get(path), small[path][1] if path in small else 0) for path in batch]


def _contents(
    guard: WorkspaceGuard,
    candidates: Iterator[tuple[str, int | None, int]],
    found: _Found,
    results_max: int,
    *,
    single: bool,
) -> Iterator[tuple[str, bytes]]:
    """The text files among the candidates that have to be looked into, until the budget is spent."""
    to_show = results_max
    for path, count, size in candidates:
        if found.searched_bytes >= _SEARCHED_BYTES_MAX:
            found.skip(f"beyond the {_SEARCHED_BYTES_MAX >> 20} MiB that one search reads")
            continue
        if count == 0 or (count is not None and to_show <= 0):
            found.searched_files += 1
            found.searched_bytes += size
            found.matches += count
            found.files += count > 0
            continue
        to_show -= count or 0
        try:
            data = guard.read(path, bytes_max=_FILE_BYTES_MAX)
        except FileTooLarge:
            found.skip(f"larger than {_FILE_BYTES_MAX >> 20} MiB")
            continue
        except ToolFailure:
            # It was there when the folder was listed: gone meanwhile, or not readable.
            if single:
                raise
            found.skip("unreadable")
            continue
        text = as_utf8(data).data
        if b"\0" in text[:_SNIFF_BYTES]:
            found.skip("binary")
            continue
        found.searched_files += 1
        found.searched_bytes += len(data)
        if keys := key_lines(text):
            found.keys[path] = keys
        yield path, text


def _search_here(wanted: SearchTextArguments, contents: Iterator[tuple[str, bytes]], found: _Found) -> None:
    """A plain text cannot backtrack."""
    pattern = matching.compiled(re.escape(wanted.pattern), ignore_case=bool(wanted.ignore_case))
    needle = wanted.pattern.encode("utf-8", "surrogateescape")
    for path, data in contents:
        # Most files hold no match, and the search for bytes is far faster than the one by lines.
        if not wanted.ignore_case and needle not in data:
            continue
        matched = False
        for line, text, start, end in matching.matching_lines(pattern, data):
            matched = True
            found.matches += 1
            if len(found.results) < wanted.results_max:
                found.results.append(_Result(path, line, text, start, end))
        found.files += matched


def _search_in_worker(
    wanted: SearchTextArguments, contents: Iterator[tuple[str, bytes]], found: _Found, patience_s: float
) -> None:
    try:
        pattern = wanted.pattern.encode().hex()
    except UnicodeEncodeError:
        raise InvalidPattern("the pattern contains half a surrogate pair") from None
    flag = "i" if wanted.ignore_case else ""
    header = f"{pattern}\n{flag}\n{wanted.results_max}\n\n".encode()
    paths: list[str] = []
    expired = threading.Event()
    worker = subprocess.Popen(
        [sys.executable, "-I", "-S", matching.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"LANG": "C.UTF-8", "PYTHONUTF8": "1"},
        start_new_session=True,
    )

    def expire() -> None:
        expired.set()
        worker.kill()

    timer = threading.Timer(patience_s, expire)
    timer.start()
    try:
        # Leaving the block waits for the worker, which ends with its input or with the timer.
        with worker:
            answer = _exchange(worker, header, contents, paths)
    finally:
        timer.cancel()
    if expired.is_set():
        raise SearchTooCostly(
            f"the pattern takes longer than {patience_s:g} s; simplify it, or narrow path or glob"
        )
    _take(answer, paths, found)


def _exchange(
    worker: subprocess.Popen[bytes], header: bytes, contents: Iterator[tuple[str, bytes]], paths: list[str]
) -> str:
    """Sends everything, notes the order in `paths`, and returns the answer."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    # An invalid pattern ends the worker before it has read everything.
    with suppress(BrokenPipeError):
        worker.stdin.write(header)
        for path, data in contents:
            paths.append(path)
            worker.stdin.write(b"%d\n" % len(data))
            worker.stdin.write(data)
    with suppress(BrokenPipeError):
        worker.stdin.close()
    return worker.stdout.read().decode("utf-8", "replace")


def _take(answer: str, paths: list[str], found: _Found) -> None:
    """The worker's lines."""
    for line in answer.split("\n"):
        kind, _, rest = line.partition(" ")
        match kind:
            case "m":
                index, number, start, end, text = rest.split(" ", 4)
                found.results.append(_Result(paths[int(index)], int(number), text, int(start), int(end)))
            case "t":
                matches, files = map(int, rest.split(" "))
                found.matches += matches
                found.files += files
                return
            case "error":
                raise InvalidPattern(f"the pattern is not a valid regular expression: {rest}")
            case _:
                break
    raise SearchTooCostly(
        "the search ended before its time, probably for lack of memory; narrow path or glob"
    )


def _line(result: _Result, found: _Found, redaction: Redaction) -> str:
    text = redaction.part(result.text, result.start, result.end)
    if result.line in found.keys.get(result.path, ()):
        text = MARK
    before, behind = "…" if result.start > 0 else "", "…" if result.end < len(result.text) else ""
    return f"{shown(result.path)}:{result.line}: {before}{text}{behind}"


def _answer(wanted: SearchTextArguments, found: _Found, redaction: Redaction) -> Outcome:
    skipped = sum(found.skipped.values())
    metadata: dict[str, object] = {
        "matches": found.matches,
        "files": found.files,
        "searched_files": found.searched_files,
        "skipped_files": skipped,
    }
    lines = [_line(result, found, redaction) for result in found.results]
    total = f"{found.matches} matching lines in {found.files} of {found.searched_files} files"
    if not found.matches:
        lines = [f"no match for {wanted.pattern!r} in {found.searched_files} files"]
    elif found.matches > len(found.results):
        lines.append(f"… the first {len(found.results)} of {total}; narrow the pattern, path or glob")
    else:
        lines.append(f"({total})")
    if skipped:
        lines.append(f"not searched: {', '.join(f'{count} {why}' for why, count in found.skipped.items())}")
    return Outcome(ok=True, output="\n".join(lines), metadata=metadata)
