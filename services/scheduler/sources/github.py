"""Issues of a GitHub repository: an open one with the label is a task, a closed one is over.

Invariant: only what the tracker says is believed, and only while it says so with a whole answer: a failure, a limit or an
answer that cannot be read changes nothing. Nothing is written to the tracker.
"""

import hashlib
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.contracts.errors import ValidationFailed
from libs.contracts.http import TaskCreate, read_body
from services.scheduler.sources.configuration import GitHubSource
from services.scheduler.sources.fetch import Fetched, fetch
from services.scheduler.sources.wish import Outcome, SourceAway, Wish

# Issues a page, and pages of open ones: a thousand issues wait longer than anybody looks.
PER_PAGE = 100
PAGES_MAX = 10
# A body longer than this is cut: a goal is a brief.
BODY_CHARS_MAX = 50_000


class _Issue(msgspec.Struct, frozen=True):
    """What an issue says of itself. What belongs to pull requests has `pull_request`."""

    number: int
    title: str
    html_url: str
    state: str = "open"
    body: str | None = None
    pull_request: object = None


class _Page(NamedTuple):
    """A page as it was read, under its tag."""

    tag: str
    issues: list[Wish]
    more: bool


class GitHub:
    """One repository. `Source`."""

    def __init__(
        self,
        name: str,
        spec: GitHubSource,
    ) -> None:
        self.name, self.tenant, self.every_s = name, spec.tenant, spec.every_s
        self._spec = spec
        self._issues = f"{spec.url.rstrip('/')}/repos/{spec.repository}/issues"
        self._known: dict[str, _Page] = {}

    async def look(self) -> list[Wish]:
        found: list[Wish] = []
        for number in range(1, PAGES_MAX + 1):
            page = await self._page("open", number)
            found += page.issues
            if not page.more:
                break
        # The newest of those that are over: older ones were seen before, or were never begun.
        return found + (await self._page("closed", 1)).issues

    async def tell(self, key: str, outcome: Outcome) -> None:
        """The tracker is people's; they see the run."""

    async def _page(self, state: str, number: int) -> _Page:
        query = {
            "state": state,
            "labels": self._spec.label,
            "sort": "updated",
            "direction": "desc",
            "per_page": str(PER_PAGE),
            "page": str(number),
        }
        place = f"{state}.{number}"
        known = self._known.get(place)
        answer = await fetch(self._issues, query, self._headers(known.tag if known is not None else None))
        if answer.status == HTTPStatus.NOT_MODIFIED and known is not None:
            return known
        page = self._read(answer)
        self._known[place] = page
        return page

    def _headers(self, tag: str | None) -> dict[str, str]:
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if tag:
            headers["If-None-Match"] = tag
        file = self._spec.token_file
        if file is not None:
            try:
                token = Path(file).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise SourceAway(f"token_file {file} cannot be read: {error.strerror}") from error
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _read(self, answer: Fetched) -> _Page:
        try:
            listed = msgspec.json.decode(answer.body, type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise SourceAway(f"{self._issues} answered with no list of issues") from error
        wishes = [wish for one in listed if (wish := self._wish(one)) is not None]
        return _Page(answer.headers.get("etag", ""), wishes, len(listed) == PER_PAGE)

    def _wish(self, raw: msgspec.Raw) -> Wish | None:
        try:
            issue = msgspec.json.decode(raw, type=_Issue)
        except msgspec.MsgspecError as error:
            mark = hashlib.sha256(bytes(raw)).hexdigest()[:16]
            return Wish(f"unreadable:{mark}", None, f"an issue cannot be read: {error}")
        if issue.pull_request is not None:
            return None
        key, over = f"{self._spec.repository}#{issue.number}", issue.state != "open"
        try:
            return Wish(key, self._task(issue), over=over)
        except ValidationFailed as error:
            return Wish(key, None, error.message, over=over)

    def _task(self, issue: _Issue) -> TaskCreate:
        goal = f"{issue.title}\n\n{(issue.body or '')[:BODY_CHARS_MAX]}".replace("\0", "").strip()
        given: dict[str, object] = {
            "goal": goal,
            "metadata": {"issue": str(issue.number), "url": issue.html_url[:4096]},
        }
        if self._spec.workspace is not None:
            given["workspace"] = self._spec.workspace
        return read_body(TaskCreate, given)
