"""What the commands of a dead host left on this machine, ended by the next one.

Invariant: everything that can be found is ended before the workspace is used, by whatever is certain here: control
groups, containers, namespaces; then by recorded groups and by marks. Where only those last two are left, the record
says that something may have escaped, because a process can leave its group and drop its mark.
"""

import asyncio
from pathlib import Path

from libs.chassis.logs import get_logger
from services.toolhost.cgroups import Cgroups
from services.toolhost.errors import CommandNotStarted
from services.toolhost.predecessor import HolderRecord
from services.toolhost.processes import Command, Processes
from services.toolhost.sandbox import Sandbox

# A daemon that takes longer to remove a container than this will not be waited for.
_REMOVAL_PATIENCE_S = 30.0


class Leftovers:
    """Ends them."""

    def __init__(self, processes: Processes, sandbox: Sandbox, cgroups: Cgroups | None) -> None:
        self._processes, self._sandbox, self._cgroups = processes, sandbox, cgroups
        self._logger = get_logger("leftovers")

    @property
    def finds_all(self) -> bool:
        return self._cgroups is not None or self._sandbox.name != "none"

    async def end(self, record: HolderRecord) -> int:
        """End what the former host's commands left; returns how many processes and groups were found."""
        ended = await asyncio.to_thread(self._cgroups.sweep) if self._cgroups is not None else 0
        commands = await asyncio.to_thread(record.end_commands)
        for key in commands:
            await self._remove(key)
        if not commands:
            return ended
        ended += sum(commands.values())
        report = self._logger.info if self.finds_all else self._logger.warning
        report(
            "commands.ended",
            commands=" ".join(sorted(commands)),
            found=ended,
            note=""
            if self.finds_all
            else "without a sandbox, processes that left their group and dropped their mark cannot be found",
        )
        return ended

    async def _remove(self, key: str) -> None:
        argv = self._sandbox.remains(key)
        if not argv:
            return
        removal = Command(
            argv=argv,
            directory=Path("/"),
            call_id=f"removal.{key}",
            timeout_s=_REMOVAL_PATIENCE_S,
            output_bytes_max=1000,
        )
        try:
            ended = await self._processes.run(removal)
        except CommandNotStarted as failure:
            self._logger.warning("commands.not_removed", command=key, error=failure.message)
            return
        if ended.exit_code != 0:
            self._logger.warning("commands.not_removed", command=key, error=ended.output.strip()[-300:])
