"""How the indexes of a tenant stand: what is in them, and what is wrong.

Invariant: everything here was looked at now, but for what the ledger remembers of index runs; every problem says what to
do.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from services.toolhost.errors import KnowledgeFault
from services.toolhost.knowledge.ledger import Ledger
from services.toolhost.knowledge.ports import Held, MadeWith, Store, mismatch
from services.toolhost.knowledge.search import Legs


class LegStanding(msgspec.Struct, kw_only=True):
    """One index. `model` and `dimension` are of vectors."""

    backend: str
    documents: int = 0
    chunks: int = 0
    model: str | None = None
    dimension: int | None = None


class SourceStanding(msgspec.Struct, kw_only=True):
    """The documents of one name; `root` and `indexed_at` are `None` if they were not indexed from here."""

    name: str
    documents: int
    chunks: int
    root: str | None = None
    indexed_at: str | None = None
    passed_over: dict[str, int] = {}


class Standing(msgspec.Struct, kw_only=True):
    """All of it. `embed_model` is the configured one, `indexed_at` the last index run from here."""

    tenant: str
    lexical: LegStanding
    semantic: LegStanding
    embed_model: str | None
    indexed_at: str | None
    sources: list[SourceStanding]
    problems: list[str]


async def standing(legs: Legs, tenant: str, ledger: Ledger) -> Standing:
    """Look at everything."""
    problems: list[str] = []
    words = await _held(legs.lexical, tenant, problems)
    vectors = await _held(legs.semantic, tenant, problems)
    made = await _made_with(legs, tenant, problems)
    if made is not None and legs.embedder is not None and made.model != legs.embedder.model:
        problems.append(mismatch(made, legs.embedder.model).message)
    if words is not None and vectors is not None and (made is not None or legs.embedder is not None):
        problems += _apart(words, vectors)
    if ledger.begun_at is not None:
        problems.append(f"the index run of {ledger.begun_at} did not come to its end: run it again")
    problems += [f"{name}: {told}" for name, record in ledger.sources.items() for told in record.problems]
    return Standing(
        tenant=tenant,
        lexical=_leg(legs.lexical, words),
        semantic=_leg(legs.semantic, vectors, made),
        embed_model=legs.embedder.model if legs.embedder is not None else None,
        indexed_at=max((record.indexed_at for record in ledger.sources.values()), default=None),
        sources=_sources(words or vectors or {}, ledger),
        problems=problems,
    )


async def _held(store: Store, tenant: str, problems: list[str]) -> dict[str, Held] | None:
    try:
        return await store.held(tenant)
    except KnowledgeFault as fault:
        problems.append(fault.message)
        return None


async def _made_with(legs: Legs, tenant: str, problems: list[str]) -> MadeWith | None:
    try:
        return await legs.semantic.made_with(tenant)
    except KnowledgeFault as fault:
        if fault.message not in problems:
            problems.append(fault.message)
        return None


def _apart(words: Mapping[str, Held], vectors: Mapping[str, Held]) -> list[str]:
    """What one index has and the other has not, as after a run that was killed."""
    without, stale = len(words.keys() - vectors.keys()), len(vectors.keys() - words.keys())
    told = [f"{without} chunks have no vector: index again"] if without else []
    return told + ([f"{stale} vectors are of chunks that are gone: index again"] if stale else [])


def _leg(store: Store, held: Mapping[str, Held] | None, made: MadeWith | None = None) -> LegStanding:
    places = (held or {}).values()
    return LegStanding(
        backend=store.name,
        documents=len({place.path for place in places}),
        chunks=len(places),
        model=made.model if made is not None else None,
        dimension=made.dimension if made is not None else None,
    )


def _sources(held: Mapping[str, Held], ledger: Ledger) -> list[SourceStanding]:
    chunks = Counter(place.path.partition("/")[0] for place in held.values())
    documents = Counter(path.partition("/")[0] for path in {place.path for place in held.values()})
    found: list[SourceStanding] = []
    for name in sorted({*chunks, *ledger.sources}):
        known = ledger.sources.get(name)
        found.append(
            SourceStanding(
                name=name,
                documents=documents[name],
                chunks=chunks[name],
                root=known.root if known is not None else None,
                indexed_at=known.indexed_at if known is not None else None,
                passed_over=known.passed_over if known is not None else {},
            )
        )
    return found
