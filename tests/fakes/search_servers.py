"""Stand-ins for a Meilisearch and a Qdrant server over real HTTP: as much of their contracts as Perdure leans on.

Invariant: what the real server refuses is refused (a filter by what is not filterable, a missing index, a vector of
another length), and a question that does not name a tenant is remembered in `unfiltered`. Qdrant's answers are those of
its client's own local mode.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from qdrant_client import QdrantClient, models
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from libs.chassis.clock import SystemClock
from services.gateway.server import listen, serve_until

Fields = dict[str, Any]
_DONE = {"operation_id": 1, "status": "completed"}
_TENANT_FILTER = re.compile(r'tenant = ("(?:[^"\\]|\\.)*")')


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[str]:
    """The address of the app while the context lasts."""
    bound, stop = listen("127.0.0.1", 0), asyncio.Event()
    with bound:
        serving = asyncio.create_task(serve_until(stop, app, bound, SystemClock()))
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            stop.set()
            await serving


class FakeMeilisearch:
    """One index at most; tasks are carried out at once."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.documents: dict[str, Fields] | None = None
        self.filterable: list[str] = []
        self.unfiltered: list[str] = []
        self.broken = False
        self._tasks = 0
        self.app = Starlette(
            routes=[
                Route("/indexes/{uid}/settings", self._settings, methods=["PATCH"]),
                Route("/indexes/{uid}/documents", self._add, methods=["POST"]),
                Route("/indexes/{uid}/documents/delete", self._delete, methods=["POST"]),
                Route("/indexes/{uid}/documents/fetch", self._fetch, methods=["POST"]),
                Route("/indexes/{uid}/search", self._search, methods=["POST"]),
                Route("/tasks/{task:int}", self._task),
            ]
        )

    async def _settings(self, request: Request) -> Response:
        self.documents = self.documents or {}
        self.filterable = (await request.json())["filterableAttributes"]
        return self._accepted(request)

    async def _add(self, request: Request) -> Response:
        for document in await request.json():
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,511}", document["id"])
            assert self.documents is not None
            self.documents[document["id"]] = document
        return self._accepted(request)

    async def _delete(self, request: Request) -> Response:
        chosen, _, ids = (await request.json())["filter"].partition(" AND id IN ")
        assert "id" in self.filterable
        found = self._chosen(request, {"filter": chosen})
        if isinstance(found, Response):
            return found
        for one in found:
            if one["id"] in json.loads(ids):
                assert self.documents is not None
                self.documents.pop(one["id"])
        return self._accepted(request)

    async def _fetch(self, request: Request) -> Response:
        asked = await request.json()
        chosen = self._chosen(request, asked)
        if isinstance(chosen, Response):
            return chosen
        page = chosen[asked["offset"] :][
            : min(asked["limit"], 3)
        ]  # A server may give fewer than it was asked for.
        results = [{name: one[name] for name in asked["fields"]} for one in page]
        return JSONResponse(
            {"results": results, "total": len(chosen), **{k: asked[k] for k in ("offset", "limit")}}
        )

    async def _search(self, request: Request) -> Response:
        asked = await request.json()
        chosen = self._chosen(request, asked)
        if isinstance(chosen, Response):
            return chosen
        words = asked["q"].lower().split()
        ranked = sorted(chosen, key=lambda one: -sum(word in json.dumps(one).lower() for word in words))
        hits = [one for one in ranked if any(word in json.dumps(one).lower() for word in words)]
        return JSONResponse({"hits": hits[: asked["limit"]], "query": asked["q"]})

    async def _task(self, request: Request) -> Response:
        at = "2026-01-01T00:00:00.5Z"
        task = {"uid": request.path_params["task"], "status": "succeeded", "type": "x", "enqueuedAt": at}
        return JSONResponse(task)

    def _chosen(self, request: Request, asked: Fields) -> list[Fields] | Response:
        """The documents that the filter of the question leaves."""
        if self.broken:
            return JSONResponse({"message": "out of order", "code": "internal"}, 500)
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse(
                {"message": "The provided API key is invalid.", "code": "invalid_api_key"}, 403
            )
        if self.documents is None:
            return JSONResponse({"message": "Index not found.", "code": "index_not_found"}, 404)
        wanted = _TENANT_FILTER.fullmatch(asked.get("filter") or "")
        if wanted is None:
            self.unfiltered.append(request.url.path)
            return list(self.documents.values())
        if "tenant" not in self.filterable:
            return JSONResponse({"message": "not filterable", "code": "invalid_search_filter"}, 400)
        return [one for one in self.documents.values() if one["tenant"] == json.loads(wanted[1])]

    def _accepted(self, request: Request) -> Response:
        self._tasks += 1
        task = {
            "taskUid": self._tasks,
            "indexUid": request.path_params["uid"],
            "status": "enqueued",
            "type": "x",
        }
        return JSONResponse({**task, "enqueuedAt": "2026-01-01T00:00:00.5Z"}, 202)


