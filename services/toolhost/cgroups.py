"""Control groups: the memory and the processes of one command, counted and bounded together, and found again.

Invariant: a group is used only after a process has really been put into one here; its name says which host made it,
so that the next host can end what a dead one left, whatever that did to its session, its parents or its environment.

Both versions of the kernel's interface (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/): in the old one every
controller has a tree of its own, in the new one all share one, and a group with processes has no children of its own.
"""

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from services.toolhost.proc import start_time

MOUNTED = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids")
_MARK = "perdure"


class Bounds(NamedTuple):
    """Of one command with everything it starts."""

    memory_bytes: int
    processes: int


class Group(NamedTuple):
    """The group of one command: one folder, or one for each controller."""

    folders: tuple[Path, ...]

    @property
    def doors(self) -> list[str]:
        """Whoever writes 0 to these files is in."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def members(self) -> list[int]:
        found: set[int] = set()
        for folder in self.folders:
            with suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return sorted(found)

    def kill(self) -> int:
        """End every member; returns how many there were."""
        members = self.members()
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(members)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of the group because of its memory."""
        for folder, file in itertools.product(self.folders[:1], ("memory.events", "memory.oom_control")):
            with suppress(OSError):
                fields = dict(line.split() for line in (folder / file).read_text().splitlines())
                return int(fields.get("oom_kill", 0)) > 0
        return False

    def remove(self) -> None:
        """Members that are not quite gone keep it; then it is the next host's."""
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


class Cgroups:
    """Makes groups below `parents`. Made by `probe`, which knows that it can."""

    def __init__(self, parents: Sequence[Path], bounds: Bounds) -> None:
        self._parents = tuple(parents)
        self._bounds = bounds
        self._numbers = itertools.count(1)
        self._own = f"{_MARK}-{os.getpid()}-{start_time(os.getpid()) or 0}"

    @classmethod
    def probe(cls, bounds: Bounds, mounted: Path = MOUNTED) -> Self | None:
        """Where groups of this process's can be made; `None` where they cannot. Blocking."""
        try:
            own = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
        for parents in places(own, mounted):
            groups = cls(parents, bounds)
            if groups._try_out():
                return groups
        return None

    def make(self) -> Group:
        """An empty group with its bounds. Raises `OSError`. Blocking, a millisecond at most."""
        name = f"{self._own}-{next(self._numbers)}"
        group = Group(tuple(parent / name for parent in self._parents))
        try:
            for folder in group.folders:
                folder.mkdir()
            self._bound(group)
        except OSError:
            group.remove()
            raise
        return group

    def sweep(self) -> int:
        """End what dead hosts left in their groups, and remove those; returns how many processes. Blocking."""
        ended = 0
        for name in {folder.name for parent in self._parents for folder in parent.glob(f"{_MARK}-*-*-*")}:
            _, pid, start, _ = name.split("-")
            if start_time(int(pid)) != int(start):
                group = Group(tuple(parent / name for parent in self._parents))
                ended += group.kill()
                group.remove()
        return ended

    def _bound(self, group: Group) -> None:
        memory, pids = group.folders[0], group.folders[-1]
        limit = str(self._bounds.memory_bytes)
        if (memory / "memory.max").exists():
            _write(memory / "memory.max", limit)
            for file, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                with suppress(OSError):  # Not in every kernel; swap is a bound of the machine's, too.
                    _write(memory / file, value)
        else:
            _write(memory / "memory.limit_in_bytes", limit)
            with suppress(OSError):  # Not where the kernel does not count swap.
                _write(memory / "memory.memsw.limit_in_bytes", limit)
        _write(pids / "pids.max", str(self._bounds.processes))

    def _try_out(self) -> bool:
        try:
            group = self.make()
        except OSError:
            return False
        try:
            with subprocess.Popen(["sleep", "10"], stdin=subprocess.DEVNULL) as process:
                try:
                    for door in group.doors:
                        _write(Path(door), str(process.pid))
                    return group.members() == [process.pid]
                finally:
                    process.kill()
        except OSError:
            return False
        finally:
            group.remove()


def places(own: str, mounted: Path) -> Iterator[tuple[Path, ...]]:
    """Where groups could be made, best first, for a process whose `/proc/self/cgroup` is `own`. The first folder is
    memory's, the last that of the processes. Turns the new interface's controllers on where it may."""
    paths = {
        name: path
        for line in own.splitlines()
        for _, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    if all((mounted / name).is_dir() and name in paths for name in _CONTROLLERS):
        yield tuple(_below(mounted / name, paths[name]) for name in _CONTROLLERS)
    if (mounted / "cgroup.controllers").is_file():
        home = _below(mounted, paths.get("", "/"))
        # A group that has processes cannot have children with controllers, but siblings.
        for parent in dict.fromkeys([home, home.parent if home != mounted else home]):
            with suppress(OSError):
                _write(parent / "cgroup.subtree_control", "+memory +pids")
            yield (parent,)


def _below(tree: Path, path: str) -> Path:
    """In a container the path may be that of the machine, which is not there."""
    folder = tree / path.lstrip("/")
    return folder if folder.is_dir() and ".." not in folder.parts else tree


def _write(file: Path, value: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
