"""bubblewrap: namespaces of its own, a read-only system, one writable folder.

Invariant: a command sees the system's programs, the Python that Perdure runs on, and its workspace; no other file of
this machine (no credentials, no other workspace, no other process), and no network unless it is given. Everything in
it dies with bubblewrap, and bubblewrap dies with its parent.
"""

import asyncio
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from services.toolhost import launcher
from services.toolhost.processes import Command, Limits, Processes
from services.toolhost.sandbox import seccomp
from services.toolhost.sandbox.etc import copied
from services.toolhost.sandbox.trial import complaint

# The folders of the system's programs: real folders on some systems, links into /usr on others.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FOLDERS = ("/usr", "/opt", "/nix/store")
# A probe that takes longer has met a broken kernel feature, not a slow machine.
_PROBE_PATIENCE_S = 10.0
# The memory that files in the sandbox's own folders may take, where no control group counts it.
_TMP_BYTES, _SHM_BYTES = 1 << 30, 64 << 20
# What older releases and kernels do not have is left out, a little at a time.
_HARDENING: tuple[tuple[str, ...], ...] = (("--disable-userns",), ())


class Bubblewrap:
    """Confines commands with `bwrap`. Made by `probe`, which knows the flags that work here."""

    name = "bwrap"
    warning: str | None = None

    def __init__(
        self,
        program: str,
        *,
        flags: Sequence[str],
        etc: Path,
        readable: Sequence[Path],
        hidden: Sequence[Path],
        filter_program: bytes,
    ) -> None:
        self._hidden = tuple(path.resolve() for path in hidden)
        self._program, self._etc = program, etc
        self._flags = tuple(flags)
        self._readable = tuple(dict.fromkeys([*_interpreter(), *readable]))
        self._filter_program = filter_program

    @classmethod
    async def probe(
        cls,
        processes: Processes,
        folder: Path,
        *,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
    ) -> Self | str:
        """A sandbox in which a command has really run, or why there is none. `folder` is for what it keeps."""
        program = shutil.which("bwrap")
        if program is None:
            return "the program bwrap is not installed"
        try:
            etc = await asyncio.to_thread(copied, folder)
        except OSError as error:
            return f"{folder} cannot be used: {error.strerror}"
        said = ""
        for flags in _HARDENING:
            sandbox = cls(
                program,
                flags=flags,
                etc=etc,
                readable=readable,
                hidden=hidden,
                filter_program=seccomp.program(platform.machine()),
            )
            said = await complaint(processes, sandbox.confine, _PROBE_PATIENCE_S)
            if not said:
                return sandbox
        return said

    def confine(self, command: Command, *, root: Path, network: bool = False) -> Command:
        """The command's directory lies at or below `root`; both keep their path inside."""
        return msgspec.structs.replace(
            command,
            argv=[*self._wrapping(root, command, network=network), "--", *command.argv],
            # SIGTERM to bwrap itself would kill the namespace at once, without the grace that traps need.
            spare_leader=True,
            filter_program=self._filter_program,
            limits=Limits(),
        )

    def remains(self, call_id: str) -> list[str]:
        del call_id  # Whatever bubblewrap started is a process of this machine and dies with it.
        return []

    def _wrapping(self, root: Path, command: Command, *, network: bool) -> list[str]:
        readable = [*self._readable, *command.readable]
        wrapped = [self._program, "--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid"]
        wrapped += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        wrapped += [*self._flags, "--cap-drop", "ALL", *([] if network else ["--unshare-net"])]
        if self._filter_program:
            wrapped += ["--seccomp", str(launcher.FILTER_FD)]
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                wrapped += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                wrapped += ["--ro-bind", str(path), str(path)]
        for folder in _SYSTEM_FOLDERS:
            wrapped += ["--ro-bind-try", folder, folder]
        wrapped += ["--ro-bind", str(self._etc), "/etc"]
        if network and (self._etc / "resolv.conf").exists():
            # Who answers for names changes with the network that the machine is in.
            wrapped += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        wrapped += ["--proc", "/proc", "--dev", "/dev"]
        wrapped += [
            "--size",
            str(_SHM_BYTES),
            "--tmpfs",
            "/dev/shm",  # noqa: S108 - a new one, inside
            "--size",
            str(_TMP_BYTES),
            "--tmpfs",
            "/tmp",  # noqa: S108 - a new one, inside
        ]
        for path in readable:
            wrapped += ["--ro-bind-try", str(path), str(path)]
        wrapped += _interpreter_links([*readable, Path("/usr")])
        for path in (path for path in self._hidden if _is_bound(path, readable)):
            wrapped += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind-try", "/dev/null", str(path)]
        wrapped += ["--bind", str(root), str(root), "--chdir", str(command.directory)]
        # What is made outside of the workspace and the temporary folders would be memory that nothing bounds.
        # Of the kernel's settings in /proc, root owns most, and whoever is root outside is it for them.
        wrapped += ["--remount-ro", "/dev", "--remount-ro", "/proc", "--remount-ro", "/"]
        return [*wrapped, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp"]  # noqa: S108 - the same


def _is_bound(path: Path, readable: Sequence[Path]) -> bool:
    """Whether a hidden path would be seen."""
    bound = [*map(Path, _SYSTEM_FOLDERS), *(folder.resolve() for folder in readable)]
    return path.exists() and any(path.is_relative_to(folder) for folder in bound)


def _interpreter() -> list[Path]:
    """The folders of this Python (environment and installation), unless they are the system's."""
    folders = (Path(sys.prefix), Path(sys.base_prefix))
    return [path for path in folders if not path.is_relative_to("/usr") and path != Path("/")]


def _interpreter_links(bound: Sequence[Path]) -> list[str]:
    """The links on the way from this Python's program to the real one that no bound folder brings along. The links
    alone: the folder of one may be somebody's home."""
    arguments: list[str] = []
    program = Path(sys.executable)
    while program.is_symlink():
        if not any(program.is_relative_to(folder) for folder in bound):
            arguments += ["--symlink", str(program.readlink()), str(program)]
        program = program.parent / program.readlink()
    return arguments
