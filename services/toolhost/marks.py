"""Finding the processes of a call again: by the mark in their environment, and by the process group that was recorded.

Invariant: a group is killed only while its leader is the process that was recorded, by id and start time.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

from services.toolhost.proc import start_time

CALL_MARKER = "PERDURE_CALL"


def kill_group(group: int, start: int) -> bool:
    """Kills a recorded process group if its leader is still the process that was recorded. For the next host."""
    if start == 0 or start_time(group) != start:
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
        return True
    return False


def marked(call_id: str) -> list[int]:
    """The living processes that carry the marker of this call in their environment."""
    wanted = f"{CALL_MARKER}={call_id}".encode()
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at, and foreign ones are closed to us: neither is ours to kill.
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_marked(call_id: str) -> int:
    """Kills what carries the marker of this call; returns how many. For a call whose launcher is gone, too."""
    killed = 0
    for pid in marked(call_id):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed
