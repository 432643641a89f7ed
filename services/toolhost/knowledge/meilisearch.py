"""An index of words on a Meilisearch server. The only importer of `meilisearch`.

Invariant: every question carries the filter of its tenant, which the server refuses until the attribute is filterable,
so an index that is not set up answers nobody instead of everybody; a change is over when the server has carried it out.
"""

from collections.abc import AsyncGenerator, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import msgspec
from meilisearch import Client
from meilisearch.errors import MeilisearchApiError, MeilisearchError
from meilisearch.index import Index
from meilisearch.models.task import TaskInfo

from services.toolhost.errors import KnowledgeFault, KnowledgeMissing
from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.ports import Entry, Held
from services.toolhost.knowledge.threads import Threads

# One request; the thread that waits for it is free again after that.
_TIMEOUT_S = 5
# What the server does with a batch it does behind others' work.
_TASK_TIMEOUT_S = 120
_PAGE = 1_000
# Of these requests: there is no such index.
_MISSING = 404
_SETTINGS = {
    # The order is the order of importance.
    "searchableAttributes": ["title", "path", "text"],
    "filterableAttributes": ["tenant", "id"],
}


class MeilisearchSettings(NamedTuple):
    url: str
    api_key: str
    uid: str


class _Place(msgspec.Struct, frozen=True):
    id: str
    path: str
    first_line: int


class MeilisearchLexical:
    """All tenants' chunks in one index of the server."""

    name = "meilisearch"

    def __init__(self, settings: MeilisearchSettings) -> None:
        self._settings = settings
        self._threads = Threads(self.name)

    async def held(self, tenant: str) -> dict[str, Held]:
        return await self._threads.run(self._held, tenant)

    @asynccontextmanager
    async def changing(self, tenant: str) -> AsyncGenerator["_Change"]:
        await self._threads.run(self._set_up)
        yield _Change(self, tenant)

    async def search(self, tenant: str, query: str, limit: int) -> list[Chunk]:
        return await self._threads.run(self._search, tenant, query, limit)

    async def close(self) -> None:
        self._threads.close()

    async def put(self, chunks: Sequence[Chunk]) -> None:
        await self._threads.run(self._put, chunks)

    async def drop(self, tenant: str, ids: Collection[str]) -> None:
        await self._threads.run(self._drop, tenant, ids)

    def _index(self) -> Index:
        """A client of its own for each call: it keeps the headers of its last request, so threads cannot share one."""
        settings = self._settings
        return Client(settings.url, settings.api_key or None, timeout=_TIMEOUT_S).index(settings.uid)

    def _set_up(self) -> None:
        with self._told():
            # Makes the index where there is none; where there is one with these settings, it costs the server nothing.
            self._settle(self._index().update_settings(_SETTINGS))

    def _held(self, tenant: str) -> dict[str, Held]:
        held: dict[str, Held] = {}
        with self._told():
            while True:
                page: dict[str, object] = {
                    "offset": len(held),
                    "limit": _PAGE,
                    "fields": list(_Place.__struct_fields__),
                }
                try:
                    found = self._index().get_documents({**page, "filter": _only(tenant)})
                except MeilisearchApiError as error:
                    if error.status_code == _MISSING:
                        return {}
                    raise
                for document in found.results:
                    place = msgspec.convert(dict(document), _Place)
                    held[place.id] = Held(place.path, place.first_line)
                if not found.results:
                    return held

    def _search(self, tenant: str, query: str, limit: int) -> list[Chunk]:
        with self._told():
            try:
                found = self._index().search(query, {"filter": _only(tenant), "limit": limit})
            except MeilisearchApiError as error:
                if error.status_code == _MISSING:
                    raise KnowledgeMissing("nothing is indexed yet: perdure knowledge index DIR") from error
                raise
            return msgspec.convert(found.get("hits"), list[Chunk])

    def _put(self, chunks: Sequence[Chunk]) -> None:
        documents: list[Mapping[str, object]] = [msgspec.structs.asdict(chunk) for chunk in chunks]
        with self._told():
            self._settle(self._index().add_documents(documents, primary_key="id"))

    def _drop(self, tenant: str, ids: Collection[str]) -> None:
        chosen = f"{_only(tenant)} AND id IN {msgspec.json.encode(list(ids)).decode()}"
        with self._told():
            self._settle(self._index().delete_documents(filter=chosen))

    def _settle(self, task: TaskInfo) -> None:
        done = self._index().wait_for_task(task.task_uid, _TASK_TIMEOUT_S * 1000, 20)
        if done.status != "succeeded":
            told = (done.error or {}).get("message", "")
            raise KnowledgeFault(f"Meilisearch did not carry out a change: {done.status} {told}; index again")

    @contextmanager
    def _told(self) -> Generator[None]:
        """What the client raises, as a fault that says what to do. `requests` has its errors below `OSError`, and what is
        no JSON of the server's is a `ValueError`."""
        try:
            yield
        except (MeilisearchError, OSError, ValueError, LookupError, msgspec.ValidationError) as error:
            told = error.message if isinstance(error, MeilisearchError) else str(error)
            raise KnowledgeFault(
                f"Meilisearch cannot be used: {' '.join(told.split())[:300]}; see that it runs, MEILISEARCH_URL and MEILISEARCH_API_KEY"
            ) from error


class _Change(NamedTuple):
    server: MeilisearchLexical
    tenant: str

    async def put(self, entries: Sequence[Entry]) -> None:
        await self.server.put([entry.chunk for entry in entries])

    async def drop(self, ids: Collection[str]) -> None:
        await self.server.drop(self.tenant, ids)


def _only(tenant: str) -> str:
    """The filter, with the tenant as a JSON string: quotes and backslashes are escaped alike there."""
    return f"tenant = {msgspec.json.encode(tenant).decode()}"
