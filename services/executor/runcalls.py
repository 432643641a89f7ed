"""The calls of one run under one claim: what is sent, to whom, and how often at most.

Invariant: no call is asked for without end. A host that turns a reading call away again and again, or loses attempt after
attempt, becomes a failure that the model reads; what such an attempt did is harmless to repeat, so nothing is hidden.
"""

from typing import NamedTuple

from libs.contracts.clock import Clock
from libs.contracts.run import CallState, RunState
from libs.contracts.tools import Refusal, Semantics, ToolCall, ToolResult
from libs.policy.reach import alike, paths_of_call
from services.executor.tools.calls import ASK_AGAIN_MAX_S, ASK_AGAIN_S, CallOutcome, Calls, HostGone
from services.executor.tools.hosts import Hosts
from services.executor.tools.recovery import NextAttempt, Wait

# How long a call waits for a host that offers its tool, while others live: longer than one takes to start again.
TOOL_WAIT_S = 10.0
# A reading call is turned away while a host ends or a workspace moves. With the pauses between (none, then 0.25 s and
# each time twice as long, up to 2 s) this is about two minutes; after that it is a defect of the host.
REFUSALS_MAX = 60
# Each attempt that is over without a result was refused, or cost a host its life. With the pauses that refusals have
# (`REFUSED_PAUSE_MAX_S`), refusals last about a minute; a call that ends its host every time has ended ten.
ATTEMPTS_MAX = 10


class Vanished(NamedTuple):
    """No host offers the tool of a call any more, and nobody has begun with the call."""


class GivenUp(NamedTuple):
    """Asking again has not helped, often enough."""

    reason: str


class RunCalls:
    """Sends the calls of one run. `asked` are the hosts that they went to: who has to be told when the run ends."""

    def __init__(self, calls: Calls, hosts: Hosts, clock: Clock) -> None:
        self._calls, self._hosts, self._clock = calls, hosts, clock
        self._refusals: dict[str, int] = {}
        self.asked: set[str] = set()

    async def outcome(
        self, state: RunState, call: CallState, *, fresh: bool
    ) -> CallOutcome | Vanished | GivenUp:
        """What became of a call. `fresh` as in `Calls.effect`."""
        outcome = await self._sent(state, call, _message(state, call), fresh=fresh)
        if isinstance(outcome, NextAttempt) and call.attempt >= ATTEMPTS_MAX:
            return GivenUp(
                f"{call.attempt} attempts broke off or were refused, and how far they got is not known"
            )
        refusal = _refusal(outcome) if call.semantics is Semantics.READ_ONLY else None
        if refusal is None:
            return outcome
        refusals = self._refusals[call.call_id] = self._refusals.get(call.call_id, 0) + 1
        if refusals >= REFUSALS_MAX:
            return GivenUp(f"its host turned it away {refusals} times ({refusal})")
        if refusals > 1:
            await self._clock.sleep(min(ASK_AGAIN_S * 2 ** min(refusals - 2, 10), ASK_AGAIN_MAX_S))
        return outcome

    async def _sent(
        self, state: RunState, call: CallState, message: ToolCall, *, fresh: bool
    ) -> CallOutcome | Vanished:
        read_only = call.semantics is Semantics.READ_ONLY
        while (boot := self._host_of(state, call)) is None:
            # What a host did with the call before it went is in the journal, whether or not another one comes.
            known = None if read_only else await self._calls.known(message)
            if known is not None and not isinstance(known, Wait):
                return known
            came = await self._hosts.until(lambda: self._host_of(state, call) is not None, TOOL_WAIT_S)
            if known is None and not came and self._hosts.ready():
                return Vanished()
        self.asked.add(boot)
        if read_only:
            return await self._calls.ask(message, boot)
        return await self._calls.effect(message, boot, fresh=fresh)

    def _host_of(self, state: RunState, call: CallState) -> str | None:
        """Where the call goes, by its intent: the catalog may have lost the tool since."""
        if call.needs_workspace:
            assert state.attachment is not None
            return state.attachment.host
        offering = self._hosts.offering(call.name, state.tenant, state.run_id)
        return offering.boot if offering is not None else None


def _message(state: RunState, call: CallState) -> ToolCall:
    attachment = state.attachment
    return ToolCall(
        tenant=state.tenant,
        run_id=state.run_id,
        call_id=call.call_id,
        attempt=call.attempt,
        epoch=state.epoch,
        name=call.name,
        arguments=call.arguments,
        semantics=call.semantics,
        idempotency_key=call.idempotency_key,
        not_after="",
        timeout_s=call.timeout_s if call.timeout_s is not None else state.limits.tool_timeout_s,
        output_chars_max=state.limits.max_tool_output_chars,
        workspace=state.workspace if call.needs_workspace else "",
        workspace_id=attachment.workspace_id if attachment is not None and call.needs_workspace else "",
        approval_sequence=call.approval_sequence,
        approval_hash=call.approval_hash,
        seen=alike(state.files, paths_of_call(call.name, call.arguments)),
    )


def _refusal(outcome: CallOutcome | Vanished) -> str | None:
    """Why the call was turned away, where it will be asked for again."""
    match outcome:
        case HostGone(reason):
            return reason
        case ToolResult(refused=(Refusal.STALE_EPOCH | Refusal.RUN_NOT_LIVE) as refused):
            return str(refused)
        case _:
            return None
