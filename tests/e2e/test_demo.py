"""The demo as a user starts it: it proves the main job, and leaves the machine as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

# The demo bounds itself at 60 s and its drain behind that; this is for a demo whose own watchdog fails.
_DEADLINE_S = 100.0


@asynccontextmanager
async def demo(folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The demo as a process, its temporary files below `folder`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.dev.demo"),
        env={**os.environ, "TMPDIR": str(folder)},
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


async def test_the_demo_ends_completed_and_passed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with demo(tmp_path) as process, asyncio.timeout(_DEADLINE_S):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    for part in (
        "tool.completed",
        "verification PASSED",
        "+    share, left_over = divmod",
        "COMPLETED, PASSED",
    ):
        assert part in text, text
    assert "\x1b" not in text
    assert not list(tmp_path.iterdir())
    assert not living(tmp_path)


async def test_an_interrupted_demo_stops_all_that_it_started(tmp_path: Path) -> None:
    async with demo(tmp_path) as process, asyncio.timeout(_DEADLINE_S):
        assert process.stdout is not None
        while b"ready after" not in await process.stdout.readline():
            assert process.returncode is None
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert not living(tmp_path)
    assert not list(tmp_path.iterdir())
