"""Path patterns as people write them: `*`, `?` and `[…]` within a name, `**` over folders, `{a,b}`.

Invariant: matching takes time linear in the path, whatever the pattern, and looks at text only. A pattern without a
slash is about names at any depth (`*.py`), one that ends with a slash about everything below that folder.
"""

import functools
from collections.abc import Iterable
from fnmatch import fnmatchcase

# `{a,b}{c,d}…` doubles with each pair; nobody means more alternatives than these. The rest is taken literally.
_ALTERNATIVES_MAX = 64


def matches(path: str, pattern: str) -> bool:
    """Whether the relative path (with `/`) fits the pattern."""
    parts = path.split("/")
    return any(_fits(segments, parts) for segments in _alternatives(pattern))


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    return any(matches(path, pattern) for pattern in patterns)


@functools.lru_cache(
    maxsize=1024
)  # Patterns come from tasks; a thousand is more than a process sees at once.
def _alternatives(pattern: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_segments(one) for one in _expanded(pattern))


def _segments(glob: str) -> tuple[str, ...]:
    segments = tuple(part for part in glob.split("/") if part not in ("", "."))
    if glob.endswith("/"):
        return (*segments, "**", "*")
    return segments if "/" in glob.removeprefix("./") else ("**", *segments)


def _expanded(glob: str) -> list[str]:
    """The alternatives of the braces, innermost first; a brace without a partner is itself."""
    waiting, done = [glob], list[str]()
    while waiting:
        pattern = waiting.pop()
        close = pattern.find("}")
        opening = pattern.rfind("{", 0, close) if close >= 0 else -1
        if opening < 0 or len(waiting) + len(done) >= _ALTERNATIVES_MAX:
            done.append(pattern)
            continue
        choices = pattern[opening + 1 : close].split(",")
        waiting += [pattern[:opening] + choice + pattern[close + 1 :] for choice in choices]
    return done


def _fits(segments: tuple[str, ...], parts: list[str]) -> bool:
    reached = _past_stars(segments, {0})
    for part in parts:
        following: set[int] = set()
        for index in reached:
            if index == len(segments):
                continue
            if segments[index] == "**":
                following.add(index)
            elif fnmatchcase(part, segments[index]):
                following.add(index + 1)
        reached = _past_stars(segments, following)
    return len(segments) in reached


def _past_stars(segments: tuple[str, ...], reached: set[int]) -> set[int]:
    """`**` also stands for no folder at all."""
    for index in range(len(segments)):
        if index in reached and segments[index] == "**":
            reached.add(index + 1)
    return reached
