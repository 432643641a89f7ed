"""Finds lines that match a pattern; also the worker process in which regular expressions of models run.

Run as `python -I -S matching.py`, standard library only. A backtracking pattern can take for ever and holds the
interpreter while it does, so it runs where it can be killed. Invariant: the totals are exact for what was sent.

Protocol: standard input holds four lines (pattern in hex, `i` or empty, results wanted, nothing), then for each file
a line with its size and its bytes. Standard output: `error TEXT`, or one line `m FILE LINE START END TEXT` for each result and
at the end `t MATCHES FILES`.
"""

import io
import re
import sys
from collections.abc import Iterator

# A worker that outlives its host (killed in the middle of a pattern) ends by itself after this much work.
_CPU_S_MAX = 30
_SNIPPET_CHARS = 300
# A secret that reaches into what is shown is not longer than this.
_AROUND_CHARS = 4_000


def compiled(pattern: str, *, ignore_case: bool) -> re.Pattern[str]:
    """Raises `re.error` (and `OverflowError` or `RecursionError` for monsters)."""
    return re.compile(pattern, re.IGNORECASE if ignore_case else 0)


def matching_lines(pattern: re.Pattern[str], data: bytes) -> Iterator[tuple[int, str, int, int]]:
    """Number (1-based) and text of each line that matches, and which part of the text is for showing: long lines are cut
    around the match."""
    # Line by line, so that a file of many short lines does not become as many objects at once.
    for number, raw in enumerate(io.BytesIO(data.removeprefix(b"\xef\xbb\xbf")), 1):
        line = raw.rstrip(b"\r\n").decode("utf-8", "replace")
        if found := pattern.search(line):
            yield number, *_snippet(line, found.start())


def main() -> None:
    """The worker."""
    _bound_itself()
    source = sys.stdin.buffer
    pattern, ignore_case, wanted, _ = (source.readline().decode().strip() for _ in range(4))
    try:
        compiled_pattern = compiled(bytes.fromhex(pattern).decode(), ignore_case=ignore_case == "i")
    except (re.error, OverflowError, RecursionError) as error:
        sys.stdout.write(f"error {error}\n")
        return
    lines: list[str] = []
    index = matches = files = 0
    while header := source.readline():
        before = matches
        for number, text, start, end in matching_lines(compiled_pattern, source.read(int(header))):
            matches += 1
            if len(lines) < int(wanted):
                lines.append(f"m {index} {number} {start} {end} {text}\n")
        files += matches > before
        index += 1
    sys.stdout.buffer.write("".join([*lines, f"t {matches} {files}\n"]).encode("utf-8", "replace"))


def _snippet(line: str, at: int) -> tuple[str, int, int]:
    """The line around a match, and which part of that is for showing; the rest is for whoever has to see more of it."""
    if len(line) <= _SNIPPET_CHARS:
        return line, 0, len(line)
    start = max(0, min(at - _SNIPPET_CHARS // 3, len(line) - _SNIPPET_CHARS))
    first = max(0, start - _AROUND_CHARS)
    return line[first : start + _SNIPPET_CHARS + _AROUND_CHARS], start - first, start - first + _SNIPPET_CHARS


def _bound_itself() -> None:
    import resource  # noqa: PLC0415 - only the worker needs it, and only some systems have it.

    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S_MAX, _CPU_S_MAX))


if __name__ == "__main__":
    main()
