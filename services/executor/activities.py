"""What a run has going on in the world: model calls, tool calls, verification, attaching its workspace.

Invariant: an activity only observes; what it saw comes back as events for the session to append, and cancelling one
at any moment is safe, because the log and the journal know how far it got.
"""

from typing import NamedTuple, assert_never

import msgspec

from libs.bus.checkpoints import Index
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.bus.spending import Spending
from libs.chassis.crash import CrashHooks
from libs.chassis.logs import get_logger
from libs.contracts import events as e
from libs.contracts.checks import Verification, VerifyArguments, asks_review, seconds_of
from libs.contracts.clock import Clock
from libs.contracts.ids import verify_call_id
from libs.contracts.run import CallState, PendingVerification, RunState
from libs.contracts.sessions import SessionKind
from libs.contracts.tools import VERIFY, Refusal, Semantics, ToolCall, ToolResult
from libs.contracts.values import RunError
from libs.policy.redaction import Redaction
from libs.policy.rules import Policy
from services.executor.decision.activity import (
    Activity,
    Attach,
    BesideModel,
    CallModel,
    CallTool,
    Offer,
    ReadResult,
    Save,
    SpawnChild,
    Summarise,
    Verify,
)
from services.executor.decision.calls import completed
from services.executor.decision.decide import Env
from services.executor.decision.waits import again, silent, unhosted, unmet
from services.executor.egress.context import Window
from services.executor.endpoint.pulse import Pulse
from services.executor.endpoint.talk import Conversing, Talking, Tell
from services.executor.ingress.text import clipped
from services.executor.redacting import redacted
from services.executor.runcalls import GivenUp, RunCalls, Vanished
from services.executor.tools.calls import CallOutcome, Calls, HostGone, HostSilent
from services.executor.tools.children import spawn
from services.executor.tools.earlier import read_earlier
from services.executor.tools.hosts import HOSTS_WAIT_S, Hosts
from services.executor.tools.offering import Offerings, RunOffer, Specs
from services.executor.tools.recovery import NextAttempt, Uncertain
from services.executor.tools.workspace import (
    AttachFailed,
    AttachRefused,
    AttachUnanswered,
    AttachUnhosted,
    Workspaces,
)

# Beyond the checks' own time: snapshot, checkouts, the way there and back.
VERIFY_OVERHEAD_S = 120.0
# What of a goal a judge is told of.
GOAL_CHARS_MAX = 20_000
# What of an answer is held against the facts; the call is one message.
ANSWER_CHARS_MAX = 100_000
# Verifications that broke off (a dead verifier, a dead host) before the run is given up.
VERIFY_ATTEMPTS_MAX = 10


class Rules(NamedTuple):
    """What the operator wants of every call: which may happen, and what is not to be seen of it."""

    policy: Policy
    redaction: Redaction


class Workbench(NamedTuple):
    """What all runs of a process share."""

    bus: Bus
    clock: Clock
    hosts: Hosts
    offerings: Offerings
    calls: Calls
    workspaces: Workspaces
    talker: Talking
    runs: Runs
    rules: Rules
    hooks: CrashHooks
    spending: Spending


class Lost(NamedTuple):
    """A host says that the run has another owner or is over: look at the log."""

    reason: str


Observed = list[e.LogEvent] | Lost


class Footing(NamedTuple):
    """What an activity stands on. `tell` hears what is worth knowing before it is over; `places` is the log's index; `fresh`: its
    intent was appended by this owner under this claim."""

    tell: Tell
    places: Index
    fresh: bool


