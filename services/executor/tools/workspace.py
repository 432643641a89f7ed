"""Where a run's workspace lives: reading and writing the workspace's own log, from the owner's side.

Invariant: a host is named in the workspace's log before it is asked for anything; while it lives every run uses it.
"""

import asyncio
from typing import NamedTuple

import msgspec

from libs.bus.ports import Bus, Draft, Liveness, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.errors import AppendConflict, PerdureError
from libs.contracts.events import LogEvent, WorkspaceAttached, WorkspaceSnapshotted
from libs.contracts.ids import workspace_id
from libs.contracts.run import RunState
from libs.contracts.tools import (
    WORKSPACE_ATTACH,
    WORKSPACE_SNAPSHOT,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
)
from libs.contracts.values import ProjectInstructions
from libs.contracts.workspaces import Saved
from services.executor.tools.calls import Calls, HostGone, HostSilent
from services.executor.tools.hosts import HOSTS_WAIT_S, Hosts

# Making a baseline of a large project takes its time; a host that needs longer is asked again.
ATTACH_TIMEOUT_S = 60.0
# Longer than git may take for an average project on a busy machine; a snapshot that takes longer is given up.
SAVE_TIMEOUT_S = 60.0
SAVE_GRACE_S = 2.0
# Runs that share a workspace may keep it at the same time; each try is on top of what the others kept.
_SAVE_TRIES = 4
PROBLEM_CHARS_MAX = 500
# Between two looks while no host can hold the workspace or its former host is only suspected to be dead: each time twice
# as long, unless something about the hosts changes.
LOOK_AGAIN_S, LOOK_AGAIN_MAX_S = 0.25, 2.0


class Attached(NamedTuple):
    """The host that holds the workspace now; `event` is for the run's log, `None` when the log says so already."""

    host: str
    event: WorkspaceAttached | None


class AttachFailed(NamedTuple):
    """The host holds the workspace and cannot use it; asking again would not help."""

    message: str


class AttachUnanswered(NamedTuple):
    """The host lives and does not answer; later it may, or somebody else may hold the workspace."""

    host: str


class AttachUnhosted(NamedTuple):
    """No host is there; that can last."""


class AttachRefused(NamedTuple):
    """The host says that the run is not this owner's any more."""

    reason: str


AttachOutcome = Attached | AttachFailed | AttachUnanswered | AttachUnhosted | AttachRefused


