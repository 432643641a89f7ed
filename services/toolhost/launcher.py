"""The small process between a tool host and one command: it owns every process that the command leaves in the world.

Standard library only. `main` is the program that tool hosts keep for themselves (`launchpad.py`): it forks a launcher for
each message, in a tenth of the time that another interpreter takes to start.
Invariant: when a launcher ends, nothing of its command lives. It ends when the command does, when it is told to, and when
its standard input closes, which the death of the host does for it, by whatever signal. It is the sub-reaper of the
command, so a descendant cannot leave by `setsid` or by outliving its parent, and none stays a zombie.

Protocol. A message: three descriptors (input, output, status) and, between NULs, the doors of the command's control groups
(files; whoever writes 0 is in). Input: the request (see `request`), which is the order to go, then orders of one byte: `T`
terminate (SIGTERM to all; the host sends `K` when its patience ends), `K` kill. Status, one line each:
`started PID START_TIME` (of the process that waits for the request), `failed ERRNO`, `exited CODE` or `signaled NUMBER`
for the command itself, `done LEFTOVERS`, the number of processes that had to be killed after it.
A command that lives elsewhere (in a container) comes with the argv that removes it there, which is run at the end
unless the command has ended by itself.
"""

import ctypes
import errno
import os
import resource
import select
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from services.toolhost.proc import descendants, start_time, threads_of

# The numbers of Linux on all its common architectures.
_SIGKILL, _SIGTERM, _SIGCHLD, _SIGSTOP, _SIGNALS = 9, 15, 17, 19, 65
_DEFAULT, _IGNORED = 0, 1
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_MS = 10
# What the command left running may end by itself for this long: time to flush a pipe, not to do work.
_DRAIN_LOOKS = 20
# A killed process can stay for as long as the kernel holds it in a device; beyond this it is left to the system.
_KILL_LOOKS = 500
_READ_BYTES = 65536
# Doors are paths: one for each kind of control group.
_MESSAGE_BYTES_MAX = 16384
_DESCRIPTORS = 3

# Where a sandbox finds the program of its filter, far from the descriptors that anybody opens.
FILTER_FD = 99


def request(
    argv: Sequence[str],
    directory: str,
    environment: dict[str, str],
    *,
    spare_leader: bool = False,
    filter_program: bytes = b"",
    limits: str = "0 0 0 0",
    removal: Sequence[str] = (),
) -> bytes:
    """The request as the launcher reads it: a line with its size, then fields between NULs. `spare_leader`: SIGTERM
    goes to the leader's descendants only, because it is a sandbox that would take everything down at once.
    `filter_program` is to be read from `FILTER_FD`. `limits`: processes of the user beyond those of now, bytes of data,
    of a file, open files; 0 for none. Raises `ValueError` if something holds a NUL."""
    fields = ["spare" if spare_leader else "", directory, filter_program.hex(), limits]
    for listed in (removal, argv):
        fields += [str(len(listed)), *listed]
    fields += [f"{name}={value}" for name, value in environment.items()]
    if any("\0" in field for field in fields):
        raise ValueError("a command, its directory and its environment cannot contain NUL")
    body = "\0".join(fields).encode("utf-8", "surrogateescape")
    return b"%d\n" % len(body) + body


class _Wanted:
    """A request, read."""

    def __init__(self, fields: list[bytes]) -> None:
        spare, self.directory, program, limits, *rest = fields
        self.spare_leader = spare == b"spare"
        self.filter_program = bytes.fromhex(program.decode())
        self.limits = [int(limit) for limit in limits.split()]
        self.removal, rest = _counted(rest)
        self.argv, rest = _counted(rest)
        self.environment = dict(field.split(b"=", 1) for field in rest)


def _counted(fields: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    count = int(fields[0]) + 1
    return fields[1:count], fields[count:]


def main(channel_fd: int) -> NoReturn:
    """Fork launchers until the host is gone."""
    # What the host was given by whoever started it is not for commands, and not every event loop closes it.
    _close_all_but(0, 1, 2, channel_fd)
    libc = ctypes.CDLL(None, use_errno=True)
    # None of them is waited for, and none stays a zombie.
    libc.signal(_SIGCHLD, _IGNORED)
    channel = socket.socket(fileno=channel_fd)
    while True:
        message, fds, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES_MAX, _DESCRIPTORS)
        if len(fds) < _DESCRIPTORS:
            _wait_for_children()
            sys.exit(0)
        try:
            if os.fork() == 0:
                channel.close()
                _launch(libc, fds, os.fsdecode(message))
        except OSError as error:
            os.write(fds[1], str(error).encode())
        for fd in fds:
            os.close(fd)


