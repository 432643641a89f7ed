"""The workspaces that this host holds: attached once, by the workspace's own log, and kept until the process ends.

Invariant: a workspace is served only after a leader read of its log named this boot, its former holder on this machine
was ended, and the directory's lock was taken; the descriptor of the lock is never inherited.
"""

import asyncio
import fcntl
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from libs.bus.ports import Liveness, Log, LogKey
from libs.chassis.effects import failed, refused
from libs.chassis.logs import get_logger
from libs.chassis.waiting import in_thread
from libs.contracts.clock import Clock
from libs.contracts.envelope import decode_events
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import SHARDS, is_id, workspace_id
from libs.contracts.tools import Refusal, ToolCall, ToolResult
from libs.contracts.workspaces import Saved
from services.toolhost.errors import ToolFailure
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.leftovers import Leftovers
from services.toolhost.predecessor import HolderRecord, clear_checks, this_process
from services.toolhost.project import instructions
from services.toolhost.repository import HiddenRepository
from services.toolhost.room import Quota
from services.toolhost.snapshots import Snapshots
from services.toolhost.tools.files import sha256_of
from services.toolhost.underway import Underway
from services.toolhost.undo import UndoLog
from services.toolhost.workspace import WorkspacePlace, place_of, undo_folder

# How long a killed holder may take to lose its lock; the owner of the run asks again after a refusal.
_LOCK_PATIENCE_S = 3.0
_LOCK_LOOK_S = 0.02


# Who waits for a workspace hears after so long that it is still being prepared, and asks again.
ANSWER_S = 5.0
# Workspaces held at once; each takes two descriptors, and the usual limit of a process is 1,024. Only those that no
# call has used for longer than any call may take are let go of.
HELD_MAX = 256
IDLE_S = 3700.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """A workspace in this host's hands. `baselines` are the commits that the runs began from."""

    tenant: str
    name: str
    place: WorkspacePlace
    guard: WorkspaceGuard
    repository: HiddenRepository
    record: HolderRecord
    undo: UndoLog
    lock_fd: int
    baselines: dict[str, str] = field(default_factory=dict[str, str])
    # What this host brought back when it took the workspace, and what may be missing for each run since.
    brought_back: Saved | None = None
    moved: bool = False
    lost: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def close(self) -> None:
        """Let go of it: the lock ends with its descriptor."""
        self.guard.close()
        os.close(self.lock_fd)


class _AttachArguments(msgspec.Struct, frozen=True, kw_only=True):
    baseline: str | None = None
    files: dict[str, str] = {}


class _KeepArguments(msgspec.Struct, frozen=True, kw_only=True):
    chain: list[str] = []


class Replay(Protocol):
    """Does again what a run did in its workspace behind a snapshot."""

    async def run(self, call: ToolCall, attached: Attached, saved: Saved | None) -> list[str]:
        """The effects that may be missing still, in words for the model."""
        ...


class Inheritance(NamedTuple):
    """What deals with what former hosts of a workspace left: running, stored, and only in the log."""

    leftovers: Leftovers
    snapshots: Snapshots
    replay: Replay


