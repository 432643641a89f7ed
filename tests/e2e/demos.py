"""A demo as a user starts it, and what it leaves on the machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def demo(
    folder: Path, *words: str, module: str = "deploy.dev.demo", **more: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A demo as a process, its temporary files below `folder`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words),
        env={**os.environ, "TMPDIR": str(folder), **more},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def living(folder: Path) -> list[str]:
    """The command lines of processes that were told of the folder."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.append(command)
    return found
