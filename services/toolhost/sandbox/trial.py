"""Trying a sandbox out: a real command is run in it before anybody relies on it.

Invariant: no complaint means that a command has run and ended well, in a folder that was its workspace.
"""

import os
import tempfile
from pathlib import Path
from typing import Protocol

from services.toolhost.errors import CommandNotStarted
from services.toolhost.processes import Command, Processes

_OUTPUT_BYTES_MAX = 2000
# Of what a program says that fails, the end has the reason.
_COMPLAINT_CHARS_MAX = 300


class Confine(Protocol):
    """As sandboxes do it."""

    def __call__(self, command: Command, *, root: Path) -> Command: ...


async def complaint(processes: Processes, confine: Confine, patience_s: float) -> str:
    """Empty if a command runs, else what was said or seen instead."""
    with tempfile.TemporaryDirectory() as folder:
        command = Command(
            argv=["true"],
            directory=Path(folder),
            call_id=f"probe-{os.getpid()}",
            timeout_s=patience_s,
            output_bytes_max=_OUTPUT_BYTES_MAX,
        )
        try:
            ended = await processes.run(confine(command, root=Path(folder)))
        except CommandNotStarted as failure:
            return failure.message
    if ended.timed_out:
        return f"no answer within {patience_s:.0f} s"
    if ended.exit_code == 0:
        return ""
    said = ended.output.strip()[-_COMPLAINT_CHARS_MAX:]
    return said or f"it ended with {ended.exit_code}, signal {ended.signal}"