class Workspaces:
    """Attaches workspaces for the runs of one process."""

    def __init__(
        self, bus: Bus, clock: Clock, liveness: Liveness, hosts: Hosts, calls: Calls, *, shards: int
    ) -> None:
        self._bus, self._clock, self._liveness = bus, clock, liveness
        self._hosts, self._calls, self._shards = hosts, calls, shards
        self._logger = get_logger("workspace")

    async def attach(self, state: RunState) -> AttachOutcome:
        """Find or name the host of the run's workspace and have it prepare it; waits while there is one that may."""
        identifier = workspace_id(self._shards, state.tenant, state.workspace)
        told, pause_s = "", LOOK_AGAIN_S
        while True:
            named = await self._named_host(LogKey(state.tenant, identifier))
            if named is not None:
                result = await self._calls.ask(self._attach_call(state, identifier), named.host)
                match result:
                    case ToolResult(refused=None, ok=True):
                        if named.held == named.root or await self._confirmed(state, named):
                            return self._attached(state, named, result)
                        continue
                    case ToolResult(refused=None | Refusal.WORKSPACE_FAULT):
                        return AttachFailed(result.output)
                    case ToolResult(refused=(Refusal.STALE_EPOCH | Refusal.RUN_NOT_LIVE) as refused):
                        return AttachRefused(refused)
                    case HostSilent(host):
                        return AttachUnanswered(host)
                    case HostGone(reason):
                        said = f"{named.host}: {reason}"
                    case _:
                        said = f"{named.host}: {result}"
                if said != told:
                    # Also how far it is, where it takes long.
                    told = said
                    self._logger.warning("workspace.not_attached_yet", workspace=identifier, said=said)
            if not await self._hosts.until(self._hosts.ready, HOSTS_WAIT_S):
                return AttachUnhosted()
            await self._hosts.pause(pause_s)
            pause_s = min(2 * pause_s, LOOK_AGAIN_MAX_S)

    async def _named_host(self, key: LogKey) -> WorkspaceAttached | None:
        """The live host that the workspace's log names, after naming one if need be; `None`: look again later."""
        tail = await self._bus.log.tail(key)
        current = _attachment(tail)
        # A workspace that was made for a fork has had no host.
        if current is not None and current.host and not await self._replaceable(current.host):
            return current if self._hosts.alive(current.host) else None
        held = current.held if current is not None else ""
        host = self._hosts.workspace_host(key.log_id, held)
        if host is None:
            return None
        body = WorkspaceAttached(
            workspace_id=key.log_id,
            host=host.boot,
            replica=host.replica,
            root=host.root,
            held=held or host.root,
            saved=current.saved if current is not None else None,
        )
        if not await self._append(key, tail, [body]):
            return None
        self._logger.info("workspace.host_named", workspace=key.log_id, host=host.boot)
        return body

    async def _confirmed(self, state: RunState, named: WorkspaceAttached) -> bool:
        """The host has brought the workspace back: from now on the newest state lies there. Recorded before any call
        goes to it, so that the next host knows where to look."""
        key = LogKey(state.tenant, named.workspace_id)
        tail = await self._bus.log.tail(key)
        if _attachment(tail) != named:
            return False
        return await self._append(key, tail, [msgspec.structs.replace(named, held=named.root)])

    async def save(self, state: RunState, sequence: int) -> WorkspaceSnapshotted:
        """Have the host keep the workspace, with what the run has done up to `sequence`. Never fails: what went wrong is
        said in the event."""
        try:
            return await self._save(state, sequence)
        except PerdureError as error:
            return self._unsaved(state, error.message)

    async def _save(self, state: RunState, sequence: int) -> WorkspaceSnapshotted:
        assert state.attachment is not None
        key = LogKey(state.tenant, state.attachment.workspace_id)
        for _ in range(_SAVE_TRIES):
            tail = await self._bus.log.tail(key)
            current = _attachment(tail)
            if current is None or current.host != state.attachment.host:
                return self._unsaved(state, "another host holds the workspace by now")
            chain = current.saved.chain if current.saved is not None else []
            call = self._internal(state, key.log_id, WORKSPACE_SNAPSHOT, {"chain": chain}, SAVE_TIMEOUT_S)
            try:
                async with asyncio.timeout(SAVE_TIMEOUT_S + SAVE_GRACE_S):
                    result = await self._calls.ask(call, current.host)
            except TimeoutError:
                return self._unsaved(state, "its host did not do it in time")
            if not isinstance(result, ToolResult):
                return self._unsaved(state, "its host does not answer")
            if result.refused is not None or not result.ok:
                return self._unsaved(state, result.output or f"its host refused: {result.refused}")
            kept = msgspec.convert(result.metadata, _KeptAnswer)
            saved = Saved(
                snapshot=kept.snapshot,
                commit=kept.commit,
                chain=kept.chain,
                run_id=state.run_id,
                at_sequence=sequence,
            )
            event = WorkspaceSnapshotted(commit=kept.commit, changed=kept.changed, saved=saved)
            newest = msgspec.structs.replace(current, saved=saved)
            if await self._append(key, tail, [event, newest]):
                self._logger.info("workspace.saved", workspace=key.log_id, snapshot=kept.snapshot)
                return event
        return self._unsaved(state, "other runs keep the same workspace all the time")

    def _unsaved(self, state: RunState, problem: str) -> WorkspaceSnapshotted:
        self._logger.warning("workspace.not_saved", run_id=state.run_id, problem=problem)
        return WorkspaceSnapshotted(commit="", changed=0, problem=problem[:PROBLEM_CHARS_MAX])

    async def _append(self, key: LogKey, tail: Record | None, bodies: list[LogEvent]) -> bool:
        """Append to the workspace's own log on top of `tail`; whether nobody was faster."""
        sequence = tail.header.last + 1 if tail is not None else 1
        at = rfc3339(self._clock.now())
        events = [Event(sequence + index, key.log_id, at, body) for index, body in enumerate(bodies)]
        expected = tail.header.stream_sequence if tail is not None else 0
        try:
            await self._bus.log.append(Draft(key, expected, events, 0, "ATTACHED"))
        except AppendConflict:
            return False
        return True

    async def _replaceable(self, boot: str) -> bool:
        return not self._hosts.alive(boot) and await self._liveness.declare_dead_if_gone(boot)

    def _attach_call(self, state: RunState, identifier: str) -> ToolCall:
        baseline = state.attachment.baseline if state.attachment is not None else state.task.baseline
        arguments: dict[str, object] = {"baseline": baseline, "files": state.files}
        return self._internal(state, identifier, WORKSPACE_ATTACH, arguments, ATTACH_TIMEOUT_S)

    def _internal(
        self, state: RunState, identifier: str, name: str, arguments: dict[str, object], timeout_s: float
    ) -> ToolCall:
        """A call of the runtime itself to the host of the workspace."""
        return ToolCall(
            tenant=state.tenant,
            run_id=state.run_id,
            call_id=name,
            attempt=state.attempt,
            epoch=state.epoch,
            name=name,
            arguments=arguments,
            semantics=Semantics.READ_ONLY,
            idempotency_key=f"{state.run_id}:{name}:{state.attempt}",
            not_after="",
            timeout_s=timeout_s,
            output_chars_max=state.limits.max_tool_output_chars,
            workspace=state.workspace,
            workspace_id=identifier,
        )

    def _attached(self, state: RunState, named: WorkspaceAttached, result: ToolResult) -> Attached:
        answer = msgspec.convert(result.metadata, _AttachAnswer)
        known = state.attachment
        if known is not None and known.host == named.host and not answer.changed:
            return Attached(named.host, None)
        event = msgspec.structs.replace(
            named,
            held=named.root,
            snapshot=answer.snapshot,
            baseline=answer.baseline,
            changed=answer.changed,
            lost=answer.lost,
            # They are of use once, before the model is asked for the first time.
            instructions=answer.instructions if known is None and state.iteration == 0 else None,
        )
        return Attached(named.host, event)


class _AttachAnswer(msgspec.Struct, frozen=True, kw_only=True):
    baseline: str | None = None
    changed: list[str] = []
    instructions: ProjectInstructions | None = None
    snapshot: str | None = None
    lost: list[str] = []


class _KeptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    snapshot: str
    commit: str
    chain: list[str]
    changed: int


def _attachment(tail: Record | None) -> WorkspaceAttached | None:
    """The attachment that a workspace's newest record ends with, as every record of its log does."""
    if tail is None:
        return None
    body = decode_events(tail)[-1].body
    assert isinstance(body, WorkspaceAttached), f"{body.type} in the log of a workspace"
    return body
