"""What /proc says of processes. Standard library only: launchers read it, too.

Invariant: a process that is gone, or not ours to look at, is no error; where there is no /proc, there is nothing.
"""

import os


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot (None: there is none). With the pid it names a process for good."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def threads_of(user: int) -> int:
    """How many threads all processes of the user have."""
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


def descendants(root: int) -> list[int]:
    """All living processes below `root`, parents before children."""
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
