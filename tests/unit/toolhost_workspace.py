"""A workspace for tests: a real folder with a guard, a hidden repository, and a context for calls."""

import asyncio
import os
import subprocess
from contextlib import aclosing, suppress
from pathlib import Path

from libs.chassis.clock import SystemClock
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.launched import ProcessOutcome
from services.toolhost.marks import marked
from services.toolhost.processes import Command, OnStarted, Processes
from services.toolhost.repository import HiddenRepository
from services.toolhost.sandbox.none import NoSandbox
from services.toolhost.tools import Outcome, ToolContext
from services.toolhost.tools.catalog import TOOLS, perform
from services.toolhost.undo import UndoLog

# Generous, because the machine may be busy; nothing waits this long when all is well.
PATIENCE_S = 20.0


def processes() -> Processes:
    """To be closed once commands have run with it."""
    return Processes(clock=SystemClock(), inherited=os.environ)


async def run_alone(
    command: Command, *, on_started: OnStarted | None = None, stop: asyncio.Event | None = None
) -> ProcessOutcome:
    """Runs one command, and nothing else with the same processes."""
    async with aclosing(processes()) as alone:
        return await alone.run(command, on_started=on_started, stop=stop)


def context(folder: Path, **changes: object) -> ToolContext:
    """A context over `folder/work`, which is made; keyword arguments replace its fields."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    fields: dict[str, object] = {
        "call_id": "call_1",
        "guard": WorkspaceGuard(work),
        "repository": HiddenRepository(git_dir=folder / ".perdure-git" / "work.git", worktree=work),
        "undo": UndoLog(folder / ".perdure-git" / "work.undo"),
        "processes": processes(),
        "sandbox": NoSandbox(),
        "timeout_s": PATIENCE_S,
    }
    return ToolContext(**(fields | changes))  # pyright: ignore[reportArgumentType] - the names are checked at run time.


def git(folder: Path, *arguments: str) -> bytes:
    """What the user's own git says; it has no other configuration than this."""
    settings = ("-c", "user.name=Somebody", "-c", "user.email=s@example.org", "-c", "core.autocrlf=false")
    return subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True).stdout


async def call(tools: ToolContext, name: str, /, **arguments: object) -> Outcome:
    return await perform(TOOLS[name], tools, arguments)


def asleep(call_id: str) -> int:
    """How many processes of the call are `sleep` by now: then the shell around them has nothing left to start."""
    count = 0
    for pid in marked(call_id):
        with suppress(OSError):
            count += Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    return count
