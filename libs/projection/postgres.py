"""The read model of many gateways: one PostgreSQL schema, written by whichever gateway is first with a record.

Invariant: rows and the position they stand for change in one transaction that excludes every other writer, so each
record is applied once, in order, however many gateways fold the same log; all of it can be dropped and is made anew.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] it has none

from libs.contracts.clock import Clock
from libs.contracts.envelope import Record
from libs.contracts.errors import BusUnavailable, ConfigurationError
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

# A gateway writes with one connection and reads with few: lists are short, and a database has connections to spare for
# dozens of gateways.
CONNECTIONS_MAX = 4
# One statement of a page or of a batch; the search through a long history is the slowest.
STATEMENT_S = 15.0
# How long a starting gateway waits for its database; both may start at the same time.
START_PATIENCE_S = 30.0
AGAIN_S = 0.5

_MIGRATIONS = Path(__file__).parent / "migrations"
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
# The database has no character U+0000.
_NUL, _INSTEAD = "\0", "\N{REPLACEMENT CHARACTER}"
# What waiting does not mend: whoever set DATABASE_URL has to.
_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReservedNameError,
    asyncpg.ClientConfigurationError,
)
_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

_log = logging.getLogger("perdure.projection")

Row = TypeVar("Row")


class _Connection(Protocol):
    """What is used of the vendor's connection, whose types are open."""

    async def execute(self, query: str, *values: object) -> str: ...
    async def fetch(self, query: str, *values: object) -> list[Sequence[object]]: ...
    async def fetchval(self, query: str, *values: object) -> int | None: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...


class _Pool(Protocol):
    """The same of its pool."""

    async def fetch(self, query: str, *values: object) -> list[Sequence[object]]: ...
    def acquire(self) -> AbstractAsyncContextManager[_Connection]: ...


class _Statement(NamedTuple):
    """SQL with numbered parameters, and their names in that order."""

    text: str
    names: tuple[str, ...]

    def values(self, named: Mapping[str, object]) -> list[object]:
        return [_storable(named[name]) for name in self.names]


@asynccontextmanager
async def open_postgres(url: str, schema: str, clock: Clock) -> AsyncGenerator["PostgresIndex"]:
    """Connect, waiting up to 30 s, and bring the schema of this deployment (its prefix) up to date.

    Raises `BusUnavailable` when no database answers, `ConfigurationError` when it does not let this process in.
    """
    async with asyncpg.create_pool(  # pyright: ignore[reportUnknownMemberType] as above
        url,
        min_size=0,
        max_size=CONNECTIONS_MAX,
        command_timeout=STATEMENT_S,
        server_settings={"application_name": "perdure", "search_path": f'"{schema}"'},
    ) as pool:
        index = PostgresIndex(cast("_Pool", pool), schema)
        await _patiently(index, clock)
        finishing = asyncio.create_task(index.finish())
        try:
            yield index
        finally:
            finishing.cancel()
            await asyncio.wait({finishing})