def _wait_for_children() -> None:
    """They end with the host. Where that is the first process of a container, an orphan of ours would stay a zombie."""
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def _close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # It was the one of the listing.


def _launch(libc: ctypes.CDLL, fds: Sequence[int], doors: str) -> NoReturn:
    """Be a launcher, to the end."""
    source, output, status = fds
    try:
        os.setsid()
        libc.signal(_SIGCHLD, _DEFAULT)
        for fd, standard in ((source, 0), (output, 1), (output, 2)):
            os.dup2(fd, standard)
        os.close(source)
        os.close(output)
        os.set_inheritable(status, False)
        _Launcher(libc, status).serve(doors.split("\0") if doors else [])
    except OSError as error:
        os.write(2, str(error).encode())
    finally:
        os._exit(0)


class _Launcher:
    def __init__(self, libc: ctypes.CDLL, status_fd: int) -> None:
        self._libc = libc
        self._status_fd = status_fd
        self._leader = 0
        self._leader_ended = False
        self._spare_leader = False
        self._terminating = False
        self._buffer = b""

    def serve(self, doors: Sequence[str]) -> None:
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        request_r, request_w = os.pipe()
        failure_r, failure_w = os.pipe()
        self._leader = os.fork()
        if self._leader == 0:
            self._become(doors, request=(request_r, request_w), failure_fd=failure_w)
        os.close(request_r)
        os.close(failure_w)
        # The pipes of the output belong to the command alone, so that their end means that it has none left.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        self._say(f"started {self._leader} {start_time(self._leader) or 0}")
        wanted = self._read_request(request_w)
        if wanted is not None:
            self._spare_leader = wanted.spare_leader
            if code := os.read(failure_r, 16):
                self._say(f"failed {code.decode()}")
            self._watch()
        by_itself = self._leader_ended and not self._terminating
        leftovers = self._kill_all()
        if wanted is not None and wanted.removal and not by_itself:
            self._remove(wanted)
        self._say(f"done {leftovers}")

    def _read_request(self, leader_fd: int) -> "_Wanted | None":
        """The request, which the leader has then, too; `None` if the host is gone, or wants nothing any more."""
        whole, self._buffer = _whole_request(0)
        if whole is None:
            return None
        _hand_over(leader_fd, b"%d\n" % len(whole) + whole)
        os.close(leader_fd)
        return _Wanted(whole.split(b"\0"))

    def _order(self) -> bytes:
        """The next order; a closed input is the order to kill."""
        if not self._buffer:
            self._buffer = os.read(0, _READ_BYTES)
        order, self._buffer = self._buffer[:1], self._buffer[1:]
        return order or b"K"

    def _say(self, line: str) -> None:
        try:
            os.write(self._status_fd, line.encode() + b"\n")
        except BrokenPipeError:
            return

    def _become(self, doors: Sequence[str], *, request: tuple[int, int], failure_fd: int) -> None:
        """The child: a session of its own, dead with the launcher, executed when the request comes. Never returns."""
        try:
            os.setsid()
            self._libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
            os.close(request[1])
            _enter(doors)
            with open(os.devnull, "rb") as nowhere:
                os.dup2(nowhere.fileno(), 0)
            # What is ignored stays so across exec: two that Python ignores for itself, and those of whoever started us
            # in the background. SIGKILL, SIGSTOP and the C library's own refuse, and need nothing.
            for number in range(1, _SIGNALS):
                self._libc.signal(number, _DEFAULT)
            whole, _ = _whole_request(request[0])
            if whole is None:
                os._exit(125)
            wanted = _Wanted(whole.split(b"\0"))
            if wanted.filter_program:
                # Some hundred bytes; a pipe holds them without a reader.
                read_end, write_end = os.pipe()
                os.write(write_end, wanted.filter_program)
                os.close(write_end)
                os.dup2(read_end, FILTER_FD)
            _limit(*wanted.limits)
            os.chdir(wanted.directory)
            os.execvpe(wanted.argv[0], wanted.argv, wanted.environment)
        except OSError as error:
            os.write(failure_fd, str(error.errno or errno.EIO).encode())
        finally:
            os._exit(127)

    def _remove(self, wanted: _Wanted) -> None:
        """Runs the removal to its end, with nobody listening. Its failure is the next host's to find."""
        pid = os.fork()
        if pid == 0:
            try:
                os.execvpe(wanted.removal[0], wanted.removal, wanted.environment)
            finally:
                os._exit(127)
        os.waitpid(pid, 0)

    def _watch(self) -> None:
        """Until the command has ended and left nothing, or an order or the drain's end says to kill."""
        leader_fd = os.pidfd_open(self._leader) if hasattr(os, "pidfd_open") else -1
        poll = select.poll()
        poll.register(0, select.POLLIN)
        if leader_fd >= 0:
            poll.register(leader_fd, select.POLLIN)
        looks = 0
        while self._reap():
            if self._leader_ended and leader_fd >= 0:
                poll.unregister(leader_fd)
                os.close(leader_fd)
                leader_fd = -1
            if self._leader_ended:
                looks += 1
                if looks > _DRAIN_LOOKS and not self._terminating:
                    return
            # With a descriptor of the leader there is nothing to look at until it ends; what a sandbox leaves behind
            # is gone a moment later, so the first looks behind it come soon.
            look_ms = min(1 << min(looks, 4), _LOOK_MS) if looks else _LOOK_MS
            patience_ms = None if leader_fd >= 0 and not self._terminating else look_ms
            if self._buffer or any(fd == 0 for fd, _ in poll.poll(patience_ms)):
                if self._order() != b"T":
                    return
                self._terminating = True
                self._signal_all(_SIGTERM)

    def _reap(self) -> bool:
        """Collect what has ended. False when no child is left, and then no descendant either."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._leader:
                self._leader_ended = True
                code = os.waitstatus_to_exitcode(status)
                self._say(f"exited {code}" if code >= 0 else f"signaled {-code}")

    def _kill_all(self) -> int:
        """Until nothing is left; returns how many there were after the command had ended."""
        leftovers: set[int] = set()
        nothing = select.poll()
        for _ in range(_KILL_LOOKS):
            if not self._reap():
                break
            found = self._signal_all(_SIGKILL)
            if self._leader_ended:
                leftovers.update(found)
            nothing.poll(_LOOK_MS)
        return len(leftovers)

    def _signal_all(self, number: int) -> list[int]:
        """Parents first: a shell that hears of its end before that of its child still runs its trap."""
        found = descendants(os.getpid())
        if not found and not self._leader_ended:
            found = [self._leader]
        if number == _SIGTERM and self._spare_leader:
            found = [pid for pid in found if pid != self._leader]
        # Who is to be killed is stopped first, so that no parent can fork or complain about the death of a child.
        for signal_number in (_SIGSTOP, _SIGKILL) if number == _SIGKILL else (number,):
            for pid in found:
                try:
                    os.kill(pid, signal_number)
                except OSError:
                    continue
        return found


def _whole_request(fd: int) -> tuple[bytes | None, bytes]:
    """The request that comes through `fd`, and what came behind it; `None` if its end is missing."""
    blocks: list[bytes] = []
    held, size = 0, -1
    while size < 0 or held < size:
        block = os.read(fd, _READ_BYTES)
        if not block:
            return None, b""
        blocks.append(block)
        held += len(block)
        if size < 0 and b"\n" in block:
            line, _, block = b"".join(blocks).partition(b"\n")
            size, held, blocks = int(line), len(block), [block]
    whole = b"".join(blocks)
    return whole[:size], whole[size:]


def _hand_over(fd: int, data: bytes) -> None:
    """To the leader. If that has failed already, it has said why."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        return


def _enter(doors: Sequence[str]) -> None:
    for door in doors:
        fd = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
    # Whatever runs short of memory on this machine, the commands go before the host and its neighbours. Raising this
    # is everybody's right, but not every system has it.
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        return


def _limit(processes: int, data: int, file: int, files: int) -> None:
    """The limits of each process. That of processes is the user's and counts all that there are; root has none."""
    wanted = [(resource.RLIMIT_CORE, 0)]
    if processes and os.geteuid():
        wanted.append((resource.RLIMIT_NPROC, threads_of(os.geteuid()) + processes))
    wanted += [(resource.RLIMIT_DATA, data)] if data else []
    wanted += [(resource.RLIMIT_FSIZE, file)] if file else []
    wanted += [(resource.RLIMIT_NOFILE, files)] if files else []
    for kind, limit in wanted:
        _, most = resource.getrlimit(kind)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, limit))
