"""The embedded index of vectors: an SQLite file for each tenant, searched exactly by multiplying all of it (ADR 19).

Invariant: what was put stays put, batch by batch, so a run that was killed goes on where it stopped; one process writes
a file at a time, any number read it meanwhile, and each reader sees what is in it now.
"""

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Generator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.toolhost.errors import KnowledgeFault, KnowledgeMissing
from services.toolhost.knowledge.chunks import Chunk
from services.toolhost.knowledge.places import vectors_file
from services.toolhost.knowledge.ports import Entry, Held, MadeWith, Vector
from services.toolhost.knowledge.threads import Threads

# Vectors that are kept in memory between searches, all tenants together; beyond that the oldest are read again.
_LOADED_BYTES_MAX = 512 << 20
# A writer holds the file for a batch.
_BUSY_TIMEOUT_S = 5.0
_FLOAT = np.dtype("<f4")
# `chunk` is JSON; `vector` is `dimension` little-endian floats of 4 bytes, of length 1 together.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS made_with (
    one INTEGER PRIMARY KEY CHECK (one = 1), model TEXT NOT NULL, dimension INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS chunks (
    id TEXT PRIMARY KEY, path TEXT NOT NULL, first_line INTEGER NOT NULL, chunk BLOB NOT NULL, vector BLOB NOT NULL
);
"""

_PUT = "INSERT OR REPLACE INTO chunks (chunk, path, first_line, id, vector) VALUES (?, ?, ?, ?, ?)"
_MOVE = "UPDATE chunks SET chunk = ?, path = ?, first_line = ? WHERE id = ?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Chunk).decode


class _Loaded(NamedTuple):
    """All vectors of one file as they were at `version`, which is SQLite's count of other connections' changes. A file that
    somebody removed has another `inode` when it is there again."""

    inode: int
    connection: sqlite3.Connection
    version: int
    ids: list[str]
    matrix: NDArray[np.float32]


class EmbeddedVectors:
    """All tenants' files below the folder of knowledge."""

    name = "embedded"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = Threads("vectors")
        self._lock = threading.Lock()
        self._loaded: OrderedDict[Path, _Loaded] = OrderedDict()

    async def made_with(self, tenant: str) -> MadeWith | None:
        return await self._threads.run(_made_with, vectors_file(self._root, tenant))

    async def begin(self, tenant: str, made: MadeWith) -> None:
        await self._threads.run(_begin, vectors_file(self._root, tenant), made)

    async def held(self, tenant: str) -> dict[str, Held]:
        return await self._threads.run(_held, vectors_file(self._root, tenant))

    @asynccontextmanager
    async def changing(self, tenant: str) -> AsyncGenerator["_Change"]:
        file = vectors_file(self._root, tenant)
        connection = await self._threads.run(_writable, file)
        try:
            yield _Change(file, connection, self._threads)
        finally:
            await self._threads.run(connection.close)

    async def search(self, tenant: str, vector: Vector, limit: int) -> list[Chunk]:
        return await self._threads.run(self._search, vectors_file(self._root, tenant), vector, limit)

    async def close(self) -> None:
        self._threads.close()
        with self._lock:
            while self._loaded:
                self._loaded.popitem()[1].connection.close()

    def _search(self, file: Path, vector: Vector, limit: int) -> list[Chunk]:
        with _told(file), self._lock:
            loaded = self._newest(file)
            if not loaded.ids:
                return []
            scores = loaded.matrix @ _unit(vector)
            best: list[int] = np.argsort(-scores, kind="stable")[:limit].tolist()
            found = (_chunk(loaded.connection, loaded.ids[at]) for at in best)
            return [chunk for chunk in found if chunk is not None]

    def _newest(self, file: Path) -> _Loaded:
        if not file.exists():
            raise KnowledgeMissing("there are no vectors yet: perdure knowledge index DIR")
        inode = file.stat().st_ino
        loaded = self._loaded.pop(file, None)
        if loaded is not None and loaded.inode != inode:
            loaded.connection.close()
            loaded = None
        connection = loaded.connection if loaded is not None else _connect(file)
        try:
            if loaded is None or loaded.version != _version(connection):
                loaded = _read(connection, inode)
        except sqlite3.Error:
            connection.close()
            raise
        self._loaded[file] = loaded
        while len(self._loaded) > 1 and self._bytes() > _LOADED_BYTES_MAX:
            self._loaded.popitem(last=False)[1].connection.close()
        return loaded

    def _bytes(self) -> int:
        return sum(loaded.matrix.nbytes for loaded in self._loaded.values())


