"""The embedded index of words: a folder of tantivy for each tenant. The only importer of `tantivy`.

Invariant: a change is seen whole or not at all (tantivy swaps its list of segments in one step), one process changes an
index at a time, any number read it meanwhile, and a process that was killed leaves what there was before.
"""

import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
import tantivy

from services.toolhost.errors import KnowledgeFault, KnowledgeMissing
from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.places import words_folder
from services.toolhost.knowledge.ports import Entry, Held
from services.toolhost.knowledge.terms import terms
from services.toolhost.knowledge.threads import Threads

# What it gathers in memory before it writes a segment: a few thousand chunks.
_WRITER_BYTES = 50_000_000
# Open indexes, each some descriptors and maps of files; more tenants than that take turns.
_OPEN_MAX = 16
# A question has a few words; who pastes a page is served by its first ones.
_QUERY_TERMS_MAX = 64
# A word of a title or a path says more than one of the text.
_HEAD_BOOST = 2.0
_ANALYZER = "words"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Chunk).decode


class TantivyLexical:
    """All tenants' indexes below the folder of knowledge."""

    name = "tantivy"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = Threads(self.name)
        self._schema, self._analyzer = _schema(), _analyzer()
        self._open: OrderedDict[Path, tantivy.Index] = OrderedDict()
        self._lock = threading.Lock()

    async def held(self, tenant: str) -> dict[str, Held]:
        return await self._threads.run(self._held, words_folder(self._root, tenant))

    @asynccontextmanager
    async def changing(self, tenant: str) -> AsyncGenerator["_Change"]:
        """Nothing is stored if the context ends with an exception."""
        writer = await self._threads.run(self._writer, words_folder(self._root, tenant))
        change = _Change(writer, self._threads)
        whole = False
        try:
            yield change
            whole = True
        finally:
            await self._threads.run(change.commit if whole else change.undo)

    async def search(self, tenant: str, query: str, limit: int) -> list[Chunk]:
        return await self._threads.run(self._search, words_folder(self._root, tenant), query, limit)

    async def close(self) -> None:
        self._threads.close()

    def _held(self, folder: Path) -> dict[str, Held]:
        with _told(folder):
            if not folder.exists():
                return {}
            searcher = self._searcher(folder)
            found = searcher.search(tantivy.Query.all_query(), max(1, searcher.num_docs), count=False)
            chunks = (_chunk(searcher, address) for _, address in found.hits)
            return {chunk.id: Held(chunk.path, chunk.first_line) for chunk in chunks}

    def _search(self, folder: Path, query: str, limit: int) -> list[Chunk]:
        with _told(folder):
            if not folder.exists():
                raise KnowledgeMissing("nothing is indexed yet: perdure knowledge index DIR")
            searcher = self._searcher(folder)
            found = searcher.search(self._query(query), limit, count=False)
            return [_chunk(searcher, address) for _, address in found.hits]

    def _query(self, query: str) -> tantivy.Query:
        """Any of the words, the rarer the better; there is no syntax to get wrong."""
        words = dict.fromkeys(islice(terms(query), _QUERY_TERMS_MAX))
        stems = dict.fromkeys(stem for word in words for stem in self._analyzer.analyze(word))
        wanted: list[tuple[tantivy.Occur, tantivy.Query]] = []
        for stem in stems:
            head = tantivy.Query.term_query(self._schema, "head", stem)
            wanted.append((tantivy.Occur.Should, tantivy.Query.boost_query(head, _HEAD_BOOST)))
            wanted.append((tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "body", stem)))
        return tantivy.Query.boolean_query(wanted) if wanted else tantivy.Query.empty_query()

    def _searcher(self, folder: Path) -> tantivy.Searcher:
        """Of the newest state, whoever wrote it."""
        with self._lock:
            index = self._open.pop(folder, None) or self._index(folder)
            self._open[folder] = index
            while len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)
            index.reload()
            return index.searcher()

    def _index(self, folder: Path) -> tantivy.Index:
        index = tantivy.Index(self._schema, str(folder))
        index.register_tokenizer(_ANALYZER, self._analyzer)
        # Read anew when asked; the other policy watches the folder with a thread for each index.
        index.config_reader("manual")
        return index

    def _writer(self, folder: Path) -> tantivy.IndexWriter:
        with _told(folder):
            folder.mkdir(parents=True, exist_ok=True)
            return self._index(folder).writer(_WRITER_BYTES, num_threads=1)


class _Change:
    """One writer, from its first document to its commit."""

    def __init__(self, writer: tantivy.IndexWriter, threads: Threads) -> None:
        self._writer, self._threads = writer, threads

    async def put(self, entries: Sequence[Entry]) -> None:
        await self._threads.run(self._put, [entry.chunk for entry in entries])

    async def drop(self, ids: Collection[str]) -> None:
        await self._threads.run(self._drop, list(ids))

    def commit(self) -> None:
        with _told():
            self._writer.commit()
            self._writer.wait_merging_threads()

    def undo(self) -> None:
        with _told():
            self._writer.rollback()
            self._writer.wait_merging_threads()

    def _put(self, chunks: Sequence[Chunk]) -> None:
        self._drop([chunk.id for chunk in chunks])
        with _told():
            for chunk in chunks:
                document = tantivy.Document(id=chunk.id)
                document.add_text("head", _joined(f"{chunk.path} {chunk.title}"))
                document.add_text("body", _joined(chunk.text))
                document.add_bytes("chunk", _encode(chunk))
                self._writer.add_document(document)

    def _drop(self, ids: Sequence[str]) -> None:
        with _told():
            for each in ids:
                self._writer.delete_documents_by_term("id", each)


@contextmanager
def _told(folder: Path | None = None) -> Generator[None]:
    """What tantivy and the disk say, as a fault that says what to do. tantivy knows one kind of error."""
    try:
        yield
    except (ValueError, OSError) as error:
        place = f" in {folder}" if folder is not None else ""
        raise KnowledgeFault(
            f"the index of words{place} cannot be used: {error}. If the disk has room and no other index run is at work, "
            "remove the folder and index again"
        ) from error


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("head", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("body", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_bytes_field("chunk", stored=True)
    return builder.build()


def _analyzer() -> tantivy.TextAnalyzer:
    """Terms are words already. English stems help English texts and harm no others: both sides get them."""
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace())
    return words.filter(tantivy.Filter.stemmer("english")).build()


def _joined(text: str) -> str:
    return " ".join(terms(text))


def _chunk(searcher: tantivy.Searcher, address: tantivy.DocAddress) -> Chunk:
    return _decode(cast(bytes, searcher.doc(address).get_first("chunk")))
