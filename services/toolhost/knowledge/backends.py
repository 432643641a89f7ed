"""Which indexes and which model the settings name; the composition of this folder.

Invariant: a client library is imported when it is first used, and in a thread: some take seconds, and a tool host that
nobody asks needs none of them.
"""

import asyncio
from pathlib import Path
from typing import NamedTuple

from services.toolhost.errors import KnowledgeFault
from services.toolhost.knowledge.places import is_indexed
from services.toolhost.knowledge.ports import Embedder, Lexical, Semantic
from services.toolhost.knowledge.search import Answer, Legs, search

# A model of this machine: `onnx:<folder>`; any other name is one of the endpoint.
ONNX = "onnx:"
# Where a key belongs that comes without an address, as for the chat model.
_DEFAULT_URL = "https://api.openai.com/v1"


class KnowledgeSettings(NamedTuple):
    """Empty: not set. `root` is the folder of embedded indexes; `name` that of the index on servers."""

    root: Path
    name: str
    meilisearch_url: str = ""
    meilisearch_key: str = ""
    qdrant_url: str = ""
    qdrant_key: str = ""
    embed_model: str = ""
    embed_url: str = ""
    embed_key: str = ""


class Knowledge:
    """The indexes of a process, opened when they are first needed, until `close`."""

    def __init__(self, settings: KnowledgeSettings) -> None:
        self.settings = settings
        self._opening = asyncio.Lock()
        self._legs: Legs | None = None

    @property
    def offered(self) -> bool:
        """Whether there is anything to search: servers, or an embedded index, which may appear at any time."""
        settings = self.settings
        return bool(settings.meilisearch_url or settings.qdrant_url) or is_indexed(settings.root)

    async def search(self, tenant: str, query: str, limit: int) -> Answer:
        """See `search.search`."""
        return await search(await self.legs(), tenant, query, limit)

    async def legs(self) -> Legs:
        """Both indexes and the model. Raises `KnowledgeFault` if a library is not installed."""
        async with self._opening:
            if self._legs is None:
                self._legs = await asyncio.to_thread(_opened, self.settings)
            return self._legs

    async def close(self) -> None:
        if self._legs is not None:
            await self._legs.lexical.close()
            await self._legs.semantic.close()
            if self._legs.embedder is not None:
                await self._legs.embedder.close()


def _opened(settings: KnowledgeSettings) -> Legs:
    try:
        lexical, semantic = _lexical(settings), _semantic(settings)
    except ImportError as error:
        raise KnowledgeFault(
            f"{error.name} is not installed here: pip install 'perdure[knowledge]'"
        ) from error
    try:
        return Legs(lexical, semantic, _embedder(settings))
    except ImportError as error:
        return Legs(
            lexical, semantic, None, f"words only: {error.name} is not installed: pip install 'perdure[onnx]'"
        )
    except KnowledgeFault as fault:
        return Legs(lexical, semantic, None, f"words only: {fault.message}")


def _lexical(settings: KnowledgeSettings) -> Lexical:
    if not settings.meilisearch_url:
        from services.toolhost.knowledge.tantivy import TantivyLexical  # noqa: PLC0415 see above

        return TantivyLexical(settings.root)
    from services.toolhost.knowledge.meilisearch import (  # noqa: PLC0415 see above
        MeilisearchLexical,
        MeilisearchSettings,
    )

    return MeilisearchLexical(
        MeilisearchSettings(settings.meilisearch_url, settings.meilisearch_key, settings.name)
    )


def _semantic(settings: KnowledgeSettings) -> Semantic:
    if not settings.qdrant_url:
        from services.toolhost.knowledge.vectors import EmbeddedVectors  # noqa: PLC0415 see above

        return EmbeddedVectors(settings.root)
    from services.toolhost.knowledge.qdrant import QdrantSemantic, QdrantSettings  # noqa: PLC0415 see above

    return QdrantSemantic(QdrantSettings(settings.qdrant_url, settings.qdrant_key, settings.name))


def _embedder(settings: KnowledgeSettings) -> Embedder | None:
    if not settings.embed_model:
        return None
    if settings.embed_model.startswith(ONNX):
        from services.toolhost.knowledge.onnx import OnnxEmbedder  # noqa: PLC0415 see above

        return OnnxEmbedder(Path(settings.embed_model.removeprefix(ONNX)))
    if not settings.embed_url:
        raise KnowledgeFault(
            "HYBRID_EMBED_MODEL is set and no endpoint: set HYBRID_EMBED_BASE_URL or OPENAI_BASE_URL"
        )
    from services.toolhost.knowledge.endpoint import EndpointEmbedder, EndpointSettings  # noqa: PLC0415 see above

    url = settings.embed_url or _DEFAULT_URL
    return EndpointEmbedder(EndpointSettings(settings.embed_model, url, settings.embed_key))
