"""The small process between a tool host and one command: it owns every process that the command leaves in the world.

Run as `python -I -S launcher.py STATUS_FD`, standard library only, so that it starts in milliseconds.
Invariant: when it ends, nothing of the command lives. It ends when the command does, when it is told to, and when
its standard input closes, which the death of the host does for it, by whatever signal. It is the sub-reaper of the
command, so a descendant cannot leave by `setsid` or by outliving its parent, and none stays a zombie.

Protocol. Standard input: a line with the size in bytes of the request, the request (NUL-separated, see `request`), then
orders of one byte: `G` go, `T` terminate (SIGTERM to all; the host sends `K` when its patience ends), `K` kill. Status descriptor, one line each:
`started PID START_TIME` (the command waits for `G` before it is executed), `failed ERRNO`, `exited CODE` or
`signaled NUMBER` for the command itself, `done LEFTOVERS`, the number of processes that had to be killed after it.
A command that lives elsewhere (in a container) comes with the argv that removes it there, which is run at the end
unless the command has ended by itself.
"""

import ctypes
import errno
import os
import resource
import select
import sys
from collections.abc import Sequence

SIGKILL, SIGTERM = 9, 15
_SIGPIPE, _SIGXFSZ, _SIGSTOP = 13, 25, 19  # The numbers of Linux on all its common architectures.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_MS = 10
# What the command left running may end by itself for this long: time to flush a pipe, not to do work.
_DRAIN_LOOKS = 20
# A killed process can stay for as long as the kernel holds it in a device; beyond this it is left to the system.
_KILL_LOOKS = 500
_READ_BYTES = 65536


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
    doors: Sequence[str] = (),
    removal: Sequence[str] = (),
) -> bytes:
    """The request as the launcher reads it. `spare_leader`: SIGTERM goes to the leader's descendants only, because
    it is a sandbox that would take everything down at once. `filter_program` is to be read from `FILTER_FD`. `limits`:
    processes of the user beyond those of now, bytes of data, of a file, open files; 0 for none. `doors`: files of
    control groups to write 0 into. Raises `ValueError` if something holds a NUL."""
    fields = ["spare" if spare_leader else "", directory, filter_program.hex(), limits]
    for listed in (doors, removal, argv):
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
        self.doors, rest = _counted(rest)
        self.removal, rest = _counted(rest)
        self.argv, rest = _counted(rest)
        self.environment = dict(field.split(b"=", 1) for field in rest)


def _counted(fields: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    count = int(fields[0]) + 1
    return fields[1:count], fields[count:]


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot (None: there is none). With the pid it names a process for good."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def main() -> None:
    """Serve one command."""
    status_fd = int(sys.argv[1])
    os.set_inheritable(status_fd, False)
    _Launcher(status_fd).serve()


class _Launcher:
    def __init__(self, status_fd: int) -> None:
        self._status_fd = status_fd
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._leader = 0
        self._leader_ended = False
        self._spare_leader = False
        self._terminating = False
        self._buffer = b""

    def serve(self) -> None:
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wanted = _Wanted(self._read_request())
        self._spare_leader = wanted.spare_leader
        gate_r, gate_w = os.pipe()
        failure_r, failure_w = os.pipe()
        self._leader = os.fork()
        if self._leader == 0:
            self._become(wanted, gate=(gate_r, gate_w), failure_fd=failure_w)
        os.close(gate_r)
        os.close(failure_w)
        # The pipes of the output belong to the command alone, so that their end means that it has none left.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        self._say(f"started {self._leader} {start_time(self._leader) or 0}")
        if self._order() == b"G":
            os.write(gate_w, b"G")
            os.close(gate_w)
            if code := os.read(failure_r, 16):
                self._say(f"failed {code.decode()}")
            self._watch()
        by_itself = self._leader_ended and not self._terminating
        leftovers = self._kill_all()
        if wanted.removal and not by_itself:
            self._remove(wanted)
        self._say(f"done {leftovers}")

    def _read_request(self) -> list[bytes]:
        while b"\n" not in self._buffer:
            self._buffer += self._more()
        size, _, self._buffer = self._buffer.partition(b"\n")
        blocks, held = [self._buffer], len(self._buffer)
        while held < int(size):
            blocks.append(block := self._more())
            held += len(block)
        whole = b"".join(blocks)
        self._buffer = whole[int(size) :]
        return whole[: int(size)].split(b"\0")

    def _more(self) -> bytes:
        if block := os.read(0, _READ_BYTES):
            return block
        sys.exit(0)

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

    def _become(self, wanted: _Wanted, *, gate: tuple[int, int], failure_fd: int) -> None:
        """The child: a session of its own, dead with the launcher, executed when the gate opens. Never returns."""
        try:
            os.setsid()
            self._libc.prctl(_PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
            os.close(gate[1])
            if os.read(gate[0], 1) != b"G":
                os._exit(125)
            _enter(wanted.doors)
            with open(os.devnull, "rb") as nowhere:
                os.dup2(nowhere.fileno(), 0)
            # Python ignores these two for itself, and what is ignored stays so across exec.
            for number in (_SIGPIPE, _SIGXFSZ):
                self._libc.signal(number, 0)
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
            if self._leader_ended and not self._terminating:
                looks += 1
                if looks > _DRAIN_LOOKS:
                    return
            # With a descriptor of the leader there is nothing to look at until it ends.
            patience_ms = None if leader_fd >= 0 and not self._terminating else _LOOK_MS
            if self._buffer or any(fd == 0 for fd, _ in poll.poll(patience_ms)):
                if self._order() != b"T":
                    return
                self._terminating = True
                self._signal_all(SIGTERM)

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
            found = self._signal_all(SIGKILL)
            if self._leader_ended:
                leftovers.update(found)
            nothing.poll(_LOOK_MS)
        return len(leftovers)

    def _signal_all(self, number: int) -> list[int]:
        """Parents first: a shell that hears of its end before that of its child still runs its trap."""
        found = _descendants(os.getpid())
        if not found and not self._leader_ended:
            found = [self._leader]
        if number == SIGTERM and self._spare_leader:
            found = [pid for pid in found if pid != self._leader]
        # Who is to be killed is stopped first, so that no parent can fork or complain about the death of a child.
        for signal_number in (_SIGSTOP, SIGKILL) if number == SIGKILL else (number,):
            for pid in found:
                try:
                    os.kill(pid, signal_number)
                except OSError:
                    continue
        return found


def _enter(doors: list[bytes]) -> None:
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
        wanted.append((resource.RLIMIT_NPROC, _threads_of(os.geteuid()) + processes))
    wanted += [(resource.RLIMIT_DATA, data)] if data else []
    wanted += [(resource.RLIMIT_FSIZE, file)] if file else []
    wanted += [(resource.RLIMIT_NOFILE, files)] if files else []
    for kind, limit in wanted:
        _, most = resource.getrlimit(kind)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, limit))


def _threads_of(user: int) -> int:
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                owner = os.stat(f"/proc/{name}").st_uid
            except OSError:
                continue
            if owner == user and (fields := _stat_fields(int(name))):
                count += int(fields[17])
    return count


def _descendants(root: int) -> list[int]:
    """All living processes below `root`, parents before children; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        fields = _stat_fields(pid)
        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    generation = [root]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, [])]
        found += generation
    return found


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name (state, parent, …); empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
    # Nothing is left to tidy up, and the host is waiting for the end.
    os._exit(0)
