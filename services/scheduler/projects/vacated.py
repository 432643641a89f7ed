"""What the lanes of ended projects leave on the bus: the logs of their workspaces, and with them what is stored of those.

Invariant: a log goes only when the project's last word names its lane, no run that lives may work in the workspace, and none
of anybody else has kept it since. Then hosts remove the folder (`services/toolhost/clearing.py`) and the sweep of snapshots
the objects. Removing again is quiet (key: the workspace); a replay at the next start finds what was left.
"""

from libs.bus.ports import Log, LogKey
from libs.bus.runs import Runs
from libs.chassis.logs import get_logger
from libs.contracts.envelope import decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import SHARDS, workspace_id
from libs.contracts.workspaces import lane_workspace
from services.scheduler.rows import Rows

# Projects that one sweep looks at: a read for each lane.
PER_SWEEP = 50

_log = get_logger("vacated")


class Vacated:
    """Removes them: at once when it is told, in sweeps what was left. `ended`: the projects and their lanes that are to be
    looked at."""

    def __init__(self, log: Log, runs: Runs, rows: Rows, ended: dict[LogKey, tuple[int, ...]]) -> None:
        self._log, self._runs, self._rows, self._ended = log, runs, rows, ended

    async def finish(self) -> None:
        """Look at some of those that are left. Raises `Unavailable`."""
        for project, lanes in list(self._ended.items())[:PER_SWEEP]:
            await self.clear(project, lanes)

    async def clear(self, project: LogKey, lanes: tuple[int, ...]) -> None:
        """Remove the logs of these lanes' workspaces. Raises `Unavailable`."""
        waits = [lane for lane in lanes if not await self._clear(project, lane)]
        # Those that wait go to the end of the line.
        self._ended.pop(project, None)
        if waits:
            self._ended[project] = tuple(waits)

    async def _clear(self, project: LogKey, lane: int) -> bool:
        """Whether nothing is left to do."""
        # A project's workspace is called as the project is.
        name = lane_workspace(project.log_id, lane)
        if self._rows.may_work_in(project.tenant, name):
            return False
        workspace = LogKey(project.tenant, workspace_id(SHARDS, project.tenant, name))
        tail = await self._log.tail(workspace)
        if tail is None:
            return True
        try:
            newest = decode_events(tail)[-1].body
        except UnreadableRecord as error:
            _log.warning("workspace.kept", workspace=name, message=str(error))
            return True
        saved = newest.saved if isinstance(newest, WorkspaceAttached) else None
        if saved is None or not await self._is_anothers(project, saved.run_id):
            await self._log.purge(workspace, tail.header.stream_sequence + 1)
            _log.info("workspace.forgotten", workspace=name)
        return True

    async def _is_anothers(self, project: LogKey, run_id: str) -> bool:
        """Whether the run is none of the project's: a task may have named the workspace."""
        run = await self._runs.find(project.tenant, run_id)
        if run is None:
            return False
        session = run.state.task.session
        return session is None or session.project_id != project.log_id
