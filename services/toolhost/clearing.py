"""Removes the folders of workspaces that nobody needs any more: those of deleted runs, each of which had its own, and those
of lanes whose project has ended.

Invariant: a folder goes only when the log shows its run to be deleted, or the last word of its project names its lane, and
its workspace's own log to be gone, which the scheduler removes once no run that lives works there; until then, and where
anything is unclear, it stays. Whoever takes the workspace up waits meanwhile, and finds it gone. Removing again is quiet
(key: the workspace).
"""

import asyncio
import fcntl
import os
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from libs.bus.ports import Log, LogKey
from libs.chassis.logs import get_logger
from libs.chassis.waiting import in_thread
from libs.contracts.clock import Clock
from libs.contracts.envelope import decode_events
from libs.contracts.errors import Unavailable, UnreadableRecord
from libs.contracts.events import RunDeleted
from libs.contracts.ids import SHARDS, is_id, workspace_id
from libs.contracts.project_events import ProjectCancelled, ProjectCompleted
from libs.contracts.subjects import ANY_TENANT
from libs.contracts.workspaces import lane_of
from services.toolhost.attach import Workspaces
from services.toolhost.workspace import HIDDEN_FOLDER, WorkspacePlace, place_of, workspace_key

# Folders that are looked at in one step: a read each.
PER_STEP = 15
# Folders that may go soon and are remembered for that; the next listing finds them all.
LEAVING_MAX = 1_000
_ENDS = (ProjectCompleted, ProjectCancelled)
_SUFFIXES = (".git", ".holder", ".commands", ".undo", ".checks", ".before")

_log = get_logger("clearing")


class Pace(NamedTuple):
    """How often a step is made, and how long after a listing the next one is."""

    step_s: float = 2.0
    listing_s: float = 1800.0


class Clearing:
    """Looks through the folders of one machine, again and again."""

    def __init__(
        self, log: Log, clock: Clock, workspaces: Workspaces, root: Path, *, secure: bool, pace: Pace
    ) -> None:
        self._log, self._clock, self._workspaces = log, clock, workspaces
        self._root, self._secure, self._pace = root, secure, pace
        self._listed: deque[Path] = deque()
        self._listed_at = float("-inf")

    @asynccontextmanager
    async def going_on(self) -> AsyncGenerator[None]:
        """It works while the context lasts."""
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._work())
            try:
                yield
            finally:
                working.cancel()

    async def _work(self) -> None:
        while True:
            await self._clock.sleep(self._pace.step_s)
            try:
                await self.step()
            except (Unavailable, OSError) as error:
                _log.warning("clearing.waits", message=str(error))

    async def step(self) -> None:
        """Look at some folders. Raises `Unavailable`, `OSError`."""
        now = self._clock.monotonic()
        if not self._listed and now - self._listed_at >= self._pace.listing_s:
            self._listed_at = now
            self._listed.extend(await asyncio.to_thread(self._list))
        leaving = self._workspaces.leaving
        for folder in list(leaving)[:PER_STEP]:
            # Those that stay, as yet, go to the end of the line.
            leaving.discard(folder)
            if not await self._look_at(folder) and folder.exists() and len(leaving) < LEAVING_MAX:
                leaving.add(folder)
        for _ in range(min(PER_STEP, len(self._listed))):
            await self._look_at(self._listed.popleft())

    def _list(self) -> list[Path]:
        """The folders that runs and lanes have of their own, by their names. Blocking."""
        above = [self._root]
        if self._secure:
            above = [path for path in self._root.iterdir() if path.is_dir() and path.name != HIDDEN_FOLDER]
        return [path for folder in above for path in _own_folders(folder)]

    async def _look_at(self, folder: Path) -> bool:
        """Whether it is gone."""
        # A folder does not say whose it is; a read finds it.
        lane = lane_of(folder.name)
        owner = lane[0] if lane is not None else folder.name
        try:
            tail = await self._log.tail(LogKey(ANY_TENANT, owner))
            if tail is None:
                return False
            last = decode_events(tail)[-1].body
        except UnreadableRecord:
            return False
        over = lane[1] in last.removed if lane is not None and isinstance(last, _ENDS) else False
        if not (over or isinstance(last, RunDeleted)):
            return False
        if self._secure and workspace_key(tail.tenant) != folder.parent.name:
            return False
        workspace = LogKey(tail.tenant, workspace_id(SHARDS, tail.tenant, folder.name))
        place = place_of(self._root, folder.name, tenant=tail.tenant if self._secure else None)
        async with self._workspaces.closed(
            workspace.log_id, unless=partial(self._is_needed, workspace)
        ) as ours:
            if not ours or not await in_thread(partial(_removed, place)):
                return False
        _log.info("workspace.removed", workspace=place.key)
        return True

    async def _is_needed(self, workspace: LogKey) -> bool:
        try:
            return await self._log.tail(workspace) is not None
        except UnreadableRecord:
            return True


def _own_folders(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            owned = is_id("run", entry.name) or lane_of(entry.name) is not None
            if owned and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _removed(place: WorkspacePlace) -> bool:
    """Whether nobody held the folder, so that it is gone with all that is kept beside it. Blocking."""
    _opened(place.directory)
    fd = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        for suffix in _SUFFIXES:
            beside = place.git_dir.with_name(f"{place.key}{suffix}")
            if beside.is_dir():
                _remove(beside)
            else:
                beside.unlink(missing_ok=True)
        _remove(place.directory)
        return True
    finally:
        os.close(fd)


def _remove(tree: Path) -> None:
    # A folder is opened before the walk looks into it.
    for folder, inside, _ in os.walk(tree):
        for name in inside:
            _opened(os.path.join(folder, name))
    shutil.rmtree(tree)


def _opened(folder: str | Path) -> None:
    """Let it be read and emptied: a tool may have shut it. A link stays what it is, and what it leads to."""
    if not os.path.islink(folder):
        os.chmod(folder, 0o700)