class _Change:
    """Each batch is a transaction of its own: vectors cost money, and none is made twice."""

    def __init__(self, file: Path, connection: sqlite3.Connection, threads: Threads) -> None:
        self._file, self._connection, self._threads = file, connection, threads

    async def put(self, entries: Sequence[Entry]) -> None:
        await self._threads.run(self._put, entries)

    async def drop(self, ids: Collection[str]) -> None:
        await self._threads.run(self._drop, list(ids))

    def _put(self, entries: Sequence[Entry]) -> None:
        with _told(self._file), _transaction(self._connection) as connection:
            for chunk, vector in entries:
                row = (_encode(chunk), chunk.path, chunk.first_line, chunk.id)
                if vector is None:
                    connection.execute(_MOVE, row)
                else:
                    connection.execute(_PUT, (*row, _unit(vector).tobytes()))

    def _drop(self, ids: Sequence[str]) -> None:
        with _told(self._file), _transaction(self._connection) as connection:
            connection.executemany("DELETE FROM chunks WHERE id = ?", ((each,) for each in ids))


def _begin(file: Path, made: MadeWith) -> None:
    with _told(file), closing(_writable(file)) as connection, _transaction(connection):
        connection.execute("DELETE FROM chunks")
        connection.execute(
            "INSERT OR REPLACE INTO made_with (one, model, dimension) VALUES (1, ?, ?)",
            (made.model, made.dimension),
        )


def _made_with(file: Path) -> MadeWith | None:
    if not file.exists():
        return None
    with _reading(file) as connection:
        row = connection.execute("SELECT model, dimension FROM made_with").fetchone()
        return MadeWith(*row) if row is not None else None


def _held(file: Path) -> dict[str, Held]:
    if not file.exists():
        return {}
    with _reading(file) as connection:
        rows = connection.execute("SELECT id, path, first_line FROM chunks")
        return {each: Held(path, first_line) for each, path, first_line in rows}


def _chunk(connection: sqlite3.Connection, chunk_id: str) -> Chunk | None:
    """`None`: it went between two looks."""
    row = connection.execute("SELECT chunk FROM chunks WHERE id = ?", (chunk_id,)).fetchone()
    return _decode(row[0]) if row is not None else None


def _read(connection: sqlite3.Connection, inode: int) -> _Loaded:
    # Asked first: what changes in between is read again by the next search.
    version = _version(connection)
    rows = connection.execute("SELECT id, vector FROM chunks").fetchall()
    whole = np.frombuffer(b"".join(vector for _, vector in rows), _FLOAT)
    matrix = whole.reshape(len(rows), whole.size // max(1, len(rows)))
    return _Loaded(inode, connection, version, [each for each, _ in rows], matrix)


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return version


def _unit(vector: Vector) -> NDArray[np.float32]:
    """Of length 1, so that a product of two is their cosine; a vector of nothing stays one."""
    plain = np.asarray(vector, _FLOAT)
    length = float(np.linalg.norm(plain))
    return plain / np.float32(length) if length else plain


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield connection


def _writable(file: Path) -> sqlite3.Connection:
    with _told(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(file)
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


@contextmanager
def _reading(file: Path) -> Generator[sqlite3.Connection]:
    with _told(file), closing(_connect(file)) as connection:
        yield connection


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _told(file: Path) -> Generator[None]:
    """What SQLite and the disk say, as a fault that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as error:
        raise KnowledgeFault(
            f"the index of vectors in {file} cannot be used: {error}. If the disk has room, remove the file and index again"
        ) from error
