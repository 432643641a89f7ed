"""What processes use, read from `/proc`: CPU time and resident memory, by name.

Invariant: a process that died and was started again in between is an error, never a small figure.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from libs.contracts.errors import ConfigurationError

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_MIB = 1024 * 1024


def cpu_s(pid: int) -> float:
    """User and system seconds of a process and of the children that it has waited for."""
    # The name in parentheses may hold anything; what is behind the last one is numbers.
    fields = _read(pid, "stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_A_SECOND


def rss_mb(pid: int) -> float:
    """Resident memory in MiB."""
    return int(_read(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MIB


class CpuMeter:
    """Counts from its making. `pids` are the processes by name."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_s(pid) for name, pid in self._pids.items()}

    def spent_s(self) -> dict[str, float]:
        """CPU seconds since then, by name."""
        return {name: cpu_s(pid) - self._before[name] for name, pid in self._pids.items()}


def _read(pid: int, name: str) -> str:
    path = Path(f"/proc/{pid}/{name}")
    try:
        return path.read_text()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path} is not there: the process died during the bench, or this is no Linux"
        ) from error
