"""A private PostgreSQL server for tests: its own folder, its own port, nobody's data.

Invariant: it runs as somebody without rights (the server refuses root), and it is gone when its test session ends.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] it has none
import pytest

from deploy.dev.nats_server import free_port
from tests.fakes.waiting import PATIENCE_S

ABSENT = "there is no PostgreSQL server: apt-get install postgresql"
# Where Debian puts what is no command of a user.
_DEBIAN = Path("/usr/lib/postgresql")
_NOBODY = "nobody"

_schemas = itertools.count(1)


def fresh_schema() -> str:
    """A schema that no other test of this session has."""
    return f"t{next(_schemas)}"


class PostgresServer:
    """One server process over one folder. It can be stopped and started again on the same port."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder, self.port = programs, folder, free_port()
        self._user = _NOBODY if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the empty cluster."""
        if self._user is not None:
            found = pwd.getpwnam(self._user)
            os.chown(self._folder, found.pw_uid, found.pw_gid)
        options = ("--username=tester", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        self._run("initdb", *options)

    def start(self) -> None:
        """Until it answers."""
        settings = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off "
            "-c max_connections=40 -c shared_buffers=16MB"
        )
        self._run("pg_ctl", "--wait", f"--log={self._folder / 'log'}", f"--options={settings}", "start")

    def stop(self) -> None:
        """At once: connections are closed."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "--wait", "--mode=fast", "stop")

    async def execute(self, query: str) -> Sequence[Sequence[object]]:
        connection = cast("Any", await asyncpg.connect(self.url))  # pyright: ignore[reportUnknownMemberType] as above
        try:
            return await connection.fetch(query)
        finally:
            await connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        # Its output goes to a file: the server that it leaves behind would hold a pipe open.
        with (self._folder / "said").open("w+") as said:
            done = subprocess.run(
                [self._programs / program, f"--pgdata={self._data}", *arguments],
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=PATIENCE_S,
                check=False,
            )
            said.seek(0)
            assert done.returncode == 0, said.read()

    @property
    def _data(self) -> Path:
        return self._folder / "data"


def programs() -> Path | None:
    """Where `initdb` and `postgres` are; the newest, where there are several."""
    for folder in sorted(_DEBIAN.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True):
        if (folder / "initdb").is_file():
            return folder
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found is not None else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server, shared by all tests of the session."""
    found = programs()
    if found is None:
        pytest.skip(ABSENT)
    # Not below pytest's own folder, which is closed to others.
    folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    server = PostgresServer(found, folder)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
