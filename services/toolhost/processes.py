"""Runs commands for tools: bounded in time and output, with a chosen environment, and without survivors.

Invariant: when `run` returns or is cancelled, no process of the command lives, and none outlives the tool host: a
launcher process (`launcher.py`) stands between the two, owns all descendants and kills them when its input closes.
Every process of a call carries `PERDURE_CALL=<call id>` in its environment, and the caller is told the process group
before the command is executed, so that the next host can clean up even if host and launcher were killed together.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from libs.contracts.clock import Clock
from services.toolhost import launcher
from services.toolhost.cgroups import Cgroups, Group
from services.toolhost.errors import CommandNotStarted
from services.toolhost.launched import Launched, ProcessOutcome
from services.toolhost.launchpad import Launchpad
from services.toolhost.marks import CALL_MARKER, kill_group, kill_marked

# Names that a command may inherit from the host. Everything else, keys above all, stays behind.
_INHERITED = frozenset({"PATH", "TZ"})
# No program may wait for a person: pagers, editors and credential prompts are switched off.
FIXED_ENVIRONMENT = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "EDITOR": "true",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# The kernel refuses one string above 128 KiB and all of them above a quarter of the stack limit (2 MiB usually).
_STRING_BYTES_MAX = 128 * 1024 - 1
_STRINGS_BYTES_MAX = 2 * 1024 * 1024 - 64 * 1024
OnStarted = Callable[[int, int], Awaitable[None]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel allows each process of a command. `processes` is what the user may have beyond those of now, where
    control groups do not count them."""

    processes: int = 512
    # Private writable memory: unlike address space, which garbage collectors reserve by the terabyte.
    data_bytes: int = 4 << 30
    file_bytes: int = 2 << 30
    open_files: int = 4096


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `environment` is added to the fixed one; `output_bytes_max` bounds what is kept of stdout and
    stderr together; `grace_s` lies between SIGTERM and SIGKILL; `readable` are paths that it may read in a sandbox beside
    those that all may. The rest is for sandboxes: see `launcher.request`."""

    argv: list[str]
    directory: Path
    call_id: str
    timeout_s: float
    output_bytes_max: int
    environment: dict[str, str] = {}
    readable: list[Path] = []
    grace_s: float = 1.0
    spare_leader: bool = False
    filter_program: bytes = b""
    limits: Limits | None = None
    removal: list[str] = []


class Processes:
    """Starts commands on behalf of tools. `inherited` is the host's environment, of which an allow-list is used; in
    `scratch` (default: the system's) each command gets a home that goes with it, unless the host is killed first; with
    `cgroups` each has a group of its own."""

    def __init__(
        self,
        *,
        clock: Clock,
        inherited: Mapping[str, str],
        scratch: Path | None = None,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._clock = clock
        self._cgroups = cgroups
        self._scratch = scratch
        self._inherited = {name: value for name, value in inherited.items() if name in _INHERITED}
        self._launchpad = Launchpad()

    async def aclose(self) -> None:
        """Let go of what commands are started with. None of them runs any more."""
        await self._launchpad.close()

    async def run(
        self, command: Command, *, on_started: OnStarted | None = None, stop: asyncio.Event | None = None
    ) -> ProcessOutcome:
        """Runs the command to its end. `on_started(process group, start time)` is awaited before it is executed; if
        that raises, it never is. `stop` ends it in the same way as a timeout (SIGTERM, grace, SIGKILL), and so does
        the cancellation of this task. Raises `CommandNotStarted`."""
        home = tempfile.mkdtemp(prefix="perdure-home-", dir=self._scratch)
        try:
            request = self._request(command, home)
            launched = await self._launched()
            try:
                outcome = await self._run_in(launched, request, command, on_started, stop)
                # Nobody is in it any more, unless the launcher itself was killed.
                launched.group.kill()
                return msgspec.structs.replace(outcome, out_of_memory=launched.group.ran_out_of_memory())
            finally:
                await self._let_go(launched)
        finally:
            # A command may have filled its home with caches: not on the loop's time.
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _run_in(
        self,
        launched: Launched,
        request: bytes,
        command: Command,
        on_started: OnStarted | None,
        stop: asyncio.Event | None,
    ) -> ProcessOutcome:
        try:
            pid, start = await launched.started()
            if on_started is not None:
                await on_started(pid, start)
            began_s = self._clock.monotonic()
            launched.begin(request, command.output_bytes_max)
            timed_out = cancelled = False
            if not await launched.ended(command.timeout_s, stop):
                cancelled = stop is not None and stop.is_set()
                timed_out = not cancelled
                await launched.end(command.grace_s)
            await launched.close()
            if not launched.is_done:
                # The launcher itself was killed: its own promise falls to us.
                kill_group(pid, start)
                kill_marked(command.call_id)
            return launched.outcome(
                timed_out=timed_out, cancelled=cancelled, duration_s=self._clock.monotonic() - began_s
            )
        except asyncio.CancelledError:
            await launched.end(command.grace_s)
            raise

    async def _launched(self) -> Launched:
        with ExitStack() as unless_launched:
            group = self._group()
            unless_launched.callback(group.remove)
            try:
                launched = await self._launchpad.launch(group)
            except OSError as error:
                raise CommandNotStarted(f"no process could be started: {error.strerror}") from error
            unless_launched.pop_all()
            return launched

    async def _let_go(self, launched: Launched) -> None:
        """End what is left of it. May be called twice."""
        try:
            await launched.close()
        finally:
            launched.group.remove()

    def _group(self) -> Group:
        if self._cgroups is None:
            return Group(())
        try:
            return self._cgroups.make()
        except OSError as error:
            # It was possible when this host began. Without its bounds a command is not run.
            raise CommandNotStarted(f"the control group could not be made: {error.strerror}") from error

    def _request(self, command: Command, home: str) -> bytes:
        environment = {
            **self._inherited,
            **FIXED_ENVIRONMENT,
            "HOME": home,
            "TMPDIR": home,
            **command.environment,
        }
        environment[CALL_MARKER] = command.call_id
        sizes = {name: len(name) + len(os.fsencode(value)) + 2 for name, value in environment.items()}
        sizes |= {
            f"argument {index}": len(os.fsencode(value)) + 1 for index, value in enumerate(command.argv)
        }
        if not command.argv:
            raise CommandNotStarted("the command is empty; give a program and its arguments")
        if large := [name for name, size in sizes.items() if size > _STRING_BYTES_MAX]:
            raise CommandNotStarted(f"{large[0]} is longer than the system allows; pass it in a file")
        if sum(sizes.values()) > _STRINGS_BYTES_MAX:
            raise CommandNotStarted(
                "arguments and environment are longer than the system allows; pass them in a file"
            )
        try:
            return launcher.request(
                command.argv,
                str(command.directory),
                environment,
                spare_leader=command.spare_leader,
                filter_program=command.filter_program,
                limits=_limits(command.limits, counted=self._cgroups is not None),
                removal=command.removal,
            )
        except ValueError as error:
            raise CommandNotStarted(f"{error}") from None


def _limits(limits: Limits | None, *, counted: bool) -> str:
    """As the launcher reads them. A control group counts processes better than the user's limit does."""
    if limits is None:
        return "0 0 0 0"
    processes = 0 if counted else limits.processes
    return f"{processes} {limits.data_bytes} {limits.file_bytes} {limits.open_files}"
