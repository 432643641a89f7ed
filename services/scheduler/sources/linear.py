"""Issues of Linear: one that waits or is worked on, and has the label, is a task; it is over once it is completed, canceled,
archived or thrown away, or has lost the label.

Invariant: as for GitHub: an answer with errors, a limit, or anything that cannot be read changes nothing, and what is
missing from an answer ends nothing. Nothing is written to the tracker.

Source: the pages of linear.app/developers (filtering, pagination, rate limiting) and the published schema. A personal key
is sent as it is, without `Bearer`; a limit is answered with 400 and the code `RATELIMITED`.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple, TypeVar

import msgspec

from libs.contracts.clock import Clock, parse_rfc3339, rfc3339
from services.scheduler.sources.configuration import LinearSource
from services.scheduler.sources.fetch import Fetched, post, refused
from services.scheduler.sources.tracker import (
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

# The kinds of states in which an issue is wanted. One in triage was not taken in by its team yet.
OPEN = ("backlog", "unstarted", "started")
OVER = frozenset({"completed", "canceled", "duplicate"})
# Between looks at everything one asks only for what has changed since the newest change that was seen, and a little more:
# changes are not seen in the order of their times.
WHOLE_S = 600.0
OVERLAP = timedelta(seconds=60)

_WANTED = """
query Wanted($filter: IssueFilter!, $first: Int!, $after: String) {
  issues(filter: $filter, first: $first, after: $after, orderBy: updatedAt) {
    nodes { id identifier title description url updatedAt trashed }
    pageInfo { hasNextPage endCursor }
  }
}
"""
# Which of the issues have the label is asked beside, since an issue's own list of labels has pages.
_STANDING = """
query Standing($these: IssueFilter!, $labelled: IssueFilter!, $first: Int!) {
  these: issues(filter: $these, first: $first, includeArchived: true) {
    nodes { id archivedAt trashed state { type } }
  }
  labelled: issues(filter: $labelled, first: $first, includeArchived: true) { nodes { id } }
}
"""
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CODE = re.compile(rb'"code"\s*:\s*"([A-Z_]{1,40})"')

_THROWN_AWAY = "the issue was archived or thrown away"

_T = TypeVar("_T")


class _Issue(msgspec.Struct, frozen=True, rename="camel"):
    """What a wanted issue says of itself."""

    id: str
    identifier: str
    title: str
    url: str
    updated_at: str
    description: str | None = None
    trashed: bool | None = None


class _State(msgspec.Struct, frozen=True):
    type: str


class _Standing(msgspec.Struct, frozen=True, rename="camel"):
    """How an issue stands whose run goes on."""

    id: str
    state: _State
    archived_at: str | None = None
    trashed: bool | None = None


class _Id(msgspec.Struct, frozen=True):
    id: str


class _PageInfo(msgspec.Struct, frozen=True, rename="camel"):
    has_next_page: bool
    end_cursor: str | None = None


class _Nodes(msgspec.Struct, frozen=True, rename="camel"):
    nodes: list[msgspec.Raw]
    page_info: _PageInfo | None = None


class _WantedData(msgspec.Struct, frozen=True):
    issues: _Nodes


class _StandingData(msgspec.Struct, frozen=True):
    these: _Nodes
    labelled: _Nodes


class _Answer(msgspec.Struct, frozen=True):
    data: msgspec.Raw = msgspec.Raw(b"null")
    errors: list[msgspec.Raw] | None = None


class _Seen(NamedTuple):
    """When everything was looked at last, and the newest change that was seen since."""

    whole_at_s: float
    newest: datetime | None


class Linear:
    """What one key of a workspace may see, or one team of it. `Source`; `key` is used without a `token_file`."""

    def __init__(self, name: str, spec: LinearSource, key: str, clock: Clock) -> None:
        self.name, self.tenant, self.every_s = name, spec.tenant, spec.every_s
        self._spec, self._key, self._clock = spec, key, clock
        self._seen = _Seen(float("-inf"), None)
        self._turns = Turns(PER_PAGE * PAGES_MAX)

    async def look(self, going: Collection[str], *, afresh: bool) -> list[Wish]:
        now_s, (whole_at_s, newest) = self._clock.monotonic(), self._seen
        since = newest if not afresh and now_s - whole_at_s < WHOLE_S else None
        found: list[Wish] = []
        async for issue in self._wanted(since):
            if isinstance(issue, Wish):
                found.append(issue)
            else:
                found.append(self._wish(issue))
                newest = _later(newest, issue.updated_at)
        listed = {wish.key for wish in found}
        asked = self._turns.take([key for key in going if key not in listed and _ID.fullmatch(key)])
        for start in range(0, len(asked), PER_PAGE):
            found += await self._standing(asked[start : start + PER_PAGE])
        # Only now: a look that was cut short is made again as it was.
        self._seen = _Seen(now_s if since is None else whole_at_s, newest)
        return found

    async def tell(self, key: str, outcome: Outcome) -> None:
        """The tracker is people's; they see the run."""

    async def _wanted(self, since: datetime | None) -> AsyncIterator[_Issue | Wish]:
        wanted: dict[str, object] = {**self._labelled(), "state": {"type": {"in": OPEN}}}
        if self._spec.team is not None:
            wanted["team"] = {"key": {"eq": self._spec.team}}
        if since is not None:
            wanted["updatedAt"] = {"gte": rfc3339(since - OVERLAP)}
        after: str | None = None
        for _ in range(PAGES_MAX):
            variables = {"filter": wanted, "first": PER_PAGE, "after": after}
            page = (await self._ask(_WANTED, variables, _WantedData)).issues
            for raw in page.nodes:
                yield read(raw, _Issue)
            after = page.page_info.end_cursor if page.page_info and page.page_info.has_next_page else None
            if after is None:
                return

    async def _standing(self, ids: list[str]) -> list[Wish]:
        """Which of these issues are over, and which say nothing."""
        these: dict[str, object] = {"id": {"in": ids}}
        variables = {"these": these, "labelled": {**these, **self._labelled()}, "first": PER_PAGE}
        answer = await self._ask(_STANDING, variables, _StandingData)
        labelled = {one.id for one in _readable(answer.labelled, _Id)}
        known = {one.id: one for one in _readable(answer.these, _Standing)}
        found: list[Wish] = []
        for key in ids:
            issue = known.get(key)
            if issue is None:
                found.append(Wish(key, None, "its issue cannot be seen or read any more"))
            elif reason := _why_over(issue):
                found.append(Wish(key, None, reason, over=True))
            elif key not in labelled:
                found.append(unlabelled(key, self._spec.label))
        return found

    def _labelled(self) -> dict[str, object]:
        return {"labels": {"some": {"name": {"eq": self._spec.label}}}}

    def _wish(self, issue: _Issue) -> Wish:
        if issue.trashed:
            return Wish(issue.id, None, _THROWN_AWAY, over=True)
        said = Said(issue.identifier, issue.url, issue.title, issue.description)
        return wished(issue.id, said, self._spec.workspace, self._spec.label)

    async def _ask(self, query: str, variables: Mapping[str, object], into: type[_T]) -> _T:
        """The data of an answer without errors. Raises `SourceAway`."""
        file, url = self._spec.token_file, self._spec.url
        secret = secret_in(file) if file is not None else self._key
        question = msgspec.json.encode({"query": query, "variables": variables})
        fetched = await post(url, question, {"Accept": "application/json", "Authorization": secret})
        if fetched.status != HTTPStatus.OK:
            raise self._refused(fetched)
        try:
            answer = msgspec.json.decode(fetched.body, type=_Answer)
            if answer.errors:
                raise self._refused(fetched)
            return msgspec.json.decode(answer.data, type=into)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SourceAway(f"{url} answered with something else than issues") from error

    def _refused(self, fetched: Fetched) -> SourceAway:
        code = _CODE.search(fetched.body)
        return refused(
            self._spec.url, fetched, self._clock.now(), code[1].decode() if code else "with errors"
        )


def _why_over(issue: _Standing) -> str:
    """Empty for one that is not, as far as it says itself."""
    if issue.state.type in OVER:
        return f"the issue is {issue.state.type}"
    return _THROWN_AWAY if issue.archived_at is not None or issue.trashed else ""


def _readable(nodes: _Nodes, into: type[_T]) -> Iterator[_T]:
    for raw in nodes.nodes:
        issue = read(raw, into)
        if not isinstance(issue, Wish):
            yield issue


def _later(newest: datetime | None, said: str) -> datetime | None:
    try:
        at = parse_rfc3339(said)
    except ValueError:
        return newest
    return at if newest is None else max(newest, at)
