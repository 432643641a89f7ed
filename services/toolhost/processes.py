"""Runs commands for tools: bounded in time and output, with a chosen environment, and without survivors.

Invariant: when `run` returns or is cancelled, no process of the command lives, and none outlives the tool host: a
launcher process (`launcher.py`) stands between the two, owns all descendants and kills them when its input closes.
Every process of a call carries `PERDURE_CALL=<call id>` in its environment, and the caller is told the process group
before the command is executed, so that the next host can clean up even if host and launcher were killed together.
"""

import asyncio
import errno
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from libs.contracts.clock import Clock
from services.toolhost import launcher
from services.toolhost.cgroups import Cgroups, Group
from services.toolhost.errors import CommandNotStarted
from services.toolhost.marks import CALL_MARKER, kill_group, kill_marked
from services.toolhost.output import OutputRing

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
# How long a launcher may take to start, and to kill: both take milliseconds unless the machine is in deep trouble.
_LAUNCH_PATIENCE_S = 30.0
_KILL_PATIENCE_S = 10.0
_READ_BYTES = 1 << 16
# What may stand in a pipe whose writers are gone is at most its capacity; Linux allows 1 MiB to anybody.
_PIPE_BYTES_MAX = 1 << 20

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
    stderr together; `grace_s` lies between SIGTERM and SIGKILL. The rest is for sandboxes: see `launcher.request`."""

    argv: list[str]
    directory: Path
    call_id: str
    timeout_s: float
    output_bytes_max: int
    environment: dict[str, str] = {}
    grace_s: float = 1.0
    spare_leader: bool = False
    filter_program: bytes = b""
    limits: Limits | None = None
    removal: list[str] = []


class ProcessOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is its own, also when that is 137 or 143; `signal` is set instead when a
    signal ended it. `timed_out` and `cancelled` say that *we* ended it, `out_of_memory` that the kernel did, at the
    bound of its control group. `leftovers` were killed after it had ended."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    cancelled: bool
    output: str
    output_bytes: int
    dropped_bytes: int
    duration_s: float
    leftovers: int
    out_of_memory: bool = False


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

    async def run(
        self, command: Command, *, on_started: OnStarted | None = None, stop: asyncio.Event | None = None
    ) -> ProcessOutcome:
        """Runs the command to its end. `on_started(process group, start time)` is awaited before it is executed; if
        that raises, it never is. `stop` ends it in the same way as a timeout (SIGTERM, grace, SIGKILL), and so does
        the cancellation of this task. Raises `CommandNotStarted`."""
        home = tempfile.mkdtemp(prefix="perdure-home-", dir=self._scratch)
        group = self._group()
        try:
            outcome = await self._run_in(self._request(command, home, group.doors), command, on_started, stop)
            # Nobody is in it any more, unless the launcher itself was killed.
            group.kill()
            return msgspec.structs.replace(outcome, out_of_memory=group.ran_out_of_memory())
        finally:
            group.remove()
            # A command may have filled its home with caches: not on the loop's time.
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    def _group(self) -> Group:
        if self._cgroups is None:
            return Group(())
        try:
            return self._cgroups.make()
        except OSError as error:
            # It was possible when this host began. Without its bounds a command is not run.
            raise CommandNotStarted(f"the control group could not be made: {error.strerror}") from error

    async def _run_in(
        self, request: bytes, command: Command, on_started: OnStarted | None, stop: asyncio.Event | None
    ) -> ProcessOutcome:
        supervised = await _Supervised.start(request, command.output_bytes_max)
        try:
            pid, start = await supervised.started()
            if on_started is not None:
                await on_started(pid, start)
            began_s = self._clock.monotonic()
            supervised.order(b"G")
            timed_out = cancelled = False
            if not await supervised.ended(command.timeout_s, stop):
                cancelled = stop is not None and stop.is_set()
                timed_out = not cancelled
                await supervised.end(command.grace_s)
            await supervised.close()
            if not supervised.is_done:
                # The launcher itself was killed: its own promise falls to us.
                kill_group(pid, start)
                kill_marked(command.call_id)
            return supervised.outcome(
                timed_out=timed_out, cancelled=cancelled, duration_s=self._clock.monotonic() - began_s
            )
        except asyncio.CancelledError:
            await supervised.end(command.grace_s)
            raise
        finally:
            await supervised.close()

    def _request(self, command: Command, home: str, doors: list[str]) -> bytes:
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
                limits=_limits(command.limits, counted=bool(doors)),
                doors=doors,
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


class _Supervised:
    """One launcher with its pipes."""

    def __init__(self, process: Process, output_fd: int, status_fd: int, bytes_max: int) -> None:
        self._process = process
        self._output_fd = output_fd
        self._status_fd = status_fd
        self._ring = OutputRing(bytes_max)
        self._lines: dict[str, list[int]] = {}
        self._pending = b""
        self._changed = asyncio.Event()
        self._status_open = True
        self._closed = False
        loop = asyncio.get_running_loop()
        loop.add_reader(output_fd, self._read_output)
        loop.add_reader(status_fd, self._read_status)

    @classmethod
    async def start(cls, request: bytes, bytes_max: int) -> "_Supervised":
        with ExitStack() as written, ExitStack() as unread:
            output_r, output_w = os.pipe()
            unread.callback(os.close, output_r)
            written.callback(os.close, output_w)
            status_r, status_w = os.pipe()
            unread.callback(os.close, status_r)
            written.callback(os.close, status_w)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", launcher.__file__, str(status_w)),
                stdin=asyncio.subprocess.PIPE,
                stdout=output_w,
                stderr=output_w,
                pass_fds=(status_w,),
                env={},
                start_new_session=True,
            )
            unread.pop_all()
        os.set_blocking(output_r, False)
        os.set_blocking(status_r, False)
        supervised = cls(process, output_r, status_r, bytes_max)
        supervised.order(request)
        return supervised

    @property
    def is_done(self) -> bool:
        return "done" in self._lines

    def order(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def started(self) -> tuple[int, int]:
        """The process group and its start time."""
        await self._until(lambda: "started" in self._lines or not self._status_open, _LAUNCH_PATIENCE_S)
        if "started" not in self._lines:
            raise CommandNotStarted(f"the launcher did not start: {self._ring.text().strip()[-300:]}")
        pid, start = self._lines["started"]
        return pid, start

    async def ended(self, timeout_s: float, stop: asyncio.Event | None) -> bool:
        """Waits for the launcher to finish; false when the time is over or `stop` was set while the command ran."""
        watcher = asyncio.create_task(self._relay(stop)) if stop is not None else None
        try:
            await self._until(
                lambda: not self._status_open or (stop is not None and stop.is_set()), timeout_s
            )
        finally:
            if watcher is not None:
                watcher.cancel()
        # A command that has ended by itself was not ended by us, even if its leftovers are still being cleared.
        if self._status_open and {"exited", "signaled"} & self._lines.keys():
            await self._until(lambda: not self._status_open, _KILL_PATIENCE_S)
        return not self._status_open

    async def end(self, grace_s: float) -> None:
        """SIGTERM, patience, SIGKILL: for all processes of the command."""
        self.order(b"T")
        await self._until(lambda: not self._status_open, grace_s)
        if self._status_open:
            self.order(b"K")
            await self._until(lambda: not self._status_open, _KILL_PATIENCE_S)

    async def close(self) -> None:
        """Lets go of the launcher, which then kills what is left. Returns when it has; may be called twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await self._process.wait()
        finally:
            if not self._closed:
                self._closed = True
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._output_fd)
                loop.remove_reader(self._status_fd)
                self._read_status()
                self._drain()
                os.close(self._output_fd)
                os.close(self._status_fd)

    def outcome(self, *, timed_out: bool, cancelled: bool, duration_s: float) -> ProcessOutcome:
        if "failed" in self._lines:
            code = self._lines["failed"][0]
            reason = "no such program or directory" if code == errno.ENOENT else os.strerror(code)
            raise CommandNotStarted(f"the command could not be started: {reason}")
        return ProcessOutcome(
            exit_code=self._lines.get("exited", [None])[0],
            signal=self._lines.get("signaled", [None])[0],
            timed_out=timed_out,
            cancelled=cancelled,
            output=self._ring.text(),
            output_bytes=self._ring.total_bytes,
            dropped_bytes=self._ring.dropped_bytes,
            duration_s=duration_s,
            leftovers=self._lines.get("done", [0])[0],
        )

    async def _relay(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _until(self, condition: Callable[[], bool], patience_s: float) -> None:
        """Returns when the condition holds or the patience ends, whichever is first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    def _read_output(self) -> None:
        with suppress(BlockingIOError):
            block = os.read(self._output_fd, _READ_BYTES)
            self._ring.add(block)
            if not block:
                asyncio.get_running_loop().remove_reader(self._output_fd)

    def _drain(self) -> None:
        drained = 0
        with suppress(BlockingIOError):
            while drained <= _PIPE_BYTES_MAX and (block := os.read(self._output_fd, _READ_BYTES)):
                self._ring.add(block)
                drained += len(block)

    def _read_status(self) -> None:
        with suppress(BlockingIOError):
            block = os.read(self._status_fd, _READ_BYTES)
            *lines, self._pending = (self._pending + block).split(b"\n")
            for line in lines:
                word, *numbers = line.decode().split()
                self._lines[word] = [int(number) for number in numbers]
            if not block:
                self._status_open = False
                asyncio.get_running_loop().remove_reader(self._status_fd)
            self._changed.set()
