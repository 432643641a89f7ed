"""What an index of words, an index of vectors and an embedding model have to be able to do.

Invariant: every question names a tenant, and what comes back is that tenant's; vendors' types and exceptions stop at
their owners, which raise `KnowledgeFault` with what to do next.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

import msgspec

from services.toolhost.errors import KnowledgeMismatch
from services.toolhost.knowledge.chunks import Chunk

Vector = Sequence[float]


class Held(NamedTuple):
    """Where a chunk that an index holds was found."""

    path: str
    first_line: int


class Entry(NamedTuple):
    """A chunk for an index. An index of vectors gets its vector, or `None` for a chunk that it holds and that moved."""

    chunk: Chunk
    vector: Vector | None = None


class MadeWith(msgspec.Struct, frozen=True):
    """The embedding model of an index of vectors."""

    model: str
    dimension: int


class Change(Protocol):
    """An index while it is changed. Both are idempotent by the chunk's id."""

    async def put(self, entries: Sequence[Entry]) -> None: ...

    async def drop(self, ids: Collection[str]) -> None: ...


class Store(Protocol):
    """What both kinds of index have in common. Raises `KnowledgeFault`; where there is nothing, `held` is empty."""

    @property
    def name(self) -> str: ...

    async def held(self, tenant: str) -> dict[str, Held]:
        """Every chunk of the tenant, by id."""
        ...

    def changing(self, tenant: str) -> AbstractAsyncContextManager[Change]:
        """Whoever leaves the context without an exception finds all of it stored; else some of it may be."""
        ...

    async def close(self) -> None: ...


class Lexical(Store, Protocol):
    """An index of words."""

    async def search(self, tenant: str, query: str, limit: int, /) -> list[Chunk]:
        """The best chunks, best first. Raises `KnowledgeMissing` where nothing was ever indexed."""
        ...


class Semantic(Store, Protocol):
    """An index of vectors of one model."""

    async def made_with(self, tenant: str) -> MadeWith | None:
        """What it was begun with; `None` where it never was."""
        ...

    async def begin(self, tenant: str, made: MadeWith) -> None:
        """An empty index for this model, in the place of what was there."""
        ...

    async def search(self, tenant: str, vector: Vector, limit: int, /) -> list[Chunk]:
        """The nearest chunks, nearest first. Raises `KnowledgeMissing` where nothing was ever indexed."""
        ...


class Embedder(Protocol):
    """An embedding model. `model` names its weights: vectors of different names are never compared."""

    @property
    def model(self) -> str: ...

    async def embed(self, texts: Sequence[str], *, patient: bool) -> list[Vector]:
        """A vector for each text, all of one length. `patient`: tries again while the fault may pass; else one try.
        Raises `KnowledgeFault`."""
        ...

    async def close(self) -> None: ...


def mismatch(made: MadeWith, model: str, dimension: int | None = None) -> KnowledgeMismatch:
    """What somebody is told whose model is not the one of the index."""
    given = (
        f"{model!r} gives {dimension} numbers"
        if dimension is not None
        else f"HYBRID_EMBED_MODEL is {model!r}"
    )
    return KnowledgeMismatch(
        f"the vectors were made with {made.model!r} ({made.dimension} numbers), and {given}: set it back, or make them anew "
        "with `perdure knowledge index --anew DIR ...`"
    )
