"""A small disk of its own for a server's store, which a test fills up and empties again.

Invariant: the disk is real (a tmpfs of a private mount namespace: no rights are needed where users may have namespaces)
and goes with the process that holds it; nothing else on the machine sees it or can be filled by it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

_PAGE = b"\0" * 4096
_MOUNT = 'mount -t tmpfs -o size=$1 small "$0" && echo mounted && exec sleep infinity'


class NoSmallDisk(Exception):
    """This machine lets nobody mount anything; the message is what it said."""


class SmallDisk:
    """`path` is the disk, reached through the process that holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filling = path / "filling"

    def fill(self) -> None:
        """Leave no byte free."""
        descriptor = os.open(self._filling, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                os.write(descriptor, _PAGE)
        except OSError:
            return
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give back what was filled."""
        self._filling.unlink()


@asynccontextmanager
async def small_disk(at: Path, megabytes: int) -> AsyncGenerator[SmallDisk]:
    """A disk of so many megabytes, with a link to it at `at`. Raises `NoSmallDisk`."""
    root = at.with_name(f"{at.name}-disk")
    root.mkdir(parents=True)
    holder = await asyncio.create_subprocess_exec(
        *("unshare", "-Urm", "sh", "-c", _MOUNT, str(root), f"{megabytes}m"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        assert holder.stdout is not None
        said = await holder.stdout.readline()
        if said != b"mounted\n":
            raise NoSmallDisk(said.decode(errors="replace").strip())
        disk = SmallDisk(Path(f"/proc/{holder.pid}/root{root}"))
        at.symlink_to(disk.path)
        yield disk
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()
