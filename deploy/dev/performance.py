"""What every demo has around its play: a folder and a log of its own, a watchdog, and an end that says how it went.

Invariant: the exit code is 0 only when the play says that it held; when it ends, by whatever, no process is left, and no
file unless it failed and the logs are worth reading.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import uvloop

from deploy.cli.terminal import Screen, printable
from deploy.dev.mergedlog import MergedLog
from libs.contracts.errors import PerdureError

_TAIL_LINES = 15

Play = Callable[[Path, MergedLog, Screen], Awaitable[bool]]


def perform(play: Play, *, watchdog_s: float, advice: str = "") -> NoReturn:
    """Run the play and exit. What takes longer than `watchdog_s` hangs; `advice` is told after a failure."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    log = MergedLog((folder / "demo.log").open("w", encoding="utf-8"), readable=False)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            held = runner.run(_bounded(play, folder, log, watchdog_s))
    except KeyboardInterrupt:
        sys.exit(_swept(folder, log, 130))
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; nothing more can be written there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_swept(folder, log, 1))
    log.close()
    if not held:
        _explain(folder)
        if advice:
            sys.stderr.write(f"demo: {advice}\n")
        sys.exit(1)
    shutil.rmtree(folder)
    sys.exit(0)


async def _bounded(play: Play, folder: Path, log: MergedLog, watchdog_s: float) -> bool:
    try:
        async with asyncio.timeout(watchdog_s):
            return await play(folder, log, Screen())
    except TimeoutError:
        sys.stderr.write(f"demo: not done after {watchdog_s:g} s\n")
    except PerdureError as error:
        sys.stderr.write(f"demo: {error.message}\n")
    return False


def _swept(folder: Path, log: MergedLog, code: int) -> int:
    log.close()
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _explain(folder: Path) -> None:
    """Where to look after a failure, and the last lines of it."""
    log = folder / "demo.log"
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]:
        sys.stderr.write(f"  {printable(line)}\n")
    sys.stderr.write(f"demo: failed; all logs are in {log}, the workspace beside it in data/workspaces\n")