class Activities:
    """The activities of one run under one claim."""

    def __init__(self, bench: Workbench, state: RunState, pulse: Pulse) -> None:
        self._bench, self._pulse = bench, pulse
        self._attached = False
        self._spawned: set[str] = set()
        self._calls = RunCalls(bench.calls, bench.hosts, bench.clock)
        self._offer = RunOffer(bench.offerings)
        # The run's talk with its model, and the tools that it was begun with.
        self._talk: tuple[Conversing, Specs] | None = None
        self._log = get_logger("activities").bind(run_id=state.run_id)

    async def recall(self, state: RunState) -> None:
        """Find what the log only names. Before anything else; raises `Unavailable`."""
        await self._offer.recall(state)

    def env(self, state: RunState, *, busy: bool, saving: bool, draining: bool) -> Env:
        """What the decision may know beside the log."""
        to_offer = self._offer.wanted(state)
        offer = self._offer.made(state) if to_offer else None
        return Env(
            now=self._bench.clock.now(),
            model=state.task.model or self._bench.talker.model,
            specs=self._offer.specs(state),
            to_offer=to_offer,
            offer=offer,
            attached=self._attached,
            busy=busy,
            saving=saving,
            draining=draining,
            window=self._window,
            policy=self._bench.rules.policy,
            spawned=frozenset(self._spawned),
            parked_until=self._bench.spending.over_until(state.tenant),
        )

    async def carry_out(self, state: RunState, activity: Activity, on: Footing) -> Observed:
        """Do it, and say what was seen."""
        observed = await self._carried_out(state, activity, on)
        if isinstance(observed, Lost):
            return observed
        return [redacted(event, self._bench.rules.redaction) for event in observed]

    async def _carried_out(self, state: RunState, activity: Activity, on: Footing) -> Observed:
        match activity:
            case CallModel():
                self._bench.hooks.at_goal(state.task.goal)
                return await self._paid(state, await self._conversation(state).next_turn(state, on.tell))
            case Summarise(overflowed=overflowed):
                bought = await self._conversation(state).summarise(state, overflowed, on.tell)
                return await self._paid(state, bought)
            case _:
                with self._pulse.vouched():
                    return await self._beside_the_model(state, activity, on)

    async def _beside_the_model(self, state: RunState, activity: BesideModel, on: Footing) -> Observed:
        match activity:
            case Attach():
                return await self._attach(state)
            case Offer():
                return await self._settle_offer(state)
            case ReadResult(call):
                return [await read_earlier(self._bench.bus.log, state, call, on.places)]
            case CallTool(call):
                return await self._call(state, call, fresh=on.fresh)
            case SpawnChild(call):
                child = await spawn(self._bench.runs, state, call, self._bench.clock.now())
                self._log.info("child.spawned", call_id=call.call_id, child_run_id=child)
                self._spawned.add(call.call_id)
                return []
            case Verify(pending):
                return await self._verify(state, pending, fresh=on.fresh)
            case Save(sequence):
                return [await self._saved(state, sequence)]
            case _:
                assert_never(activity)

    async def kill(self, state: RunState) -> None:
        """Have every host that may run something for the run kill it."""
        boots = set(self._calls.asked)
        if state.attachment is not None:
            boots.add(state.attachment.host)
        for boot in sorted(boots):
            await self._bench.calls.kill(state.run_id, state.epoch, boot)

    async def _paid(self, state: RunState, bought: list[e.LogEvent]) -> list[e.LogEvent]:
        """What was bought, once it is counted for the tenant."""
        usages = [
            event.usage
            for event in bought
            if isinstance(event, e.ModelCompleted | e.ModelFailed | e.ContextCompacted)
        ]
        tokens = sum(usage.total_tokens for usage in usages)
        await self._bench.spending.bought(state.tenant, tokens)
        return bought

    def _conversation(self, state: RunState) -> Conversing:
        """The run's side of its talk with the model."""
        specs = self._offer.specs(state)
        if self._talk is None or self._talk[1] != specs:
            self._talk = self._bench.talker.talk(state, specs, self._pulse), specs
        return self._talk[0]

    def _window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        return self._conversation(state).window(state, overflowed)

    async def _attach(self, state: RunState) -> Observed:
        attached = await self._bench.workspaces.attach(state)
        if isinstance(attached, AttachRefused):
            return Lost(f"the workspace was not attached: {attached.reason}")
        if isinstance(attached, AttachUnanswered):
            self._log.warning("workspace.host_silent", host=attached.host, times=state.silences + 1)
            return [silent(state, attached.host, self._bench.clock.now())]
        if isinstance(attached, AttachUnhosted):
            return [self._unhosted()]
        if isinstance(attached, AttachFailed):
            error = RunError(error_code="WORKSPACE_ERROR", message=attached.message)
            return [e.RunFailed(error=error, usage=state.usage)]
        self._attached = True
        return [attached.event] if attached.event is not None else []

    async def _settle_offer(self, state: RunState) -> list[e.LogEvent]:
        """Not before there is a host, or the model would be asked as if its tools did not exist."""
        hosts, offer = self._bench.hosts, self._offer
        needed = state.attachment is not None or bool(offer.missing(state))
        if not await hosts.until(hosts.ready, HOSTS_WAIT_S) and needed:
            return [self._unhosted()]
        if not await hosts.until(lambda: not offer.missing(state), HOSTS_WAIT_S):
            return [unmet(state, offer.missing(state))]
        await offer.make(state)
        return []

    def _unhosted(self) -> e.LogEvent:
        self._log.warning("hosts.none")
        return unhosted(self._bench.clock.now())

    async def _call(self, state: RunState, call: CallState, *, fresh: bool) -> Observed:
        return self._observed(call, await self._calls.outcome(state, call, fresh=fresh))

    def _observed(self, call: CallState, outcome: CallOutcome | Vanished | GivenUp) -> Observed:
        match outcome:
            case ToolResult(refused=(Refusal.STALE_EPOCH | Refusal.RUN_NOT_LIVE) as refused):
                return Lost(f"{call.name} was refused: {refused}")
            case Vanished() | ToolResult(refused=Refusal.UNKNOWN_TOOL):
                told = f"{call.name} was not called: no host offers it any more. Do without it, or try again much later"
                return [completed(call.call_id, ok=False, output=told)]
            case ToolResult():
                return [_completed(call, outcome)]
            case HostSilent():
                told = f"{call.name} failed: its host lives and does not answer; try something else"
                return [completed(call.call_id, ok=False, output=told)]
            case GivenUp(reason):
                self._log.warning("call.given_up", call_id=call.call_id, reason=reason)
                told = f"{call.name} failed: {reason}; try something else"
                return [completed(call.call_id, ok=False, output=told)]
            case HostGone(reason):
                self._log.warning("call.host_gone", call_id=call.call_id, reason=reason)
                self._attached = False
                return []
            case NextAttempt():
                return [again(call)]
            case Uncertain(entry):
                ended = "died" if entry.result is None else "was stopped"
                reason = f"host {entry.replica} (boot {entry.boot}) {ended} while it ran {call.name}"
                if not entry.boot:
                    reason = f"what the journal says of {call.name} cannot be read"
                uncertain = e.ToolUncertain(
                    call_id=call.call_id,
                    attempt=call.attempt,
                    reason=reason,
                    host=entry.host,
                    boot=entry.boot,
                    last_seen=entry.at,
                )
                return [uncertain]
            case _:
                assert_never(outcome)

    async def _saved(self, state: RunState, sequence: int) -> e.WorkspaceSnapshotted:
        saved = await self._bench.workspaces.save(state, sequence)
        if saved.problem is not None and state.task.errands:
            # An errand ends with what it did, or does it again: whoever holds the workspace now is asked first.
            self._attached = False
        return saved

    async def _verify(self, state: RunState, pending: PendingVerification, *, fresh: bool) -> Observed:
        turn, attachment, session = state.last_turn, state.attachment, state.task.session
        arguments = VerifyArguments(
            round=pending.round,
            checks=pending.checks,
            answer=clipped(turn.content, ANSWER_CHARS_MAX) if turn is not None else "",
            host=attachment.host if attachment is not None else "",
            baseline=attachment.baseline if attachment is not None else None,
            # The model hears of the last round in the feedback of the one before.
            last=pending.round + 1 >= state.limits.max_verification_rounds,
            by_default=session is None or session.kind is not SessionKind.INITIALIZE,
            goal=clipped(state.task.goal, GOAL_CHARS_MAX) if asks_review(pending.checks) else "",
        )
        call = ToolCall(
            tenant=state.tenant,
            run_id=state.run_id,
            call_id=verify_call_id(pending.round),
            attempt=pending.attempt,
            epoch=state.epoch,
            name=VERIFY,
            arguments=msgspec.to_builtins(arguments),
            semantics=Semantics.IDEMPOTENT,
            idempotency_key=pending.idempotency_key,
            not_after="",
            timeout_s=VERIFY_OVERHEAD_S + seconds_of(pending.checks),
            output_chars_max=state.limits.max_tool_output_chars,
            workspace=state.workspace if attachment is not None else "",
            workspace_id=attachment.workspace_id if attachment is not None else "",
        )
        outcome = await self._bench.calls.effect(call, None, fresh=fresh)
        return self._verified(state, pending, outcome)

    def _verified(self, state: RunState, pending: PendingVerification, outcome: CallOutcome) -> Observed:
        if isinstance(outcome, ToolResult) and outcome.refused is None and "verification" in outcome.metadata:
            verdict = msgspec.convert(outcome.metadata["verification"], Verification)
            return [
                e.VerificationCompleted(
                    round=pending.round,
                    status=verdict.status,
                    checks=verdict.checks,
                    commit=verdict.commit,
                    feedback=outcome.output,
                )
            ]
        self._attached = False
        self._log.warning("verification.broke_off", round=pending.round, attempt=pending.attempt)
        if pending.attempt >= VERIFY_ATTEMPTS_MAX:
            why = f"round {pending.round} of verification broke off {pending.attempt} times; see the verifiers' logs"
            return [
                e.RunFailed(error=RunError(error_code="VERIFICATION_FAILED", message=why), usage=state.usage)
            ]
        return [
            e.VerificationRequested(
                round=pending.round,
                checks=pending.checks,
                idempotency_key=pending.idempotency_key,
                attempt=pending.attempt + 1,
            )
        ]


def _completed(call: CallState, result: ToolResult) -> e.ToolCompleted:
    if result.refused is not None:
        output = result.output or f"{call.name} was refused: {result.refused}"
        return e.ToolCompleted(call_id=call.call_id, ok=False, output=output, duration_ms=0)
    return e.ToolCompleted(
        call_id=call.call_id,
        ok=result.ok,
        output=result.output,
        duration_ms=result.duration_ms,
        metadata=result.metadata,
    )
