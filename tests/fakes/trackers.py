"""Stand-ins for GitHub's issues and for Linear over real HTTP: as much of their documented contracts as sources lean on.

Invariant: what the real one refuses is refused (a wrong secret, a filter or a page that it does not know), and an answer
has the fields that were asked for and no others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

SECRET = "a-secret-of-the-tracker"
LABEL = "perdure"

Fields = dict[str, Any]


class Tracker(Protocol):
    """What a test does with one, whichever it is. Issues are numbered; `wrong` fields are sent as they are given."""

    app: Starlette
    asked: int
    broken: Response | None

    def put(
        self, number: int, *, title: str = "", text: str = "As it says.", wrong: Fields | None = None
    ) -> None:
        """A new issue with the label, or what became of one."""
        ...

    def end(self, number: int) -> None: ...

    def unlabel(self, number: int) -> None: ...

    def spec(self, url: str) -> Fields:
        """How a source of it is configured."""
        ...

    def number_of(self, issue: str) -> int:
        """From how people name an issue."""
        ...


class FakeGitHub:
    """A repository's issues: filtered, paged and tagged; only with the token."""

    def __init__(self) -> None:
        self.issues: list[Fields] = []
        self.asked = 0
        self.unchanged = 0
        self.broken: Response | None = None
        self.app = Starlette(
            routes=[
                Route("/repos/acme/shop/issues", self._list),
                Route("/repos/acme/shop/issues/{number:int}", self._show),
            ]
        )

    def put(
        self, number: int, *, title: str = "", text: str = "As it says.", wrong: Fields | None = None
    ) -> None:
        issue = {
            "number": number,
            "title": title or f"Issue {number}",
            "body": text,
            "state": "open",
            "html_url": f"https://github.example/acme/shop/issues/{number}",
            "labels": [{"name": "bug"}, {"name": "Perdure"}],
            **(wrong or {}),
        }
        self.issues = [issue, *(one for one in self.issues if one["number"] != number)]

    def end(self, number: int) -> None:
        self._issue(number)["state"] = "closed"

    def unlabel(self, number: int) -> None:
        self._issue(number)["labels"] = ["bug"]

    def spec(self, url: str) -> Fields:
        return {"kind": "github", "repository": "acme/shop", "url": url}

    def number_of(self, issue: str) -> int:
        return int(issue)

    def _issue(self, number: int) -> Fields:
        return next(one for one in self.issues if one["number"] == number)

    def _refused(self, request: Request) -> Response | None:
        self.asked += 1
        if self.broken is not None:
            return self.broken
        known = request.headers.get("authorization") == f"Bearer {SECRET}"
        return None if known else Response(status_code=401)

    async def _list(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        query = request.query_params
        found = [
            one
            for one in self.issues
            if one["state"] == query["state"] and query["labels"].lower() in _names(one["labels"])
        ]
        size, page = int(query["per_page"]), int(query["page"])
        body = json.dumps(found[size * (page - 1) : size * page]).encode()
        tag = f'W/"{hashlib.sha256(body).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            self.unchanged += 1
            return Response(status_code=304, headers={"ETag": tag})
        return Response(body, media_type="application/json", headers={"ETag": tag})

    async def _show(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        number = request.path_params["number"]
        found = next((one for one in self.issues if one["number"] == number), None)
        return JSONResponse(found) if found is not None else JSONResponse({}, status_code=404)


def _names(labels: list[Any]) -> set[str]:
    return {(one if isinstance(one, str) else one["name"]).lower() for one in labels}


# A field and how its argument is compared, as the schema has it.
_FILTERS: dict[str, Callable[[Fields, Fields], bool]] = {
    "id": lambda issue, by: issue["id"] in by["in"],
    "labels": lambda issue, by: by["some"]["name"]["eq"] in issue["labels"],
    "state": lambda issue, by: issue["state"] is not None and issue["state"]["type"] in by["type"]["in"],
    "team": lambda issue, by: issue["team"] == by["key"]["eq"],
    "updatedAt": lambda issue, by: issue["updatedAt"] >= by["gte"],
}
_LINEAR_PAGE_MAX = 250


class FakeLinear:
    """A workspace's issues behind one GraphQL address; only with the key, which is sent as it is."""

    def __init__(self) -> None:
        self.issues: dict[int, Fields] = {}
        self.asked = 0
        self.sent = 0
        self.broken: Response | None = None
        self._changes = 0
        self.app = Starlette(routes=[Route("/graphql", self._query, methods=["POST"])])

    def put(
        self, number: int, *, title: str = "", text: str = "As it says.", wrong: Fields | None = None
    ) -> None:
        self.issues[number] = {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "identifier": f"ENG-{number}",
            "title": title or f"Issue {number}",
            "description": text,
            "url": f"https://linear.example/acme/issue/ENG-{number}",
            "state": {"type": "unstarted"},
            "labels": [LABEL],
            "team": "ENG",
            "archivedAt": None,
            "trashed": None,
            **(wrong or {}),
        }
        self._changed(number)

    def end(self, number: int) -> None:
        self.issues[number]["state"] = {"type": "completed"}
        self._changed(number)

    def unlabel(self, number: int) -> None:
        self.issues[number]["labels"] = ["bug"]
        self._changed(number)

    def spec(self, url: str) -> Fields:
        return {"kind": "linear", "url": f"{url}/graphql", "team": "ENG"}

    def number_of(self, issue: str) -> int:
        return int(issue.removeprefix("ENG-"))

    def _changed(self, number: int) -> None:
        # An hour each: what changed is told from what did not by more than any overlap.
        self._changes += 1
        day, hour = divmod(self._changes, 24)
        self.issues[number]["updatedAt"] = (
            f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}T{hour:02d}:00:00.000Z"
        )

    async def _query(self, request: Request) -> Response:
        self.asked += 1
        if self.broken is not None:
            return self.broken
        if request.headers.get("authorization") != SECRET:
            return _errors(401, "AUTHENTICATION_ERROR")
        asked = await request.json()
        query, variables = asked["query"], asked["variables"]
        fields = re.findall(
            r"(?:(\w+): )?issues\(filter: \$(\w+), first: \$first([^)]*)\) \{\s*nodes \{([^{}]*(?:\{[^{}]*\}[^{}]*)?)\}",
            query,
        )
        if not fields or variables["first"] > _LINEAR_PAGE_MAX:
            return _errors(400, "GRAPHQL_VALIDATION_FAILED")
        data: Fields = {}
        for alias, by, more, selected in fields:
            if not variables[by].keys() <= _FILTERS.keys():
                return _errors(400, "GRAPHQL_VALIDATION_FAILED")
            archived = "includeArchived: true" in more
            page = self._page(variables[by], variables["first"], variables.get("after"), archived=archived)
            names = re.sub(r"\{[^}]*\}", "", selected).split()
            page["nodes"] = [{name: one[name] for name in names} for one in page["nodes"]]
            data[alias or "issues"] = page
        return JSONResponse({"data": data})

    def _page(self, by: Fields, first: int, after: str | None, *, archived: bool) -> Fields:
        found = [
            issue
            for issue in self.issues.values()
            if all(_FILTERS[name](issue, wanted) for name, wanted in by.items())
            and (archived or issue["archivedAt"] is None)
        ]
        found.sort(key=lambda issue: issue["updatedAt"], reverse=True)
        start = int(after) if after else 0
        nodes = found[start : start + first]
        self.sent += len(nodes)
        end = start + len(nodes)
        return {"nodes": nodes, "pageInfo": {"hasNextPage": end < len(found), "endCursor": str(end)}}


def _errors(status: int, code: str) -> Response:
    return JSONResponse(
        {"errors": [{"message": f"it knows {SECRET}", "extensions": {"code": code}}]}, status_code=status
    )


def rate_limited(reset_ms: int) -> Response:
    """What Linear answers over its limit: 400, not 429."""
    return JSONResponse(
        {"errors": [{"message": "Rate limit exceeded", "extensions": {"code": "RATELIMITED"}}]},
        status_code=400,
        headers={"X-RateLimit-Requests-Remaining": "0", "X-RateLimit-Requests-Reset": str(reset_ms)},
    )