class FakeQdrant:
    """The vendor's local mode behind the server's paths."""

    def __init__(self) -> None:
        self.local = QdrantClient(":memory:")
        self.unfiltered: list[str] = []
        self.broken = False
        self.app = Starlette(
            routes=[Route("/{path:path}", self._answer, methods=["GET", "POST", "PUT", "DELETE"])]
        )

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        _, _, name, *rest = request.url.path.split("/")
        if self.broken:
            return JSONResponse({"status": {"error": "out of order"}}, 503)
        if rest and rest[0] == "points" and not self.local.collection_exists(name):
            return JSONResponse({"status": {"error": f"Collection `{name}` doesn't exist!"}}, 404)
        try:
            result = self._carry_out(request.method, name, "/".join(rest), json.loads(body or b"{}"))
        except ValueError as error:
            return JSONResponse({"status": {"error": f"Wrong input: {error}"}}, 400)
        return JSONResponse({"result": result, "status": "ok", "time": 0.0})

    def _carry_out(self, method: str, name: str, rest: str, asked: Fields) -> object:
        local = self.local
        match method, rest:
            case "GET", "exists":
                return {"exists": local.collection_exists(name)}
            case "DELETE", "":
                return local.delete_collection(name)
            case "PUT", "":
                vectors = models.VectorParams.model_validate(asked["vectors"])
                return local.create_collection(name, vectors_config=vectors)
            case "PUT", "index":
                assert asked["field_schema"] == {"type": "keyword", "is_tenant": True}
            case "PUT", "points":
                local.upsert(name, [models.PointStruct.model_validate(point) for point in asked["points"]])
            case "POST", "points":
                return [one.model_dump() for one in local.retrieve(name, asked["ids"])]
            case "POST", "points/count":
                return local.count(name).model_dump()
            case "POST", "points/delete":
                local.delete(name, models.PointIdsList(points=asked["points"]))
            case "POST", "points/batch":
                for operation in asked["operations"]:
                    changed = operation["overwrite_payload"]
                    local.overwrite_payload(name, changed["payload"], changed["points"])
                return [_DONE] * len(asked["operations"])
            case "POST", "points/scroll":
                points, following = local.scroll(
                    name,
                    scroll_filter=self._filter(rest, asked),
                    limit=min(asked["limit"], 3),  # A server may give fewer than it was asked for.
                    offset=asked.get("offset"),
                    with_payload=asked["with_payload"],
                )
                return {"points": [one.model_dump() for one in points], "next_page_offset": following}
            case "POST", "points/query":
                found = local.query_points(
                    name,
                    query=asked["query"]["nearest"],
                    query_filter=self._filter(rest, asked),
                    limit=asked["limit"],
                )
                return found.model_dump()
            case _:
                raise AssertionError(f"{method} {rest} is not of the contract")
        return _DONE

    def _filter(self, path: str, asked: Fields) -> models.Filter | None:
        if "tenant" not in json.dumps(asked.get("filter")):
            self.unfiltered.append(path)
            return None
        return models.Filter.model_validate(asked["filter"])
