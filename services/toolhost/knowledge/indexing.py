"""One index run: brings both indexes in line with the documents of a source, one index after the other.

Invariant: what an index holds is compared with what the documents hold, chunk by chunk, so it does not matter what an
earlier run did or where it was killed; nothing that is there is embedded again; what is gone from the documents goes
last, and only where it is of this source.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from libs.contracts.errors import ConfigurationError
from services.toolhost.errors import KnowledgeFault, KnowledgeMismatch
from services.toolhost.knowledge.chunks import Chunk, chunks_of
from services.toolhost.knowledge.documents import FILES_MAX, Found, Source, Text, files_of, text_of
from services.toolhost.knowledge.ports import (
    Change,
    Embedder,
    Entry,
    Held,
    Lexical,
    MadeWith,
    Semantic,
    Store,
    mismatch,
)

# Of one tenant. The embedded index of vectors is kept in memory and searched whole: 150 MB and some 50 ms at 384 numbers
# a vector.
CHUNKS_MAX = 100_000
_BATCH = 64
_DROP_BATCH = 1_000
_BEYOND = "beyond the number of chunks"


class Report(msgspec.Struct, kw_only=True):
    """What a run did. `passed_over` counts files by the reason; `problems` say what is not in the indexes, and why."""

    documents: int = 0
    chunks: int = 0
    added: int = 0
    moved: int = 0
    removed: int = 0
    embedded: int = 0
    passed_over: dict[str, int] = {}
    problems: list[str] = []


class Parts(NamedTuple):
    """What a run works on. Without an embedder no vectors are made, but those of what is gone go."""

    lexical: Lexical
    semantic: Semantic
    embedder: Embedder | None


# Hears what is being done, and how many of how many files are done.
Progress = Callable[[str, int, int], None]


async def brought_in_line(
    parts: Parts, tenant: str, source: Source, progress: Progress, *, anew: bool = False
) -> Report:
    """Index the source; `anew`: the vectors of all sources are forgotten first. A fault of one index is a problem of the
    report.

    Raises `KnowledgeMismatch` before anything is changed if the vectors are another model's, `ConfigurationError` for
    a source that is too large, and `KnowledgeFault` if neither index works.
    """
    files = await asyncio.to_thread(_listed, source)
    faults: list[KnowledgeFault] = []
    vectors = await _begun(parts, tenant, anew=anew, faults=faults)
    passes = {"words": _Pass(parts.lexical, tenant, source, files)}
    if vectors is not None:
        passes["vectors"] = _Pass(parts.semantic, tenant, source, files, vectors)
    done: list[_Pass] = []
    for what, each in passes.items():
        try:
            await each.run(partial(progress, what))
            done.append(each)
        except KnowledgeFault as fault:
            faults.append(fault)
    if not done:
        raise KnowledgeFault("; ".join(fault.message for fault in faults))
    report = done[0].report()
    report.embedded = passes["vectors"].added if vectors is not None else 0
    report.problems += [fault.message for fault in faults]
    return report


class _Vectors(NamedTuple):
    """Makes vectors for an index of vectors; `embedder` is `None` where none are to be made."""

    embedder: Embedder | None
    made: MadeWith

    async def of(self, chunks: Sequence[Chunk]) -> list[Entry]:
        assert self.embedder is not None
        found = await self.embedder.embed([chunk.meaning for chunk in chunks], patient=True)
        for vector in found:
            if len(vector) != self.made.dimension:
                raise mismatch(self.made, self.embedder.model, len(vector))
        return [Entry(chunk, vector) for chunk, vector in zip(chunks, found, strict=True)]


def _listed(source: Source) -> list[Found]:
    listed = list(islice(files_of(source), FILES_MAX + 1))
    if len(listed) > FILES_MAX:
        raise ConfigurationError(
            f"{source.root} holds more than {FILES_MAX} files; index the folders in it that hold documents"
        )
    return listed


async def _begun(parts: Parts, tenant: str, *, anew: bool, faults: list[KnowledgeFault]) -> _Vectors | None:
    """The index of vectors ready for a run, or `None` if it has no part in it."""
    embedder = parts.embedder
    try:
        made = await parts.semantic.made_with(tenant)
        if embedder is None:
            return _Vectors(None, made) if made is not None else None
        if made is None or anew:
            made = MadeWith(embedder.model, len((await embedder.embed(["a"], patient=True))[0]))
            await parts.semantic.begin(tenant, made)
        elif made.model != embedder.model:
            raise mismatch(made, embedder.model)
        return _Vectors(embedder, made)
    except KnowledgeMismatch:
        raise
    except KnowledgeFault as fault:
        faults.append(fault)
        return None


class _Pass:
    """One index and all files."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        source: Source,
        files: Sequence[Found],
        vectors: _Vectors | None = None,
    ) -> None:
        self._store, self._tenant, self._source = store, tenant, source
        self._files, self._vectors = files, vectors
        self._held: dict[str, Held] = {}
        self._others = 0
        self._seen: set[str] = set()
        self._kept: set[str] = set()
        self._new: list[Chunk] = []
        self._moved: list[Chunk] = []
        self._passed_over: Counter[str] = Counter()
        self.documents = self.added = self.moved = self.removed = 0

    async def run(self, progress: Callable[[int, int], None]) -> None:
        held = await self._store.held(self._tenant)
        self._held = {each: place for each, place in held.items() if self._source.holds(place.path)}
        self._others = len(held) - len(self._held)
        async with self._store.changing(self._tenant) as change:
            for done, file in enumerate(self._files):
                progress(done, len(self._files))
                await self._file(file, change)
            await self._put(change)
            gone = [
                each
                for each, place in self._held.items()
                if each not in self._seen and not self._is_kept(place)
            ]
            for at in range(0, len(gone), _DROP_BATCH):
                await change.drop(gone[at : at + _DROP_BATCH])
        self.removed = len(gone)
        progress(len(self._files), len(self._files))

    def report(self) -> Report:
        beyond = self._passed_over[_BEYOND]
        full = f"a tenant has room for {CHUNKS_MAX} chunks; {beyond} files are not indexed: index less"
        return Report(
            documents=self.documents,
            chunks=len(self._seen),
            added=self.added,
            moved=self.moved,
            removed=self.removed,
            passed_over=dict(self._passed_over.most_common()),
            problems=[full] if beyond else [],
        )

    async def _file(self, file: Found, change: Change) -> None:
        if file.passed_over:
            self._pass_over(file.path, file.passed_over, kept=file.kept)
            return
        text, chunks = await asyncio.to_thread(_read, self._tenant, file)
        if text.passed_over:
            self._pass_over(file.path, text.passed_over, kept=text.kept)
            return
        if self._others + len(self._seen) + len(chunks) > CHUNKS_MAX:
            self._pass_over(file.path, _BEYOND, kept=False)
            return
        self.documents += 1
        for chunk in chunks:
            self._seen.add(chunk.id)
            place = self._held.get(chunk.id)
            if place is None:
                self._new.append(chunk)
            elif place.first_line != chunk.first_line:
                self._moved.append(chunk)
        if len(self._new) + len(self._moved) >= _BATCH:
            await self._put(change)

    async def _put(self, change: Change) -> None:
        """What has gathered, in batches."""
        new, self._new, moved, self._moved = self._new, [], self._moved, []
        if self._vectors is not None and self._vectors.embedder is None:
            new = []
        for at in range(0, len(moved), _BATCH):
            await change.put([Entry(chunk) for chunk in moved[at : at + _BATCH]])
        for at in range(0, len(new), _BATCH):
            batch = new[at : at + _BATCH]
            entries = (
                [Entry(chunk) for chunk in batch] if self._vectors is None else await self._vectors.of(batch)
            )
            await change.put(entries)
            self.added += len(batch)
        self.moved += len(moved)

    def _pass_over(self, path: str, reason: str, *, kept: bool) -> None:
        self._passed_over[reason] += 1
        if kept:
            self._kept.add(path)

    def _is_kept(self, place: Held) -> bool:
        """Whether it is, or lies below, what could not be looked at."""
        return any(place.path == path or place.path.startswith(f"{path}/") for path in self._kept)


def _read(tenant: str, file: Found) -> tuple[Text, list[Chunk]]:
    text = text_of(file.file)
    return text, [] if text.passed_over else list(chunks_of(tenant, file.path, text.text))
