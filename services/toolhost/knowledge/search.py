"""A question to both indexes, and one ranking of what they find.

Invariant: either leg can be down, slow or missing without the other's results being lost; what is missing is said. Only
the asking tenant's chunks come out, whatever an index says.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from services.toolhost.errors import KnowledgeFault, KnowledgeMissing
from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.fusion import fused
from services.toolhost.knowledge.ports import Embedder, Lexical, Semantic, mismatch

# A leg that takes longer is left out. The first question also loads a client, a model or an index.
LEG_S = 10.0
# What each leg is asked for: deep enough that what both know a little about can win.
DEPTH = 50
QUERY_CHARS_MAX = 2_000
NO_MODEL = "words only: there is no embedding model (HYBRID_EMBED_MODEL)"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk with its fused score, and its rank in each leg (`None`: not among the first `DEPTH` there)."""

    chunk: Chunk
    score: float
    lexical_rank: int | None
    semantic_rank: int | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The best results, best first; `notes` say which leg had no part in it, and why."""

    results: list[Result]
    notes: list[str]


class Legs(NamedTuple):
    """What is asked, and how long each leg may take. `no_embedder` says why there is none."""

    lexical: Lexical
    semantic: Semantic
    embedder: Embedder | None
    no_embedder: str = NO_MODEL
    patience_s: float = LEG_S


async def search(legs: Legs, tenant: str, query: str, limit: int) -> Answer:
    """Ask both legs at once. Raises `KnowledgeMissing` if nothing was ever indexed, `KnowledgeFault` if no leg answers."""
    query = query[:QUERY_CHARS_MAX]
    words, meaning = legs.lexical.search(tenant, query, DEPTH), _near(legs, tenant, query)
    async with asyncio.TaskGroup() as asking:
        asked = (
            asking.create_task(
                _within(words, legs.patience_s, f"the search for words ({legs.lexical.name})")
            ),
            asking.create_task(
                _within(meaning, legs.patience_s, f"the search for meaning ({legs.semantic.name})")
            ),
        )
    lexical, semantic = (task.result() for task in asked)
    faults = [leg for leg in (lexical, semantic) if isinstance(leg, KnowledgeFault)]
    if isinstance(lexical, KnowledgeFault) and isinstance(semantic, KnowledgeFault):
        raise lexical if isinstance(lexical, KnowledgeMissing) else _neither(lexical, semantic)
    found = [[] if isinstance(leg, KnowledgeFault) else _of(tenant, leg) for leg in (lexical, semantic)]
    chunks = {chunk.id: chunk for leg in found for chunk in leg}
    ranking = fused([[chunk.id for chunk in leg] for leg in found])
    results = [
        Result(chunk=chunks[one.item], score=one.score, lexical_rank=one.ranks[0], semantic_rank=one.ranks[1])
        for one in ranking[:limit]
    ]
    return Answer(results=results, notes=[fault.message for fault in faults])


async def _near(legs: Legs, tenant: str, query: str) -> list[Chunk]:
    """By meaning. Vectors of another model are never compared."""
    if legs.embedder is None:
        raise KnowledgeFault(legs.no_embedder)
    made = await legs.semantic.made_with(tenant)
    if made is None:
        raise KnowledgeMissing(
            "words only: there are no vectors yet, index again with HYBRID_EMBED_MODEL set"
        )
    if made.model != legs.embedder.model:
        raise mismatch(made, legs.embedder.model)
    (vector,) = await legs.embedder.embed([query], patient=False)
    if len(vector) != made.dimension:
        raise mismatch(made, legs.embedder.model, len(vector))
    return await legs.semantic.search(tenant, vector, DEPTH)


async def _within(
    asking: Coroutine[Any, Any, list[Chunk]], patience_s: float, what: str
) -> list[Chunk] | KnowledgeFault:
    """What a leg answers in its time, or its fault."""
    try:
        async with asyncio.timeout(patience_s):
            return await asking
    except KnowledgeFault as fault:
        return fault
    except TimeoutError:
        return KnowledgeFault(f"{what} did not answer within {patience_s:g} s; ask again")


def _of(tenant: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    """A second lock: an index whose filter does not hold must not tell one tenant what another wrote."""
    return [chunk for chunk in chunks if chunk.tenant == tenant]


def _neither(lexical: KnowledgeFault, semantic: KnowledgeFault) -> KnowledgeFault:
    return KnowledgeFault(f"neither index can be searched: {lexical.message}; {semantic.message}")
