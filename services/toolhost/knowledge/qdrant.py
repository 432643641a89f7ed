"""An index of vectors on a Qdrant server. The only importer of `qdrant_client`.

Invariant: every question carries the filter of its tenant; the collection names the model it was made with in a point
of its own, which belongs to no tenant; a change is over when the server has carried it out.
"""

from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import httpx
import msgspec
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

from services.toolhost.errors import KnowledgeFault, KnowledgeMissing
from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.ports import Entry, Held, MadeWith, Vector

_TIMEOUT_S = 5
_PAGE = 1_000
# The point that says what the collection was made with.
_ABOUT = "00000000-0000-0000-0000-000000000001"
_ABOUT_TENANT = ""


class QdrantSettings(NamedTuple):
    url: str
    api_key: str
    collection: str


class _Place(msgspec.Struct, frozen=True):
    path: str
    first_line: int


class QdrantSemantic:
    """All tenants' vectors in one collection of the server."""

    name = "qdrant"

    def __init__(self, settings: QdrantSettings) -> None:
        self._collection = settings.collection
        # Its check of versions would ask the server before anybody waits for an answer.
        self._client = AsyncQdrantClient(
            url=settings.url, api_key=settings.api_key or None, timeout=_TIMEOUT_S, check_compatibility=False
        )

    async def made_with(self, tenant: str) -> MadeWith | None:
        del tenant  # One model for all of them: the collection has one length of vectors.
        with _told():
            if not await self._client.collection_exists(self._collection):
                return None
            found = await self._client.retrieve(self._collection, [_ABOUT], with_payload=True)
            return msgspec.convert(found[0].payload, MadeWith) if found else None

    async def begin(self, tenant: str, made: MadeWith) -> None:
        known = await self.made_with(tenant)
        with _told():
            if await self._client.collection_exists(self._collection):
                if known is None and (await self._client.count(self._collection)).count:
                    raise KnowledgeFault(
                        f"the collection {self._collection} on the Qdrant server is not an index of Perdure; rename it, or set "
                        "another PERDURE_PREFIX"
                    )
                await self._client.delete_collection(self._collection)
            await self._client.create_collection(
                self._collection,
                vectors_config=models.VectorParams(size=made.dimension, distance=models.Distance.COSINE),
            )
            await self._client.create_payload_index(
                self._collection,
                "tenant",
                field_schema=models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
            )
            payload = {"tenant": _ABOUT_TENANT, **msgspec.structs.asdict(made)}
            about = models.PointStruct(id=_ABOUT, vector=[1.0] * made.dimension, payload=payload)
            await self._client.upsert(self._collection, [about], wait=True)

    async def held(self, tenant: str) -> dict[str, Held]:
        held: dict[str, Held] = {}
        if await self.made_with(tenant) is None:
            return held
        offset: models.ExtendedPointId | None = None
        with _told():
            while True:
                points, following = await self._client.scroll(
                    self._collection,
                    scroll_filter=_only(tenant),
                    limit=_PAGE,
                    offset=offset,
                    with_payload=list(_Place.__struct_fields__),
                )
                for point in points:
                    place = msgspec.convert(point.payload, _Place)
                    held[str(point.id)] = Held(place.path, place.first_line)
                if following is None:
                    return held
                assert isinstance(following, int | str)
                offset = following

    @asynccontextmanager
    async def changing(self, tenant: str) -> AsyncGenerator["_Change"]:
        del tenant  # A chunk's id is of its tenant already.
        yield _Change(self._client, self._collection)

    async def search(self, tenant: str, vector: Vector, limit: int) -> list[Chunk]:
        with _told():
            try:
                found = await self._client.query_points(
                    self._collection,
                    query=list(vector),
                    query_filter=_only(tenant),
                    limit=limit,
                    with_payload=True,
                )
            except UnexpectedResponse as error:
                if error.status_code == 404:
                    raise KnowledgeMissing("there are no vectors yet: perdure knowledge index DIR") from error
                raise
            return [msgspec.convert(point.payload, Chunk) for point in found.points]

    async def close(self) -> None:
        await self._client.close()


class _Change(NamedTuple):
    client: AsyncQdrantClient
    collection: str

    async def put(self, entries: Sequence[Entry]) -> None:
        new = [
            models.PointStruct(id=chunk.id, vector=list(vector), payload=msgspec.structs.asdict(chunk))
            for chunk, vector in entries
            if vector is not None
        ]
        moved: list[models.UpdateOperation] = [
            models.OverwritePayloadOperation(
                overwrite_payload=models.SetPayload(payload=msgspec.structs.asdict(chunk), points=[chunk.id])
            )
            for chunk, vector in entries
            if vector is None
        ]
        with _told():
            if new:
                await self.client.upsert(self.collection, new, wait=True)
            if moved:
                await self.client.batch_update_points(self.collection, moved, wait=True)

    async def drop(self, ids: Collection[str]) -> None:
        with _told():
            gone = models.PointIdsList(points=list(ids))
            await self.client.delete(self.collection, gone, wait=True)


def _only(tenant: str) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key="tenant", match=models.MatchValue(value=tenant))])


@contextmanager
def _told() -> Generator[None]:
    """What the client raises, as a fault that says what to do."""
    try:
        yield
    except (ApiException, QdrantException, httpx.HTTPError, ValueError, msgspec.ValidationError) as error:
        said = getattr(error, "source", None) or error
        raise KnowledgeFault(
            f"Qdrant cannot be used: {' '.join(str(said).split())[:300]}; see that it runs, QDRANT_URL and QDRANT_API_KEY"
        ) from error
