"""The pure core of the agent loop: `settle(state, env)` says what is to be recorded and what is to be done now.

Invariant: the same state and environment give the same answer, whether they were reached by living through them or by
folding the log after a crash; so recovery is not another path.

One step (`decide`) either has something to say (events, after which it is asked again) or names what should be going
on in the world (activities; whatever else is going on is to be stopped) or leaves the run.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from libs.contracts import events as e
from libs.contracts.checks import Verdict
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event
from libs.contracts.evolve import evolve
from libs.contracts.ids import verify_call_id
from libs.contracts.run import CallState, PendingVerification, RunState
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.transcript import AssistantItem
from libs.contracts.values import CONTEXT_EXHAUSTED, ModelToolCall, Offered, RunError
from libs.policy.rules import Policy
from services.executor.decision import calls, errands, saving, waits
from services.executor.decision.activity import (
    Activity,
    Attach,
    CallModel,
    CallTool,
    Offer,
    ReadResult,
    Save,
    SpawnChild,
    Summarise,
    Verify,
)
from services.executor.decision.limits import deadline, notice, rounds_used_up, spent, timed_out
from services.executor.decision.stuck import circling
from services.executor.egress.context import Compact, Exhausted, Fits, Window
from services.executor.egress.results import is_result
from services.executor.ingress.finish import Fail, Final, Nudge, Retry, RunTools, judge, nudges_in
from services.executor.tools.runtime import DELEGATE

# What can be said in a row: the end of one step, its verdict, a compaction and the next step are four.
SAYS_MAX = 16


class Env(NamedTuple):
    """What the owner knows beside the log. `window` says whether the next request fits; its second argument is
    whether the provider has just called it too long. `spawned` are the delegate calls whose child this owner has made."""

    now: datetime
    model: str
    specs: Mapping[str, ToolSpec]
    attached: bool
    busy: bool
    draining: bool
    window: Callable[[RunState, bool], tuple[int, Window]]
    policy: Policy = Policy()
    spawned: frozenset[str] = frozenset()
    # Whether a snapshot is being made.
    saving: bool = False
    # Whether the next request has to name the tools that it offers, and their name once they are stored.
    to_offer: bool = False
    offer: Offered | None = None
    # When the tenant may use tokens again, if those of the day are used up.
    parked_until: datetime | None = None


class Say(NamedTuple):
    """To be recorded; then decide again."""

    events: list[e.LogEvent]


class Do(NamedTuple):
    """Exactly these activities should be going on. None: wait for a command, or for what is running to stop."""

    activities: tuple[Activity, ...]


class Leave(NamedTuple):
    """Nothing more to do for this owner."""


Step = Say | Do | Leave


class Settled(NamedTuple):
    """All that is to be recorded now, and what to do once it is."""

    events: list[e.LogEvent]
    then: Do | Leave
    state: RunState


def settle(state: RunState, env: Env) -> Settled:
    """Decide until there is nothing more to say. Ends, because every `Say` moves the state towards an activity."""
    said: list[e.LogEvent] = []
    for _ in range(SAYS_MAX):
        step = decide(state, env)
        if not isinstance(step, Say):
            return Settled(said, step, state)
        state = foresee(state, step.events, env.now)
        said += step.events
    raise AssertionError(f"the decision on {state.run_id} does not come to an end in {state.status}")


def foresee(state: RunState, bodies: Sequence[e.LogEvent], now: datetime) -> RunState:
    """The state as it will be once `bodies` are stored."""
    at = rfc3339(now)
    for body in bodies:
        state = evolve(state, Event(state.sequence + 1, state.run_id, at, body))
    return state


def decide(state: RunState, env: Env) -> Step:
    """One step for a run that this process owns."""
    if state.owner is None:
        return Leave()
    if state.cancel_requested_by is not None:
        return _end(env, e.RunCancelled(by=state.cancel_requested_by, usage=state.usage))
    if env.draining:
        return _end(env, e.RunReleased(reason="shutdown"))
    if env.now >= deadline(state):
        return _end(env, _failed(state, *timed_out(state)))
    if _may_pause(state):
        return _saved_first(state, env) or _end(env, e.RunReleased(reason="suspended", waiting_for="resume"))
    if state.task.errands:
        return _errand(state, env)
    if state.files and not env.attached:
        return Do((Attach(),))  # What changed while nobody looked is named to the model before its next turn.
    open_calls = calls.unanswered(state)
    if open_calls:
        return _calls(state, env, open_calls)
    if state.verification_pending is not None:
        pending = state.verification_pending
        return Do((Verify(pending),) if env.attached or _needs_no_facts(state, pending) else (Attach(),))
    if state.model_failure is not None:
        return _after_failure(state, env)
    return _next(state, env)


def _end(env: Env, event: e.LogEvent) -> Step:
    """What is still going on is stopped first: nothing follows the end of a run or of an ownership."""
    return Do(()) if env.busy else Say([event])


def _failed(state: RunState, code: str, message: str) -> e.RunFailed:
    return e.RunFailed(
        error=RunError(error_code=code, message=message),
        usage=state.usage,
        verification=state.verification,
        evidence=state.verification.evidence if state.verification is not None else [],
    )


def _errand(state: RunState, env: Env) -> Step:
    """A run that asks no model: one step after the other, then its end."""
    if errands.is_over(state):
        if (state.unsaved or state.save_failures) and not env.attached:
            # Its machine may be gone with what was done there: the next one that holds the workspace says so.
            return Do((Attach(),))
        return _saved_first(state, env) or _end(env, errands.end(state))
    if not env.attached:
        return Do((Attach(),))
    if state.verification_pending is not None:
        return Do((Verify(state.verification_pending),))
    return Do((CallTool(state.calls[0]),)) if state.calls else Say([errands.intent(state)])


def _calls(state: RunState, env: Env, open_calls: list[ModelToolCall]) -> Step:
    events = calls.intents(state, open_calls, env.specs, env.policy)
    if events:
        return Say(events)
    harmless = calls.cut_off(state)
    if harmless:
        return Say([waits.again(call) for call in harmless])
    unsure = next((call for call in state.calls if call.uncertain is not None), None)
    if unsure is not None and state.reconciled is not None and state.reconciled.call_id == unsure.call_id:
        return _reconciled(state, env, unsure)
    running = calls.may_run(state)
    if env.saving:
        # What is being kept stands still; who only reads does not move it.
        reads = [CallTool(call) for call in running if call.semantics is Semantics.READ_ONLY and env.attached]
        return Do((Save(state.sequence), *reads))
    if any(call.needs_workspace for call in running) and not env.attached:
        return Do((Attach(),))
    unborn = [
        call
        for call in state.calls
        if call.name == DELEGATE.name
        and call.call_id not in env.spawned
        and call.call_id not in state.child_results
    ]
    over = spent(state) if _works_for(state) else None
    if over is not None and (over[0] == "BUDGET_EXCEEDED" or not running):
        # There is no turn left for what comes of them. Its end ends the children that still work for it.
        return _end(env, _failed(state, over[0], f"{over[1]}; what it had delegated is stopped"))
    if over is not None:
        return Do(tuple(CallTool(call) for call in running))
    told = [call for call in state.calls if is_result(call.name, call.arguments)]
    if running or unborn or told:
        activities: list[Activity] = [CallTool(call) for call in running]
        return Do((*activities, *(SpawnChild(call) for call in unborn), *(ReadResult(call) for call in told)))

    def why(call: ModelToolCall) -> str:
        return calls.reason(state, call, env.specs, env.policy)

    return _saved_first(state, env) or (Do(()) if env.busy else Say(waits.suspend(state, open_calls, why)))


def _works_for(state: RunState) -> bool:
    """Whether a child is at work, or about to be."""
    return any(call.name == DELEGATE.name and call.call_id not in state.child_results for call in state.calls)


def _needs_no_facts(state: RunState, pending: PendingVerification) -> bool:
    """A run that never had its workspace attached changed nothing there: its answer is judged without a host."""
    return state.attachment is None and not pending.checks


def _reconciled(state: RunState, env: Env, call: CallState) -> Step:
    decided = state.reconciled
    assert decided is not None
    if decided.decision == "fail":
        why = f"the outcome of {call.name} stayed unknown and was given up by a person"
        return _end(env, _failed(state, "RECONCILIATION_FAILED", why))
    return Say([waits.resolution(call, decided)])


def _may_pause(state: RunState) -> bool:
    """A run pauses between its steps, so that pausing never throws work away."""
    return (
        state.pause_requested
        and not state.model_pending
        and state.verification_pending is None
        and not any(calls.in_the_world(call) for call in state.calls)
    )


def _after_failure(state: RunState, env: Env) -> Step:
    failure = state.model_failure
    assert failure is not None
    if failure.error_code == CONTEXT_EXHAUSTED:
        _, window = env.window(state, True)
        match window:
            case Compact():
                # The same request again, shorter: once for each compaction, until nothing more can leave.
                return _compact(state, window, overflowed=True)
            case Exhausted(message=message):
                told = f"{message} The endpoint said: {failure.message}"
                return _end(env, _failed(state, CONTEXT_EXHAUSTED, told))
            case Fits():
                pass
    if failure.retry_at is not None:
        return _saved_first(state, env) or _end(
            env, e.RunReleased(reason="failure", retry_at=failure.retry_at, message=failure.message)
        )
    return _end(env, _failed(state, failure.error_code, failure.message))


def _next(state: RunState, env: Env) -> Step:
    """After a turn whose calls are answered, or before the first one."""
    if env.parked_until is not None and state.model_pending and not env.busy:
        return _park(env)
    if state.model_pending:
        kept = env.saving or saving.due(state, env.now, attached=env.attached)
        saves = (Save(state.sequence),) if kept else ()
        return Do((CallModel(state.iteration), *saves))
    last = state.transcript[-1] if state.transcript else None
    if isinstance(last, AssistantItem) and not state.inbox:
        return _after_final(state, env, last)
    if rounds_used_up(state, last):
        assert state.verification is not None
        why = f"verification failed in {state.verification.round} rounds; see the evidence of its checks"
        return _end(env, _failed(state, "VERIFICATION_FAILED", why))
    over = spent(state)
    if over is not None:
        return _end(env, _failed(state, *over))
    circle = circling(state)
    if circle is not None:
        if circle.over:
            return _end(env, _failed(state, "STUCK", circle.message))
        return Say([e.MessageReceived(text=circle.message, by="runtime")])
    if env.parked_until is not None:
        return _park(env)
    if _begins_in_a_workspace(state, env) and not env.attached:
        return Do((Attach(),))  # What the project says belongs into the prompt, which never changes later.
    return _ask(state, env)


def _saved_first(state: RunState, env: Env) -> Do | None:
    """Before a run may be away for long, or end, what it did is kept."""
    if env.saving or saving.something_to_save(state, env.now, attached=env.attached):
        return Do((Save(state.sequence),))
    return None


def _park(env: Env) -> Step:
    """Let go of the run until its tenant may use tokens again; nothing of it is lost."""
    assert env.parked_until is not None
    why = "the tenant's tokens for today are used up (TENANT_MAX_TOKENS_PER_DAY)"
    retry_at = rfc3339(env.parked_until)
    return _end(env, e.RunReleased(reason="failure", retry_at=retry_at, message=why, tokens_used_up=True))


def _ask(state: RunState, env: Env) -> Step:
    """The next request, once it fits and the model has been told what it must know before."""
    if env.to_offer and env.offer is None:
        return Do((Offer(),))
    count, window = env.window(state, False)
    match window:
        case Compact():
            return _compact(state, window, overflowed=False)
        case Exhausted(message=message):
            return _end(env, _failed(state, CONTEXT_EXHAUSTED, message))
        case Fits(tokens=tokens):
            near = notice(state, env.now, tokens)
            if near is not None:
                return Say([near])
            request = e.ModelRequested(
                iteration=state.iteration + 1,
                model=env.model,
                message_count=count,
                estimated_tokens=tokens,
                token_ratio=state.token_ratio,
                offered=env.offer if env.to_offer else None,
            )
            return Say([request])


def _begins_in_a_workspace(state: RunState, env: Env) -> bool:
    """Whether the run comes to a workspace that was there before it, with tools to work in it. One of its own is empty
    and is attached when a call needs it."""
    if state.iteration or state.task.workspace is None:
        return False
    offered = state.task.tools
    if offered is None:
        return True
    return any(name not in env.specs or env.specs[name].needs_workspace for name in offered)


def _compact(state: RunState, window: Compact, *, overflowed: bool) -> Step:
    if window.summarise:
        return Do((Summarise(state.compacted, overflowed),))
    return Say([window.event])


def _after_final(state: RunState, env: Env, turn: AssistantItem) -> Step:
    match judge(turn, tools_offered=bool(env.specs), nudges=nudges_in(state.transcript[:-1])):
        case Nudge(text=text):
            return Say([e.MessageReceived(text=text, by="runtime")])
        case Fail(error_code=code, message=message) | Retry(error_code=code, message=message):
            # The model client has retried all that may be retried before such a turn is recorded.
            return _end(env, _failed(state, code, message))
        case Final() | RunTools():
            return _verify_or_complete(state, env, turn)


def _verify_or_complete(state: RunState, env: Env, turn: AssistantItem) -> Step:
    verdict = state.verification
    if verdict is not None and verdict.status is not Verdict.FAILED:
        completed = e.RunCompleted(
            answer=turn.content, verification=verdict, usage=state.usage, evidence=verdict.evidence
        )
        return Say([completed])
    if (saved := _saved_first(state, env)) is not None:
        return saved
    number = state.verification_rounds + 1
    request = e.VerificationRequested(
        round=number,
        checks=state.task.acceptance,
        idempotency_key=f"{state.run_id}:{verify_call_id(number)}",
    )
    return Say([request])
