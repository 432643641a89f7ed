"""Projects over many items: one task a item from one template, and where each item stands.

Invariant: what is kept of the progress follows from the items that go on, wait or were given up, never from how many there
are: an item before `next` that is none of these is done.
"""

from typing import TypeVar, cast

import msgspec

from libs.contracts.checks import Check
from libs.contracts.values import Share

# A longer list is several projects: it travels in the first record of the project's log.
ITEMS_MAX = 10_000
ITEM_CHARS_MAX = 1_000
# Items at a time: as many runs as an executor has slots by default.
CONCURRENCY_MAX = 64
# Items that were given up before somebody has to look; each is kept with its error.
FAILED_DEFAULT, FAILED_MAX = 100, 1_000
ERROR_CHARS_MAX = 300
RETRY_S_DEFAULT = 10.0
# What stands for the item in the template.
PLACEHOLDER = "{item}"
_ID = "item-"

C = TypeVar("C", bound=Check)


class ItemMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`goal` and `acceptance` are those of each item's run, with the item in place of `{item}`. `workspace`: the one that
    all runs work in (`None`: one of each run's own). The first retry waits `retry_s`, each later one twice as long, up to
    300 s. After `max_failed` items were given up the project is blocked."""

    items: list[str]
    goal: str
    acceptance: list[Check] = []
    workspace: str | None = None
    tools: list[str] | None = None
    retry_s: float = RETRY_S_DEFAULT
    max_failed: int = FAILED_DEFAULT


class ItemStart(msgspec.Struct, frozen=True, kw_only=True):
    """`index` from 0, `attempt` from 1; `session` numbers all that was begun in this project, and names the run; `share` is
    what it may use of the project's caps (`None`: it began before this was written down)."""

    index: int
    attempt: int
    session: int
    share: Share | None = None


class ItemEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the run of an item ended. Without `done`: `retry_at`, or, with none, it is given up."""

    index: int
    run_id: str
    done: bool
    error: str = ""
    retry_at: str | None = None


class ItemGoing(msgspec.Struct, frozen=True, kw_only=True):
    """`last_error` is how the try before ended; empty for the first."""

    attempt: int
    session: int
    run_id: str
    last_error: str = ""
    share: Share | None = None


class ItemWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """Tried `attempts` times, to be tried again at `until`; `sequence` is the event that said so, which a timer names."""

    attempts: int
    until: str
    error: str
    run_id: str
    sequence: int


class ItemFailed(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int
    error: str
    run_id: str


class ItemsState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the items stand. `next` is the first that was never begun; `skipped` are left out by a person's word."""

    next: int = 0
    done: int = 0
    going: dict[int, ItemGoing] = {}
    waiting: dict[int, ItemWaiting] = {}
    failed: dict[int, ItemFailed] = {}
    skipped: list[int] = []


def item_id(index: int) -> str:
    """How an item is called where features have ids."""
    return f"{_ID}{index}"


def index_of(identifier: str, count: int) -> int | None:
    """The inverse of `item_id`, of a project with so many."""
    digits = identifier.removeprefix(_ID)
    is_one = identifier.startswith(_ID) and digits.isascii() and digits.isdigit() and len(digits) < 8
    return int(digits) if is_one and int(digits) < count and item_id(int(digits)) == identifier else None


def filled(text: str, item: str) -> str:
    """The template with the item in it."""
    return text.replace(PLACEHOLDER, item)


def filled_check(check: C, item: str) -> C:
    """The check with the item in all of its texts."""
    return msgspec.convert(_filled(msgspec.to_builtins(check), item), type(check))


def _filled(value: object, item: str) -> object:
    match value:
        case str():
            return filled(value, item)
        case list():
            return [_filled(one, item) for one in cast("list[object]", value)]
        case dict():
            return {key: _filled(one, item) for key, one in cast("dict[str, object]", value).items()}
        case _:
            return value