class Workspaces:
    """Attaches and finds workspaces. `root` is the folder of all; in secure mode each tenant has one below it."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        inheritance: Inheritance,
        underway: Underway[ToolResult],
        *,
        root: Path,
        secure: bool,
        program_path: str,
        quota: Quota,
    ) -> None:
        self._leftovers = inheritance.leftovers
        self._log, self._clock = log, clock
        self._snapshots, self._replay = inheritance.snapshots, inheritance.replay
        self._root, self._secure, self._program_path = root, secure, program_path
        self._quota = quota
        self._underway = underway
        # By workspace, while it is being prepared.
        self._how_far: dict[str, str] = {}
        self._attached: dict[str, Attached] = {}
        self._used_at: dict[str, float] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        # The folders that may go soon: whoever clears looks at them first.
        self.leaving: set[Path] = set()
        self._liveness: Liveness | None = None
        self._root_id = ""
        self._logger = get_logger("workspaces")

    def begin(self, liveness: Liveness, root_id: str) -> None:
        """From now on this process has a boot. `root_id` is what it says of its folder of workspaces."""
        self._liveness, self._root_id = liveness, root_id

    def find(self, call: ToolCall) -> Attached | None:
        """The call's workspace, if this host holds it."""
        attached = self._attached.get(call.workspace_id)
        if attached is None or (attached.tenant, attached.name) != (call.tenant, call.workspace):
            return None
        self._used_at[call.workspace_id] = self._clock.monotonic()
        return attached

    async def attach(self, call: ToolCall) -> ToolResult:
        """The internal call `workspace_attach`. Idempotent by the workspace and the run. What takes longer than an asker
        should wait goes on, and whoever asks again hears how far it is."""
        try:
            arguments = msgspec.convert(call.arguments, _AttachArguments)
        except msgspec.ValidationError as error:
            return refused(call, Refusal.MALFORMED, str(error))
        if not _names_its_workspace(call):
            return refused(call, Refusal.MALFORMED, "workspace and workspace_id do not belong together")
        key = f"{call.workspace_id} {call.run_id} {call.epoch}"
        outcome = await self._underway.join(key, lambda: self._attach(call, arguments))
        if outcome is None:
            how_far = self._how_far.get(call.workspace_id, "it is recorded as it is")
            return refused(call, Refusal.WORKSPACE_BUSY, f"the workspace is being prepared: {how_far}")
        return outcome

    async def _attach(self, call: ToolCall, arguments: _AttachArguments) -> ToolResult:
        async with self._locks[call.workspace_id]:
            try:
                attached = await self._hold(call)
                if isinstance(attached, Refusal):
                    return refused(call, attached)
                return await self._prepared(call, attached, arguments)
            except (ToolFailure, OSError) as error:
                self._logger.error("workspace.fault", workspace=call.workspace, error=str(error))
                return refused(call, Refusal.WORKSPACE_FAULT, str(error))
            finally:
                self._how_far.pop(call.workspace_id, None)

    async def keep(self, call: ToolCall) -> ToolResult:
        """The internal call `workspace_snapshot`. Repeating it stores nothing new while the workspace stands still."""
        attached = self.find(call)
        if attached is None:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        try:
            chain = msgspec.convert(call.arguments, _KeepArguments).chain
            kept = await self._snapshots.keep(attached.repository, call.workspace_id, chain)
        except msgspec.ValidationError as error:
            return refused(call, Refusal.MALFORMED, str(error))
        except (ToolFailure, OSError) as error:
            return failed(call, f"the workspace was not kept: {error}")
        self._logger.info("workspace.kept", workspace=attached.place.key, bundle_bytes=kept.bundle_bytes)
        metadata = msgspec.to_builtins(kept)
        return ToolResult(call_id=call.call_id, attempt=call.attempt, ok=True, output="", metadata=metadata)

    @asynccontextmanager
    async def closed(self, identifier: str, *, unless: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bool]:
        """Whether this host has let go of a workspace; nobody takes it up while the context lasts."""
        async with self._locks[identifier]:
            if await unless():
                yield False
                return
            self._used_at.pop(identifier, None)
            attached = self._attached.pop(identifier, None)
            if attached is not None:
                attached.close()
            yield True

    def close(self) -> None:
        """Let go of everything."""
        for attached in self._attached.values():
            attached.close()
        self._attached.clear()

    def _let_go_of_idle_ones(self) -> None:
        """Keep the number of held workspaces bounded; one that is asked for again is attached again."""
        latest = self._clock.monotonic() - IDLE_S
        idle = sorted((at, key) for key, at in self._used_at.items() if at < latest)
        for _, key in idle[: max(0, len(self._attached) - HELD_MAX)]:
            del self._used_at[key]
            self._attached.pop(key).close()
            if not self._locks[key].locked():
                del self._locks[key]

    async def _hold(self, call: ToolCall) -> Attached | Refusal:
        assert self._liveness is not None
        tail = await self._log.tail(LogKey(call.tenant, call.workspace_id))
        newest = decode_events(tail)[-1].body if tail is not None else None
        if not isinstance(newest, WorkspaceAttached) or newest.host != self._liveness.boot:
            return Refusal.NOT_MY_WORKSPACE
        if (attached := self.find(call)) is not None:
            return attached
        place = await asyncio.to_thread(self._place, call)
        record = HolderRecord(place)
        former = await asyncio.to_thread(record.read)
        if former is not None and former.boot != self._liveness.boot and former.runs_here():
            if not await self._liveness.declare_dead_if_gone(former.boot):
                return Refusal.WORKSPACE_BUSY
            self._logger.warning("holder.killed", workspace=place.key, boot=former.boot, pid=former.pid)
            former.kill()
        lock_fd = await self._locked(place.directory)
        if lock_fd is None:
            return Refusal.WORKSPACE_BUSY
        with ExitStack() as unless_attached:
            # A lock that nobody holds on to would refuse this very host for as long as it lives.
            unless_attached.callback(os.close, lock_fd)
            attached, ended = await self._taken(call, newest, place, record, lock_fd)
            unless_attached.pop_all()
        self._let_go_of_idle_ones()
        self._attached[call.workspace_id] = attached
        self._used_at[call.workspace_id] = self._clock.monotonic()
        self._logger.info("workspace.attached", workspace=place.key, run_id=call.run_id, leftovers=ended)
        return attached

    async def _taken(
        self,
        call: ToolCall,
        named: WorkspaceAttached,
        place: WorkspacePlace,
        record: HolderRecord,
        lock_fd: int,
    ) -> tuple[Attached, int]:
        """The workspace in this host's hands, and how many commands of a former one had to be ended."""
        assert self._liveness is not None
        ended = await self._leftovers.end(record)
        await in_thread(partial(clear_checks, place))
        await in_thread(partial(record.write, this_process(self._liveness.boot)))
        undo = UndoLog(undo_folder(place))
        repository = HiddenRepository(
            git_dir=place.git_dir,
            worktree=place.directory,
            program_path=self._program_path,
            still=undo.alone,
        )
        await repository.ensure()
        guard = WorkspaceGuard(place.directory, quota=self._quota)
        with ExitStack() as unless_taken:
            unless_taken.callback(guard.close)
            await in_thread(partial(self._mend, place, guard, undo))
            moved = named.held not in ("", self._root_id)
            if moved and named.saved is not None:
                saved = named.saved
                await self._snapshots.bring_back(
                    repository,
                    call.workspace_id,
                    saved.chain,
                    saved.snapshot,
                    told=lambda how_far: self._how_far.update({call.workspace_id: how_far}),
                )
                self._logger.warning("workspace.brought_back", workspace=place.key, held=named.held)
            unless_taken.pop_all()
        attached = Attached(
            tenant=call.tenant,
            name=call.workspace,
            place=place,
            guard=guard,
            repository=repository,
            record=record,
            undo=undo,
            lock_fd=lock_fd,
            brought_back=named.saved if moved else None,
            moved=moved,
        )
        return attached, ended

    def _mend(self, place: WorkspacePlace, guard: WorkspaceGuard, undo: UndoLog) -> None:
        """Take back what a killed host left half done. Blocking."""
        restored = undo.restore(guard)
        removed = guard.remove_temporaries()
        if restored or removed:
            self._logger.warning(
                "workspace.mended", workspace=place.key, restored=len(restored), temporaries=removed
            )

    async def _prepared(self, call: ToolCall, attached: Attached, wanted: _AttachArguments) -> ToolResult:
        baseline = attached.baselines.get(call.run_id) or await self._baseline(
            call, attached, wanted.baseline
        )
        attached.baselines[call.run_id] = baseline
        if attached.moved and call.run_id not in attached.lost:
            # Before any call of the run: what it had done since is done again, each run's part by its own log.
            self._how_far[call.workspace_id] = "what was done behind the snapshot is done again"
            attached.lost[call.run_id] = await self._replay.run(call, attached, attached.brought_back)
        changed = await asyncio.to_thread(_changed, attached.guard, wanted.files)
        found = await asyncio.to_thread(instructions, attached.guard)
        return ToolResult(
            call_id=call.call_id,
            attempt=call.attempt,
            ok=True,
            output="",
            metadata={
                "baseline": baseline,
                "changed": changed,
                "instructions": msgspec.to_builtins(found),
                "snapshot": attached.brought_back.snapshot if attached.brought_back is not None else None,
                "lost": attached.lost.get(call.run_id, []),
            },
        )

    async def _baseline(self, call: ToolCall, attached: Attached, known: str | None) -> str:
        repository = attached.repository
        if known is not None and await repository.has(known):
            return known
        pinned = await repository.baseline(call.run_id)
        if pinned is not None:
            return pinned
        snapshot = await repository.snapshot(f"baseline of {call.run_id}")
        await repository.pin_baseline(call.run_id, snapshot.commit)
        return snapshot.commit

    def _place(self, call: ToolCall) -> WorkspacePlace:
        """The directory, made if need be. A link directly in the root was put there by the operator and is resolved
        this once; a tool never writes into the root itself."""
        place = place_of(self._root, call.workspace, tenant=call.tenant if self._secure else None)
        place.git_dir.parent.mkdir(parents=True, exist_ok=True)
        if place.directory.is_symlink():
            return msgspec.structs.replace(place, directory=place.directory.resolve(strict=True))
        place.directory.mkdir(parents=True, exist_ok=True)
        return place

    async def _locked(self, directory: Path) -> int | None:
        """The descriptor that holds the directory's lock; `None` when somebody else keeps it."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        give_up_s = self._clock.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                if self._clock.monotonic() > give_up_s:
                    os.close(fd)
                    return None
            await self._clock.sleep(_LOCK_LOOK_S)


def _names_its_workspace(call: ToolCall) -> bool:
    """Whether id and name are of one workspace (the shard in the id is the owner's choice)."""
    if not is_id("ws", call.workspace_id) or not call.workspace:
        return False
    return (
        call.workspace_id.rpartition("_")[2]
        == workspace_id(SHARDS, call.tenant, call.workspace).rpartition("_")[2]
    )


def _changed(guard: WorkspaceGuard, files: dict[str, str]) -> list[str]:
    """The paths that no longer hold what their digests say. Blocking."""
    changed: list[str] = []
    for path, digest in files.items():
        try:
            found = sha256_of(guard, path)
        except ToolFailure:
            found = None
        if found != digest:
            changed.append(path)
    return sorted(changed)
