"""One question to two legs: what a slow or a disloyal one costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.ports import Entry, Held, MadeWith, Vector
from services.toolhost.knowledge.search import Legs, search


def chunk(name: str, tenant: str = "local") -> Chunk:
    return Chunk(id=name, tenant=tenant, path=f"docs/{name}", title="", first_line=1, last_line=1, text=name)


class Index:
    """Both kinds of index: it finds what it was given, in time or never."""

    name = "scripted"

    def __init__(self, *found: Chunk, answers: bool = True) -> None:
        self._found, self._answers = list(found), answers

    async def search(self, tenant: str, question: str | Vector, limit: int) -> list[Chunk]:
        assert tenant == "local"
        assert question
        if not self._answers:
            await asyncio.Event().wait()
        return self._found[:limit]

    async def made_with(self, tenant: str) -> MadeWith | None:
        del tenant
        return MadeWith("one", 2)

    async def begin(self, tenant: str, made: MadeWith) -> None:
        raise AssertionError((tenant, made))

    async def held(self, tenant: str) -> dict[str, Held]:
        raise AssertionError(tenant)

    @asynccontextmanager
    async def changing(self, tenant: str) -> AsyncGenerator[Index]:
        yield self
        raise AssertionError(tenant)

    async def put(self, entries: Sequence[Entry]) -> None:
        raise AssertionError(entries)

    async def drop(self, ids: Collection[str]) -> None:
        raise AssertionError(ids)

    async def close(self) -> None:
        pass


class Model:
    model = "one"

    def __init__(self, dimension: int = 2) -> None:
        self._dimension = dimension

    async def embed(self, texts: Sequence[str], *, patient: bool) -> list[Vector]:
        assert not patient
        return [[1.0] * self._dimension for _ in texts]

    async def close(self) -> None:
        pass


async def test_a_leg_that_never_answers_is_left_out_after_its_time_and_named() -> None:
    legs = Legs(Index(chunk("a"), chunk("b")), Index(answers=False), Model(), patience_s=0.05)
    answer = await search(legs, "local", "a question", 1)
    assert [one.chunk.id for one in answer.results] == ["a"]
    assert answer.notes == ["the search for meaning (scripted) did not answer within 0.05 s; ask again"]


async def test_what_a_leg_finds_of_another_tenant_is_thrown_away() -> None:
    legs = Legs(Index(chunk("theirs", "other"), chunk("a")), Index(chunk("their", "other")), Model())
    answer = await search(legs, "local", "a question", 5)
    assert [(one.chunk.id, one.lexical_rank, one.semantic_rank) for one in answer.results] == [("a", 1, None)]


async def test_what_both_legs_find_comes_before_what_one_finds_first() -> None:
    legs = Legs(Index(chunk("a"), chunk("b")), Index(chunk("c"), chunk("b")), Model())
    answer = await search(legs, "local", "a question", 5)
    assert [one.chunk.id for one in answer.results] == ["b", "a", "c"]
    assert answer.notes == []


async def test_a_model_of_the_same_name_with_other_vectors_is_not_asked_further() -> None:
    answer = await search(Legs(Index(chunk("a")), Index(chunk("b")), Model(3)), "local", "a question", 5)
    assert [one.chunk.id for one in answer.results] == ["a"]
    assert "'one' gives 3 numbers" in answer.notes[0]
