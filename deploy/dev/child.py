"""One program that the launcher keeps running: start, merge its output, restart with backoff, drain.

Invariant: a child is its own session and dies with the launcher (`tether.py`); whatever its process group leaves
behind when it ends is killed before it is started again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from deploy.dev.mergedlog import LINE_CHARS_MAX, MergedLog

_TETHER = str(Path(__file__).with_name("tether.py"))
# The first restart is immediate, so that one crash costs as little as possible; a program that keeps dying gets
# 0.5, 1, 2 … seconds of rest, at most 10, until it has once lived for 30.
_BACKOFF_S = 0.5
_BACKOFF_S_MAX = 10.0
_HEALTHY_LIFE_S = 30.0
# After the end of the child only a process that it left behind can keep its output open.
_OUTPUT_S = 1.0
_READ_BYTES = 65_536
EXIT_NOT_STARTED = 126
# The exit code of a service that cannot run with its settings (libs/chassis/run.py).
EXIT_CONFIGURATION = 2


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: the whole environment is named, nothing is inherited. `drain_s` is how long SIGTERM may take;
    without a `directory` it runs where the launcher does; no restart waits longer than `restart_s_max`."""

    name: str
    argv: Sequence[str]
    environment: dict[str, str]
    drain_s: float
    descriptors: tuple[int, ...] = ()
    directory: Path | None = None
    restart_s_max: float = _BACKOFF_S_MAX


def restart_delay_s(deaths: int) -> float:
    """How long to wait after the `deaths`-th early death in a row (from 1)."""
    return 0.0 if deaths <= 1 else min(_BACKOFF_S_MAX, _BACKOFF_S * 2.0 ** min(deaths - 2, 10))


class Child:
    """Supervises one program. `run` goes until `drain` has been called and the program has ended, or until the
    program has refused its settings at its first start."""

    def __init__(self, program: Program, log: MergedLog) -> None:
        self.program = program
        self.starts = 0
        self.last_exit: int | None = None
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._killed: int | None = None
        self._draining = asyncio.Event()
        self._tail: list[str] = []

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int | None:
        """The pid of the living process; `None` between two lives, which begins with the SIGKILL that is sent here."""
        process = self._process
        if process is None or process.returncode is not None or process.pid == self._killed:
            return None
        return process.pid

    @property
    def last_lines(self) -> str:
        """What it wrote last, for an error that has to explain why it does not run: its own reason where it gave one."""
        return _reason(self._tail[-1]) or "\n".join(self._tail) if self._tail else ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; quiet when there is none."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            if number == signal.SIGKILL:
                self._killed = self._process.pid

    def end(self) -> None:
        """Kill it, for good."""
        self._draining.set()
        self.send(signal.SIGKILL)

    async def run(self) -> None:
        """Keep the program running. Cancelling kills it."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._draining.is_set():
            began = loop.time()
            self.last_exit = await self._live()
            if self._draining.is_set():
                return
            if self.last_exit == EXIT_CONFIGURATION and self.starts == 1:
                # Its settings are refused before it ever ran: the same start again says the same again.
                return
            deaths = 1 if loop.time() - began > _HEALTHY_LIFE_S else deaths + 1
            delay_s = min(restart_delay_s(deaths), self.program.restart_s_max)
            self._log.say(
                "child.died", level="warning", child=self.name, exit=self.last_exit, restart_in_s=delay_s
            )
            try:
                async with asyncio.timeout(delay_s):
                    await self._draining.wait()
            except TimeoutError:
                continue

    async def drain(self) -> int | None:
        """SIGTERM, and SIGKILL to its process group when it takes too long. Returns its exit code once it has ended."""
        self._draining.set()
        process = self._process
        if process is None or process.returncode is not None:
            return self.last_exit
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.program.drain_s):
                await process.wait()
        except TimeoutError:
            self._log.say(
                "child.killed", level="warning", child=self.name, drain_overran_s=self.program.drain_s
            )
            _kill_group(process.pid)
        return await process.wait()

    async def _live(self) -> int:
        """One life of the program; returns its exit code (negative: the signal that ended it)."""
        self.starts += 1
        try:
            process = await self._start()
        except OSError as error:
            # Out of processes or descriptors: not the program's fault, and it may pass.
            self._line(f"cannot start {self.name}: {error.strerror}".encode())
            return EXIT_NOT_STARTED
        self._process = process
        assert process.stdout is not None
        output = asyncio.create_task(self._merge(process.stdout))
        try:
            if self._draining.is_set():
                # Drained between the decision to start and the start.
                self.send(signal.SIGTERM)
            code = await process.wait()
        finally:
            _kill_group(process.pid)
            await process.wait()
            await asyncio.wait({output}, timeout=_OUTPUT_S)
            output.cancel()
        return code

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _TETHER, str(os.getpid()), *self.program.argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.program.environment,
            cwd=self.program.directory,
            start_new_session=True,
            pass_fds=self.program.descriptors,
        )

    async def _merge(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_CHARS_MAX:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self._line(line)
        self._line(rest)

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if text.strip():
            self._tail = [*self._tail[-4:], text[:LINE_CHARS_MAX]]
            self._log.line(self.name, text)


def _reason(line: str) -> str | None:
    """What a service says when it ends of an error (libs/chassis/run.py)."""
    try:
        return msgspec.json.decode(line, type=_LastWord).message
    except msgspec.MsgspecError:
        return None


class _LastWord(msgspec.Struct, frozen=True):
    """A log line that tells a reason."""

    message: str


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # Nobody is left. (Where only zombies are left, some systems answer that it is not permitted.)
        return
