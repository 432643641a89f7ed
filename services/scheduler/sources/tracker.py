"""What trackers have in common: how an issue becomes a wish, and where their secret is read.

Invariant: one issue that cannot be read is one wish with a problem, and in no other's way. A secret goes into a header
and nowhere else.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from libs.contracts.errors import ValidationFailed
from libs.contracts.http import TaskCreate, read_body
from services.scheduler.sources.wish import SourceAway, Wish

# Issues a page, and pages of those that are wanted: a thousand issues wait longer than anybody looks.
PER_PAGE = 100
PAGES_MAX = 10
# Runs that go on and whose issues are asked after in one look, as far as each costs a request.
ASKED_MAX = 100
# A text longer than this is cut: a goal is a brief.
TEXT_CHARS_MAX = 50_000
_METADATA_CHARS_MAX = 4096

_T = TypeVar("_T")


class Said(NamedTuple):
    """What an issue says of itself. `number` is how people name it."""

    number: str
    url: str
    title: str
    text: str | None


def secret_in(file: str) -> str:
    """The secret that a file holds. Raises `SourceAway`."""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceAway(f"token_file {file} cannot be read: {type(error).__name__}") from error


def read(raw: msgspec.Raw, into: type[_T]) -> _T | Wish:
    """An issue as the tracker sent it, or the wish that says that it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=into)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        mark = hashlib.sha256(bytes(raw)).hexdigest()[:16]
        return Wish(f"unreadable:{mark}", None, f"an issue cannot be read: {error}")


def wished(key: str, said: Said, workspace: str | None, label: str) -> Wish:
    """The wish of an issue."""
    try:
        return Wish(key, _task(said, workspace), label=label)
    except ValidationFailed as error:
        return Wish(key, None, error.message)


def unlabelled(key: str, label: str) -> Wish:
    """The wish of an issue that has not the label of its source."""
    return Wish(key, None, f"the label {label} was taken off", over=True, label=label)


class Turns:
    """Takes so many at a time of keys that are too many for one look: those that were not asked after come next."""

    def __init__(self, most: int) -> None:
        self._most, self._last = most, ""

    def take(self, keys: Collection[str]) -> list[str]:
        """The next ones, at most `most`, in the order of their names from behind the last that was taken."""
        known = sorted(keys)
        start = bisect_right(known, self._last)
        taken = [*known[start:], *known[:start]][: self._most]
        if taken:
            self._last = taken[-1]
        return taken


def _task(said: Said, workspace: str | None) -> TaskCreate:
    goal = f"{said.title}\n\n{(said.text or '')[:TEXT_CHARS_MAX]}".replace("\0", "").strip()
    given: dict[str, object] = {
        "goal": goal,
        "metadata": {"issue": said.number, "url": said.url[:_METADATA_CHARS_MAX]},
    }
    if workspace is not None:
        given["workspace"] = workspace
    return read_body(TaskCreate, given)