class PostgresIndex:
    """Rows of one schema. All methods may be called at any time from the event loop, by any number of gateways."""

    def __init__(self, pool: _Pool, schema: str) -> None:
        self._pool, self._schema = pool, schema
        found = statements("statements.sql", "lists_postgres.sql")
        self._statements = {name: _numbered(text) for name, text in found.items()}

    async def prepare(self) -> None:
        """What has to be there before this version starts: tables and columns are added, nothing is taken away."""
        async with self._writing(lock=False) as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", self._schema)
            there = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", self._schema)
            if there is None:
                await connection.execute(f'CREATE SCHEMA "{self._schema}"')
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations "
                "(name text PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            )
            await _migrate(connection, "pre")
            if await _written_by(connection) < FOLD_VERSION:
                await _clear(connection)
                await connection.execute("UPDATE written_by SET version = $1", FOLD_VERSION)

    async def finish(self) -> None:
        """What may come while this version already works: indexes, and later what no neighbouring version reads."""
        try:
            async with self._writing() as connection:
                await _migrate(connection, "post")
        except BusUnavailable as error:
            # The next start does it.
            _log.warning("projection.not_finished", extra={"fields": {"error": error.message}})

    async def positions(self) -> dict[int, Position]:
        rows = await self._page("positions", {}, Position)
        return {row.shard: row for row in rows}

    async def apply(self, shard: int, after: int, records: Sequence[Record]) -> int:
        async with self._writing() as connection:
            if await _written_by(connection) > FOLD_VERSION:
                # A later version makes the rows; this one shows what it made.
                return records[-1].header.stream_sequence
            found = await connection.fetchval("SELECT stream_sequence FROM positions WHERE shard = $1", shard)
            stands = found or 0
            fresh = [record for record in records if record.header.stream_sequence > stands]
            if stands < after or not fresh:
                return stands
            for record in fresh:
                for change in changes(record):
                    for name in names_of(change):
                        await self._execute(connection, name, change._asdict())
            last = fresh[-1]
            position = Position(
                shard, last.header.stream_sequence, last.tenant, last.log_id, last.header.message_id
            )
            await self._execute(connection, "move_position", position._asdict())
            return position.stream_sequence

    async def clear(self) -> None:
        async with self._writing() as connection:
            await _clear(connection)

    async def runs(self, query: RunQuery) -> list[RunRow]:
        searched = query.text.casefold() if query.text else None
        return await self._page("list_runs", _asked(query) | {"searched": searched}, RunRow)

    async def statuses(
        self, tenant: str, statuses: Collection[str], run_ids: Collection[str]
    ) -> dict[str, str]:
        named = {"tenant": tenant, "statuses": sorted(statuses), "run_ids": sorted(run_ids)}
        return dict(await self._page("list_statuses", named, _pair))

    async def projects(self, query: ProjectQuery) -> list[ProjectRow]:
        return await self._page("list_projects", _asked(query), ProjectRow)

    async def schedules(self, query: ScheduleQuery) -> list[ScheduleRow]:
        return await self._page("list_schedules", _asked(query), ScheduleRow)

    async def _page(self, name: str, named: Mapping[str, object], row: Callable[..., Row]) -> list[Row]:
        statement = self._statements[name]
        with _said_plainly():
            return [row(*found) for found in await self._pool.fetch(statement.text, *statement.values(named))]

    async def _execute(self, connection: _Connection, name: str, named: Mapping[str, object]) -> None:
        statement = self._statements[name]
        await connection.execute(statement.text, *statement.values(named))

    @asynccontextmanager
    async def _writing(self, *, lock: bool = True) -> AsyncGenerator[_Connection]:
        """A transaction; with the lock no other gateway writes meanwhile, and all may read."""
        with _said_plainly():
            async with self._pool.acquire() as connection, connection.transaction():
                if lock:
                    await connection.execute("LOCK TABLE positions IN EXCLUSIVE MODE")
                yield connection


def _pair(run_id: str, status: str) -> tuple[str, str]:
    return run_id, status


async def _patiently(index: PostgresIndex, clock: Clock) -> None:
    give_up_s = clock.monotonic() + START_PATIENCE_S
    while True:
        try:
            await index.prepare()
        except BusUnavailable:
            if clock.monotonic() > give_up_s:
                raise
            await clock.sleep(AGAIN_S)
        else:
            return


async def _migrate(connection: _Connection, when: str) -> None:
    """Apply what is missing of `migrations/*.<when>.sql`, in the order of the names."""
    done = {row[0] for row in await connection.fetch("SELECT name FROM migrations")}
    for path in sorted(_MIGRATIONS.glob(f"*.{when}.sql")):
        if path.name not in done:
            await connection.execute(path.read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO migrations (name) VALUES ($1)", path.name)
            _log.info("projection.migrated", extra={"fields": {"migration": path.name}})


async def _written_by(connection: _Connection) -> int:
    return await connection.fetchval("SELECT version FROM written_by") or 0


async def _clear(connection: _Connection) -> None:
    for table in ("runs", "questions", "projects", "schedules", "positions"):
        await connection.execute(f"DELETE FROM {table}")  # noqa: S608 one of the names above


def _asked(query: RunQuery | ProjectQuery | ScheduleQuery) -> dict[str, object]:
    """The parameters of a list."""
    return {
        **query._asdict(),
        "statuses": list(query.statuses) or None,
        "before_at": query.before.created_at if query.before else None,
        "before_id": query.before.run_id if query.before else None,
    }


def _numbered(text: str) -> _Statement:
    """`:name` as `$1`, the same name as the same number."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    return _Statement(_PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text), names)


def _storable(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return value.replace(_NUL, _INSTEAD) if isinstance(value, str) else value


@contextmanager
def _said_plainly() -> Generator[None]:
    """The vendor's exceptions stop here."""
    try:
        yield
    except _REFUSED as error:
        raise ConfigurationError(
            f"the database of DATABASE_URL does not let this process in: {error}; correct the address, the user, its "
            "password or its rights"
        ) from error
    except _AWAY as error:
        raise BusUnavailable(
            f"the database of DATABASE_URL does not answer as it should ({type(error).__name__}); lists are away until it "
            "does, runs and streams go on",
            retry_after_s=1,
        ) from error
