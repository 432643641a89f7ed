"""What snapshots of workspaces leave behind: objects that no chain needs any more, and records that newer ones outdate; and
what travelled between the workspaces of a project that has ended.

Invariant: an object goes only when it was not needed for `snapshot_kept_s`, by the newest record of its workspace's log
each time: a host stores an object before its event, and reads a chain that may be outdated meanwhile. So of each
workspace at most one chain stays, of a deleted run's own one nothing. Removing again is quiet.
"""

from collections import defaultdict, deque

from libs.bus.ports import Blobs, Log, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock
from libs.contracts.envelope import Record, decode_events
from libs.contracts.errors import UnreadableRecord
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import SHARDS, is_id, workspace_id
from libs.contracts.project import TERMINAL
from libs.contracts.subjects import ANY_TENANT
from libs.contracts.workspaces import Saved, objects_of, workspace_of
from services.scheduler.settings import Timing

_ENDED = frozenset(status.value for status in TERMINAL)

# What one sweep looks at: a round trip each, and one for each object that goes; some seconds at most in all.
WORKSPACES_PER_SWEEP = 200

_log = get_logger("snapshots")


class OldSnapshots:
    """Removes them in sweeps."""

    def __init__(self, log: Log, store: Blobs, clock: Clock, timing: Timing) -> None:
        self._log, self._store, self._clock, self._timing = log, store, clock, timing
        self._listed: deque[tuple[str, list[str]]] = deque()
        self._listed_at = float("-inf")
        # Since when nobody needs an object; only of those that the last listing named.
        self._unneeded: dict[str, float] = {}

    async def forget(self, run: LogKey) -> None:
        """The run is deleted and none that lives works in the workspace of its own, if it had one: nobody brings that back,
        unless another run, which named it, has kept it since."""
        own = LogKey(run.tenant, workspace_id(SHARDS, run.tenant, run.log_id))
        tail = await self._log.tail(own)
        if tail is None:
            return
        try:
            saved = _saved_in(tail)
        except UnreadableRecord as error:
            _log.warning("snapshots.kept", workspace=own.log_id, message=str(error))
            return
        if saved is None or saved.run_id == run.log_id:
            await self._log.purge(own, tail.header.stream_sequence + 1)

    async def clear(self) -> None:
        """Remove what nobody has needed for long enough. Raises `Unavailable`."""
        now = self._clock.monotonic()
        if not self._listed and now - self._listed_at >= self._timing.journals_s:
            self._listed_at = now
            by_workspace: defaultdict[str, list[str]] = defaultdict(list)
            names = await self._store.names()
            for name in names:
                by_workspace[workspace_of(name)].append(name)
            known = set(names)
            self._unneeded = {name: at for name, at in self._unneeded.items() if name in known}
            self._listed.extend(
                (key, found)
                for key, found in by_workspace.items()
                if is_id("ws", key) or is_id("project", key)
            )
        for _ in range(min(WORKSPACES_PER_SWEEP, len(self._listed))):
            await self._clear(*self._listed.popleft(), now)

    async def _clear(self, identifier: str, names: list[str], now: float) -> None:
        # A name does not say whose workspace it is; a read finds it.
        key = LogKey(ANY_TENANT, identifier)
        tail = await self._log.tail(key)
        needed: set[str] = set()
        if is_id("project", identifier):
            goes_on = tail is not None and tail.header.state not in _ENDED
            # Of what travels each name is needed until the end; the log is nobody's to shorten.
            needed, tail = set(names) if goes_on else set[str](), None
        if tail is not None:
            try:
                saved = _saved_in(tail)
            except UnreadableRecord as error:
                _log.warning("snapshots.kept", workspace=identifier, message=str(error))
                return
            if saved is not None:
                needed = set(objects_of(identifier, saved.chain))
        old: list[str] = []
        for name in names:
            if name in needed:
                self._unneeded.pop(name, None)
            elif now - self._unneeded.setdefault(name, now) >= self._timing.snapshot_kept_s:
                old.append(name)
        for name in old:
            await self._store.remove(name)
            self._unneeded.pop(name, None)
        if old:
            _log.info("snapshots.removed", workspace=identifier, objects=len(old))
            if tail is not None:
                # What the newest record outdates goes with them: it alone says all that a host needs.
                await self._log.purge(key, tail.header.stream_sequence)


def _saved_in(newest: Record) -> Saved | None:
    """What the newest record of a workspace's log says is stored of it. Raises `UnreadableRecord`."""
    body = decode_events(newest)[-1].body
    return body.saved if isinstance(body, WorkspaceAttached) else None
