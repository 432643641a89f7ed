"""One launcher process with its pipes: how a host follows a command from the request to its end.

Invariant: nothing of the command is executed before the request was sent, and whoever closes this, or dies, ends all of it.
What the command says is bounded while it comes; what the launcher says is believed only while the launcher lives.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from services.toolhost.cgroups import Group
from services.toolhost.errors import CommandNotStarted
from services.toolhost.output import Kept, OutputRing

# How long a launcher may take to start, and to kill: both take milliseconds unless the machine is in deep trouble.
_LAUNCH_PATIENCE_S = 30.0
_KILL_PATIENCE_S = 10.0
_READ_BYTES = 1 << 16
# What may stand in a pipe whose writers are gone is at most its capacity; Linux allows 1 MiB to anybody.
_PIPE_BYTES_MAX = 1 << 20
# What a launcher says that fails before it has a command.
_COMPLAINT_BYTES_MAX = 1000


class ProcessOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `exit_code` is its own, also when that is 137 or 143; `signal` is set instead when a
    signal ended it. `timed_out` and `cancelled` say that *we* ended it, `out_of_memory` that the kernel did, at the
    bound of its control group. `leftovers` were killed after it had ended."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    cancelled: bool
    kept: Kept
    output_bytes: int
    dropped_bytes: int
    duration_s: float
    leftovers: int
    out_of_memory: bool = False

    @property
    def output(self) -> str:
        """What it said, as it came: for looks at it, not for showing."""
        return self.kept.text()


class Launched:
    """One launcher. It waits for a request from the moment it is made, with a process in `group` that will become the
    command."""

    def __init__(self, group: Group, orders: asyncio.WriteTransport, output_fd: int, status_fd: int) -> None:
        self.group = group
        self._orders = orders
        self._output_fd = output_fd
        self._status_fd = status_fd
        self._ring = OutputRing(_COMPLAINT_BYTES_MAX)
        self._lines: dict[str, list[int]] = {}
        self._pending = b""
        self._changed = asyncio.Event()
        self._status_open = True
        self._begun = False
        self._closed = False
        loop = asyncio.get_running_loop()
        loop.add_reader(output_fd, self._read_output)
        loop.add_reader(status_fd, self._read_status)

    @property
    def is_done(self) -> bool:
        """Whether the launcher has said itself that nothing is left."""
        return "done" in self._lines

    def begin(self, request: bytes, output_bytes_max: int) -> None:
        """Execute the command."""
        self._ring = OutputRing(output_bytes_max)
        self._begun = True
        self._orders.write(request)

    async def started(self) -> tuple[int, int]:
        """The group and the start time of the process that waits. Raises `CommandNotStarted`."""
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
        """SIGTERM, patience, SIGKILL: for all processes of the command. Before there is one, `close` is enough."""
        if not self._begun:
            return
        self._orders.write(b"T")
        await self._until(lambda: not self._status_open, grace_s)
        if self._status_open:
            self._orders.write(b"K")
            await self._until(lambda: not self._status_open, _KILL_PATIENCE_S)

    async def close(self) -> None:
        """Lets go of the launcher, which then kills what is left. Returns when it has; may be called twice."""
        if self._closed:
            return
        if not self._orders.is_closing():
            self._orders.abort()
        try:
            # Without a bound: who goes on before it has ended would leave something of the command behind.
            await self._until(lambda: not self._status_open, None)
        finally:
            self._closed = True
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._output_fd)
            loop.remove_reader(self._status_fd)
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
            kept=self._ring.kept(),
            output_bytes=self._ring.total_bytes,
            dropped_bytes=self._ring.dropped_bytes,
            duration_s=duration_s,
            leftovers=self._lines.get("done", [0])[0],
        )

    async def _relay(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _until(self, condition: Callable[[], bool], patience_s: float | None) -> None:
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
