"""Where a run's workspace lives: reading and writing the workspace's own log, from the owner's side.

Invariant: a host is named in the workspace's log before it is asked for anything; while it lives every run uses it.
"""

from typing import NamedTuple

import msgspec

from libs.bus.ports import Bus, Draft, Liveness, LogKey
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.errors import AppendConflict
from libs.contracts.events import WorkspaceAttached
from libs.contracts.ids import workspace_id
from libs.contracts.run import RunState
from libs.contracts.tools import WORKSPACE_ATTACH, Refusal, Semantics, ToolCall, ToolResult
from libs.contracts.values import ProjectInstructions
from services.executor.tools.calls import Calls, HostSilent
from services.executor.tools.hosts import Hosts

# Making a baseline of a large project takes its time; a host that needs longer is asked again.
ATTACH_TIMEOUT_S = 60.0
# Between two looks while no host can hold the workspace or its former host is only suspected to be dead.
LOOK_AGAIN_S = 0.25


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


class AttachRefused(NamedTuple):
    """The host says that the run is not this owner's any more."""

    reason: str


class Workspaces:
    """Attaches workspaces for the runs of one process."""

    def __init__(
        self, bus: Bus, clock: Clock, liveness: Liveness, hosts: Hosts, calls: Calls, *, shards: int
    ) -> None:
        self._bus, self._clock, self._liveness = bus, clock, liveness
        self._hosts, self._calls, self._shards = hosts, calls, shards
        self._logger = get_logger("workspace")

    async def attach(self, state: RunState) -> Attached | AttachFailed | AttachUnanswered | AttachRefused:
        """Find or name the host of the run's workspace and have it prepare it; waits until there is one."""
        identifier = workspace_id(self._shards, state.tenant, state.workspace)
        told = ""
        while True:
            named = await self._named_host(LogKey(state.tenant, identifier))
            if named is not None:
                result = await self._calls.ask(self._attach_call(state, identifier), named.host)
                match result:
                    case ToolResult(refused=None, ok=True):
                        return self._attached(state, named, result)
                    case ToolResult(refused=None | Refusal.WORKSPACE_FAULT):
                        return AttachFailed(result.output)
                    case ToolResult(refused=(Refusal.STALE_EPOCH | Refusal.RUN_NOT_LIVE) as refused):
                        return AttachRefused(refused)
                    case HostSilent(host):
                        return AttachUnanswered(host)
                    case _:
                        pass
                if named.host != told:
                    told = named.host
                    self._logger.warning("workspace.attach_refused", workspace=identifier, host=named.host)
            await self._clock.sleep(LOOK_AGAIN_S)

    async def _named_host(self, key: LogKey) -> WorkspaceAttached | None:
        """The live host that the workspace's log names, after naming one if need be; `None`: look again later."""
        tail = await self._bus.log.tail(key)
        current = _attachment(tail)
        if current is not None and not await self._replaceable(current.host):
            return current if self._hosts.alive(current.host) else None
        host = self._hosts.workspace_host(key.log_id)
        if host is None:
            return None
        body = WorkspaceAttached(workspace_id=key.log_id, host=host.boot, replica=host.replica)
        sequence = tail.header.last + 1 if tail is not None else 1
        event = Event(sequence, key.log_id, rfc3339(self._clock.now()), body)
        expected = tail.header.stream_sequence if tail is not None else 0
        try:
            await self._bus.log.append(Draft(key, expected, [event], 0, "ATTACHED"))
        except AppendConflict:
            return None
        self._logger.info("workspace.host_named", workspace=key.log_id, host=host.boot)
        return body

    async def _replaceable(self, boot: str) -> bool:
        return not self._hosts.alive(boot) and await self._liveness.declare_dead_if_gone(boot)

    def _attach_call(self, state: RunState, identifier: str) -> ToolCall:
        baseline = state.attachment.baseline if state.attachment is not None else None
        return ToolCall(
            tenant=state.tenant,
            run_id=state.run_id,
            call_id=WORKSPACE_ATTACH,
            attempt=state.attempt,
            epoch=state.epoch,
            name=WORKSPACE_ATTACH,
            arguments={"baseline": baseline, "files": state.files},
            semantics=Semantics.READ_ONLY,
            idempotency_key=f"{state.run_id}:{WORKSPACE_ATTACH}:{state.attempt}",
            not_after="",
            timeout_s=ATTACH_TIMEOUT_S,
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
            baseline=answer.baseline,
            changed=answer.changed,
            # They are of use once, before the model is asked for the first time.
            instructions=answer.instructions if known is None and state.iteration == 0 else None,
        )
        return Attached(named.host, event)


class _AttachAnswer(msgspec.Struct, frozen=True, kw_only=True):
    baseline: str | None = None
    changed: list[str] = []
    instructions: ProjectInstructions | None = None


def _attachment(tail: Record | None) -> WorkspaceAttached | None:
    """The attachment that a workspace's newest record says; its log holds nothing else so far."""
    if tail is None:
        return None
    body = decode_events(tail)[-1].body
    assert isinstance(body, WorkspaceAttached), f"{body.type} in the log of a workspace"
    return body
