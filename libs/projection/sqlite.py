"""The embedded read model: one SQLite file per gateway replica, written by one thread and read by another.

Invariant: rows and the position they stand for change in one transaction, so a crash at any point leaves a file that
goes on where it stopped; the file is a cache, and deleting it costs a rebuild.
"""

import asyncio
import fcntl
import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from libs.contracts.envelope import Record
from libs.projection.fold import FOLD_VERSION, changes
from libs.projection.named import names_of, statements
from libs.projection.rows import (
    Position,
    ProjectQuery,
    ProjectRow,
    RunQuery,
    RunRow,
    ScheduleQuery,
    ScheduleRow,
)

# The writer and the reader share a file; neither holds a lock longer than a batch takes.
BUSY_TIMEOUT_S = 5.0

_HERE = Path(__file__).parent
T = TypeVar("T")


@asynccontextmanager
async def open_index(path: Path) -> AsyncGenerator["SqliteIndex"]:
    """Open the file, or start it anew when its schema is another. A file that another process holds is left alone:
    then this process keeps one of its own, which goes with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    own = path
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            own = path.with_name(f"{path.stem}-{os.getpid()}-{lock}{path.suffix}")
            _remove(own)
        index = SqliteIndex(own)
        try:
            yield index
        finally:
            await index.close()
            if own is not path:
                _remove(own)
    finally:
        os.close(lock)


class SqliteIndex:
    """Rows of one file. All methods may be called at any time from the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._statements = statements("statements.sql", "lists_sqlite.sql")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="index-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="index-reader")
        self._writing = self._open()
        self._reading = _connect(path)

    async def positions(self) -> dict[int, Position]:
        """How far each shard is folded."""
        return await self._in(self._reader, self._positions)

    async def apply(self, shard: int, after: int, records: Sequence[Record]) -> int:
        """Apply a batch of life records and move the position, in one transaction. Idempotent by position; `after` is of
        no interest where nobody else writes."""
        del after
        await self._in(self._writer, lambda: self._apply(shard, records))
        return records[-1].header.stream_sequence

    async def clear(self) -> None:
        """Forget everything: the log is another one."""
        await self._in(self._writer, self._clear)

    async def runs(self, query: RunQuery) -> list[RunRow]:
        """A page, newest first."""
        return await self._in(self._reader, lambda: self._runs(query))

    async def statuses(
        self, tenant: str, statuses: Collection[str], run_ids: Collection[str]
    ) -> dict[str, str]:
        """The runs of a tenant in one of these statuses, and those of these ids; children aside."""
        return await self._in(self._reader, lambda: self._statuses(tenant, statuses, run_ids))

    async def projects(self, query: ProjectQuery) -> list[ProjectRow]:
        """A page of projects, newest first."""
        return await self._in(self._reader, lambda: self._projects(query))

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        """A page of schedules, newest first."""
        return await self._in(self._reader, lambda: self._schedules(query))

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def _open(self) -> sqlite3.Connection:
        connection = _connect(self._path)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == FOLD_VERSION:
            return connection
        connection.close()
        _remove(self._path)
        connection = _connect(self._path)
        connection.executescript((_HERE / "schema.sql").read_text(encoding="utf-8"))
        connection.execute(f"PRAGMA user_version = {FOLD_VERSION}")
        return connection

    def _positions(self) -> dict[int, Position]:
        rows = self._reading.execute(self._statements["positions"])
        return {row[0]: Position(*row) for row in rows}

    def _apply(self, shard: int, records: Sequence[Record]) -> None:
        last = records[-1]
        position = Position(
            shard, last.header.stream_sequence, last.tenant, last.log_id, last.header.message_id
        )
        # The connection as a context commits what was begun, or takes it back when anything raises.
        with self._writing:
            self._writing.execute("BEGIN IMMEDIATE")
            for record in records:
                for change in changes(record):
                    for name in names_of(change):
                        self._writing.execute(self._statements[name], change._asdict())
            self._writing.execute(self._statements["move_position"], position._asdict())

    def _clear(self) -> None:
        self._writing.executescript(
            "BEGIN; DELETE FROM runs; DELETE FROM questions; DELETE FROM projects; DELETE FROM schedules;"
            "DELETE FROM positions; COMMIT;"
        )

    def _runs(self, query: RunQuery) -> list[RunRow]:
        values = {
            "tenant": query.tenant,
            "statuses": json.dumps(query.statuses) if query.statuses else None,
            "task_id": query.task_id,
            "project_id": query.project_id,
            "searched": query.text.casefold() if query.text else None,
            "before_at": query.before.created_at if query.before else None,
            "before_id": query.before.run_id if query.before else None,
            "limit": query.limit,
        }
        return [RunRow(*row) for row in self._reading.execute(self._statements["list_runs"], values)]

    def _statuses(self, tenant: str, statuses: Collection[str], run_ids: Collection[str]) -> dict[str, str]:
        values = {
            "tenant": tenant,
            "statuses": json.dumps(sorted(statuses)),
            "run_ids": json.dumps(sorted(run_ids)),
        }
        return dict(self._reading.execute(self._statements["list_statuses"], values).fetchall())

    def _projects(self, query: ProjectQuery) -> list[ProjectRow]:
        found = self._reading.execute(self._statements["list_projects"], _page(query))
        return [ProjectRow(*row) for row in found]

    def _schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        found = self._reading.execute(self._statements["list_schedules"], _page(query))
        return [ScheduleRow(*row) for row in found]

    def _close(self) -> None:
        self._writer.shutdown()
        self._reader.shutdown()
        self._reading.close()
        self._writing.close()


def _page(query: ProjectQuery | ScheduleQuery) -> dict[str, object]:
    return {
        "tenant": query.tenant,
        "statuses": json.dumps(query.statuses) if query.statuses else None,
        "before_at": query.before.created_at if query.before else None,
        "before_id": query.before.run_id if query.before else None,
        "limit": query.limit,
    }


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    # A cache: what a power cut takes is folded again from the log.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _remove(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
        name.unlink(missing_ok=True)
