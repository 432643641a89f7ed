"""Who held a workspace before, on this machine, and how its leftovers are ended.

Invariant: a process is killed only when both its id and its start time are the recorded ones, and a former host only
when its death is written. The records are files beside the hidden repositories: they matter on this machine alone, and
as long as it is up.
"""

import os
import platform
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from services.toolhost.marks import kill_group, kill_marked
from services.toolhost.proc import start_time
from services.toolhost.workspace import WorkspacePlace


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process that holds a workspace. `start` is its start time in clock ticks."""

    boot: str
    host: str
    pid: int
    start: int

    def runs_here(self) -> bool:
        """Whether the recorded process is alive on this machine, frozen or not."""
        return self.host == platform.node() and start_time(self.pid) == self.start

    def kill(self) -> None:
        if self.runs_here() and self.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def this_process(boot: str) -> Holder:
    pid = os.getpid()
    return Holder(boot=boot, host=platform.node(), pid=pid, start=start_time(pid) or 0)


class HolderRecord:
    """The files of one workspace: `<key>.holder` and a folder with one file for each running command."""

    def __init__(self, place: WorkspacePlace) -> None:
        self._file = place.git_dir.with_name(f"{place.key}.holder")
        self._commands = place.git_dir.with_name(f"{place.key}.commands")

    def read(self) -> Holder | None:
        """Who wrote the record last; a torn or missing file is nobody."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Holder)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def write(self, holder: Holder) -> None:
        self._commands.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(holder))
        temporary.replace(self._file)

    def note_command(self, key: str, group: int, start: int) -> None:
        """A command is about to be executed."""
        (self._commands / key).write_text(f"{group} {start}")

    def forget_command(self, key: str) -> None:
        (self._commands / key).unlink(missing_ok=True)

    def end_commands(self) -> dict[str, int]:
        """Kill what the former host's commands left. Gives the commands that were running, by their key, with the
        number of groups and processes that were found of each."""
        ended: dict[str, int] = {}
        for file in self._present():
            found = 0
            with suppress(ValueError, FileNotFoundError):
                group, start = map(int, file.read_text().split())
                found += kill_group(group, start)
            ended[file.name] = found + kill_marked(file.name)
            file.unlink(missing_ok=True)
        return ended

    def _present(self) -> list[Path]:
        return list(self._commands.iterdir()) if self._commands.is_dir() else []


def checks_folder(place: WorkspacePlace) -> Path:
    """Where clean checkouts of this workspace are made for checks."""
    return place.git_dir.with_name(f"{place.key}.checks")


def clear_checks(place: WorkspacePlace) -> None:
    """Remove what a killed host left of its checkouts. Blocking."""
    shutil.rmtree(checks_folder(place), ignore_errors=True)
