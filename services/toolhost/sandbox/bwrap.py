"""bubblewrap: namespaces of its own, a read-only system, one writable folder.

Invariant: a command sees the system's programs, the Python that Perdure runs on, and its workspace; no other file of
this machine (no credentials, no other workspace, no other process), and no network unless it is given. Everything in
it dies with bubblewrap, and bubblewrap dies with its parent.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

# The folders of the system's programs: real folders on some systems, links into /usr on others.
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM_FOLDERS = ("/usr", "/opt", "/nix/store")
# What programs read of /etc to work at all; not the folder, where machines keep secrets.
_ETC = (
    "alternatives", "ca-certificates", "fonts", "gai.conf", "group", "host.conf", "hosts", "java-11-openjdk",
    "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime",
    "magic", "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki", "profile", "protocols", "python3",
    "python3.11", "resolv.conf", "services", "shells", "ssl", "terminfo", "timezone", "xattr.conf",
)  # fmt: skip
# A probe that takes longer has met a broken kernel feature, not a slow machine.
_PROBE_PATIENCE_S = 10.0
_HARDENING: tuple[tuple[str, ...], ...] = (("--disable-userns",), ())


class Bubblewrap:
    """Wraps commands in `bwrap`. Made by `probe`, which knows the flags that work here."""

    name = "bwrap"
    warning: str | None = None
    # SIGTERM to bwrap itself would kill the namespace at once, without the grace that traps need.
    spare_leader = True

    def __init__(self, program: str, *, flags: Sequence[str], readable: Sequence[Path]) -> None:
        self._program = program
        self._flags = tuple(flags)
        self._readable = tuple(dict.fromkeys([*_interpreter(), *readable]))

    @classmethod
    async def probe(cls, readable: Sequence[Path] = ()) -> Self | str:
        """A sandbox in which a command has really run, or why there is none."""
        program = shutil.which("bwrap")
        if program is None:
            return "the program bwrap is not installed"
        said = ""
        for flags in _HARDENING:
            sandbox = cls(program, flags=flags, readable=readable)
            said = await sandbox._try_out()
            if not said:
                return sandbox
        return said

    def wrap(self, argv: Sequence[str], *, root: Path, directory: Path, network: bool = False) -> list[str]:
        """`directory` lies at or below `root`; both keep their path inside."""
        wrapped = [self._program, "--die-with-parent", "--new-session", "--unshare-user", "--unshare-pid"]
        wrapped += [
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            "--hostname",
            "sandbox",
            *self._flags,
        ]
        wrapped += ["--cap-drop", "ALL", *([] if network else ["--unshare-net"])]
        for path in map(Path, _SYSTEM):
            if path.is_symlink():
                wrapped += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                wrapped += ["--ro-bind", str(path), str(path)]
        for folder in _SYSTEM_FOLDERS:
            wrapped += ["--ro-bind-try", folder, folder]
        for name in _ETC:
            wrapped += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        if network:
            # Where /etc/resolv.conf points to on machines with a local resolver.
            wrapped += ["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]
        wrapped += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - a new one, inside
        for path in self._readable:
            wrapped += ["--ro-bind-try", str(path), str(path)]
        wrapped += _interpreter_links([*self._readable, Path("/usr")])
        wrapped += ["--bind", str(root), str(root), "--chdir", str(directory)]
        wrapped += ["--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp"]  # noqa: S108 - the same
        return [*wrapped, "--", *argv]

    async def _try_out(self) -> str:
        """Empty if a command runs, else what bwrap said."""
        with tempfile.TemporaryDirectory() as folder:
            argv = self.wrap(["true"], root=Path(folder), directory=Path(folder))
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_PROBE_PATIENCE_S):
                    _, stderr = await process.communicate()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                return f"it did not answer within {_PROBE_PATIENCE_S:.0f} s"
        if process.returncode == 0:
            return ""
        return stderr.decode("utf-8", "replace").strip()[-300:] or f"it exited with {process.returncode}"


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
