"""Issues of a GitHub repository: an open one with the label is a task; it is over once it is closed, or has lost the label.

Invariant: only what the tracker says is believed, and only while it says so with a whole answer: a failure, a limit or an
answer that cannot be read changes nothing, and that an issue is missing from a list ends nothing: it is asked after. Nothing
is written to the tracker.
"""

from collections.abc import Collection
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from libs.contracts.clock import Clock
from services.scheduler.sources.configuration import GitHubSource
from services.scheduler.sources.fetch import Fetched, get, refused
from services.scheduler.sources.tracker import (
    ASKED_MAX,
    PAGES_MAX,
    PER_PAGE,
    Said,
    Turns,
    read,
    secret_in,
    unlabelled,
    wished,
)
from services.scheduler.sources.wish import Outcome, SourceAway, Wish

# An issue that was moved, that nobody may see any more, or that never was: it says nothing. A deleted one is gone.
_SAY_NOTHING = frozenset({HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.NOT_FOUND})


class _Label(msgspec.Struct, frozen=True):
    name: str | None = None


class _Issue(msgspec.Struct, frozen=True):
    """What an issue says of itself. What belongs to pull requests has `pull_request`."""

    number: int
    title: str
    html_url: str
    state: str = "open"
    body: str | None = None
    labels: list[_Label | str] = []
    pull_request: object = None

    def has(self, label: str) -> bool:
        names = (each if isinstance(each, str) else each.name or "" for each in self.labels)
        return label.casefold() in (name.casefold() for name in names)


class _Page(NamedTuple):
    """A page as it was read, under its tag."""

    tag: str
    issues: list[Wish]
    more: bool


class GitHub:
    """One repository. `Source`."""

    def __init__(self, name: str, spec: GitHubSource, clock: Clock) -> None:
        self.name, self.tenant, self.every_s = name, spec.tenant, spec.every_s
        self._spec, self._clock = spec, clock
        self._issues = f"{spec.url.rstrip('/')}/repos/{spec.repository}/issues"
        self._known: dict[int, _Page] = {}
        self._turns = Turns(ASKED_MAX)

    async def look(self, going: Collection[str], *, afresh: bool) -> list[Wish]:
        del afresh
        found: list[Wish] = []
        for number in range(1, PAGES_MAX + 1):
            page = await self._page(number)
            found += page.issues
            if not page.more:
                break
        listed = {wish.key for wish in found}
        prefix = f"{self._spec.repository}#"
        for key in self._turns.take([key for key in going if key not in listed and key.startswith(prefix)]):
            found.append(await self._one(key, key.removeprefix(prefix)))
        return found

    async def tell(self, key: str, outcome: Outcome) -> None:
        """The tracker is people's; they see the run."""

    async def _page(self, number: int) -> _Page:
        query = {
            "state": "open",
            "labels": self._spec.label,
            "sort": "updated",
            "direction": "desc",
            "per_page": str(PER_PAGE),
            "page": str(number),
        }
        known = self._known.get(number)
        answer = await get(self._issues, query, self._headers(known.tag if known is not None else None))
        if answer.status == HTTPStatus.NOT_MODIFIED and known is not None:
            return known
        if answer.status != HTTPStatus.OK:
            raise refused(self._issues, answer, self._clock.now())
        page = self._read(answer)
        self._known[number] = page
        return page

    async def _one(self, key: str, number: str) -> Wish:
        """An issue whose run goes on, and which no list names."""
        answer = await get(f"{self._issues}/{number}", {}, self._headers(None))
        if answer.status == HTTPStatus.GONE:
            return Wish(key, None, "the issue was deleted", over=True)
        if answer.status in _SAY_NOTHING:
            return Wish(key, None, f"its issue cannot be seen any more ({answer.status})")
        if answer.status != HTTPStatus.OK:
            raise refused(self._issues, answer, self._clock.now())
        issue = read(msgspec.Raw(answer.body), _Issue)
        if isinstance(issue, Wish):
            return Wish(key, None, issue.problem)
        if issue.state != "open":
            return Wish(key, None, "the issue was closed", over=True)
        if not issue.has(self._spec.label):
            return unlabelled(key, self._spec.label)
        return self._wish(issue)

    def _headers(self, tag: str | None) -> dict[str, str]:
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if tag:
            headers["If-None-Match"] = tag
        if self._spec.token_file is not None:
            headers["Authorization"] = f"Bearer {secret_in(self._spec.token_file)}"
        return headers

    def _read(self, answer: Fetched) -> _Page:
        try:
            listed = msgspec.json.decode(answer.body, type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise SourceAway(f"{self._issues} answered with no list of issues") from error
        wishes = [wish for raw in listed if (wish := self._listed(raw)) is not None]
        return _Page(answer.headers.get("etag", ""), wishes, len(listed) == PER_PAGE)

    def _listed(self, raw: msgspec.Raw) -> Wish | None:
        issue = read(raw, _Issue)
        if isinstance(issue, Wish):
            return issue
        return self._wish(issue) if issue.pull_request is None else None

    def _wish(self, issue: _Issue) -> Wish:
        said = Said(str(issue.number), issue.html_url, issue.title, issue.body)
        return wished(f"{self._spec.repository}#{issue.number}", said, self._spec.workspace, self._spec.label)
