"""The part of the decision that concerns the calls of the last turn: which get their intent, which are answered at once.

Invariant: a call gets its intent exactly once, in the order the model made them, and its result goes under the same
id; a call that cannot be carried out is answered at once, so that the model may mend it; one that a person has to
approve has no intent before the approval is in the log. Calls go on beside each other unless their order matters:
a later one waits until every earlier one that it collides with has its result.
"""

from collections.abc import Mapping

from libs.contracts import events as e
from libs.contracts.run import CallState, Question, RunState
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import ModelToolCall
from libs.policy.approval import approval_hash
from libs.policy.decision import decide as decide_policy
from libs.policy.reach import Reach, collide, reach_of
from libs.policy.rules import Policy, Verb
from services.executor.egress.results import is_result
from services.executor.ingress.text import one_line
from services.executor.tools.runtime import ASK_USER, DELEGATE, RUNTIME_TOOLS, WRITE_TODOS, write_todos
from services.executor.tools.session_tools import FEATURES, HANDOFF, write_features, write_handoff

UNATTENDED_ANSWER = "Nobody can answer: this run is unattended. Decide by yourself, say what you assumed in your final answer."

# Of the names of all tools, and of one that is none: all calls of a turn may be of tools that do not exist.
_OFFERED_CHARS_MAX, _NAME_CHARS_MAX = 600, 100


def unanswered(state: RunState) -> list[ModelToolCall]:
    """The calls of the last turn that have no result yet, in the model's order."""
    turn = state.last_turn
    if turn is None:
        return []
    return [call for call in turn.calls if call.call_id not in state.answered]


def in_the_world(call: CallState) -> bool:
    """Whether the call goes to a host, unlike a runtime tool and unlike what the log answers."""
    return call.name not in RUNTIME_TOOLS and not is_result(call.name, call.arguments)


def intents(
    state: RunState, calls: list[ModelToolCall], specs: Mapping[str, ToolSpec], policy: Policy
) -> list[e.LogEvent]:
    """What is to be recorded for calls without an intent, and for runtime tools whose result is known."""
    events: list[e.LogEvent] = []
    for call in calls:
        known = state.call(call.call_id)
        events += _first_step(state, call, specs, policy) if known is None else _known_result(state, known)
    return events


def may_run(state: RunState) -> list[CallState]:
    """The calls that should be going on in the world now, in the model's order, by their recorded intents.

    A call that changes something waits for earlier ones on the same paths, and one that must not be repeated has the
    world for itself. One whose outcome is unknown holds up what comes after it until somebody has decided.
    """
    before: list[Reach] = []
    found: list[CallState] = []
    for made in unanswered(state):
        call = state.call(made.call_id)
        if call is None or not in_the_world(call):
            continue
        reach = reach_of(call.name, call.arguments, call.semantics, needs_workspace=call.needs_workspace)
        if call.uncertain is None and not any(collide(reach, earlier) for earlier in before):
            found.append(call)
        before.append(reach)
    return found


def cut_off(state: RunState) -> list[CallState]:
    """Calls that were open where a copy of the log was cut, and that nobody has to be asked about: made once more they
    are as made once. No boot had them for this run."""
    return [
        call
        for call in state.calls
        if call.uncertain is not None
        and not call.uncertain.boot
        and call.semantics is not Semantics.NON_IDEMPOTENT
    ]


def completed(
    call_id: str, *, ok: bool, output: str, metadata: dict[str, object] | None = None
) -> e.ToolCompleted:
    """The result of a call that no host took part in."""
    return e.ToolCompleted(call_id=call_id, ok=ok, output=output, duration_ms=0, metadata=metadata or {})


def answer_to(state: RunState, call_id: str) -> Question | None:
    """The question or approval that was asked for a call."""
    return next((question for question in state.questions if question.call_id == call_id), None)


def reason(state: RunState, call: ModelToolCall, specs: Mapping[str, ToolSpec], policy: Policy) -> str:
    """Why a call has no intent yet: what the policy says about it."""
    spec = specs.get(call.name)
    if spec is None or call.arguments is None:
        return "nobody knows it"
    return decide_policy(spec, call.arguments, tenant=state.tenant, policy=policy).reason


def _first_step(
    state: RunState, call: ModelToolCall, specs: Mapping[str, ToolSpec], policy: Policy
) -> list[e.LogEvent]:
    spec = specs.get(call.name)
    if spec is None:
        offered = one_line(", ".join(sorted(specs)), _OFFERED_CHARS_MAX) or "none"
        told = f"there is no tool {one_line(call.name, _NAME_CHARS_MAX)!r}; the tools are: {offered}"
        return [completed(call.call_id, ok=False, output=told)]
    if call.arguments is None or call.problem is not None:
        problem = call.problem or "the arguments could not be read"
        return [completed(call.call_id, ok=False, output=f"{call.name} was not called: {problem}")]
    if is_result(call.name, call.arguments):
        # What the model was given before needs no host and no permission.
        return [_intent(state, call, spec, call.arguments, None)]
    decision = decide_policy(spec, call.arguments, tenant=state.tenant, policy=policy)
    match decision.verb:
        case Verb.DENY:
            told = f"{call.name} was not called, the policy denies it: {decision.reason}"
            return [completed(call.call_id, ok=False, output=told)]
        case Verb.ASK:
            return _after_approval(state, call, spec, call.arguments)
        case Verb.ALLOW:
            requested = _intent(state, call, spec, call.arguments, None)
            if call.name == ASK_USER.name and state.task.unattended:
                return [requested, completed(call.call_id, ok=False, output=UNATTENDED_ANSWER)]
            return [requested]


def _after_approval(
    state: RunState, call: ModelToolCall, spec: ToolSpec, arguments: dict[str, object]
) -> list[e.LogEvent]:
    """The intent of an approved call, the refusal of a rejected one, nothing while nobody has decided."""
    asked = answer_to(state, call.call_id)
    if asked is None or asked.decision is None:
        if not state.task.unattended:
            return []
        told = f"{call.name} was not called: it needs an approval, and this run is unattended"
        return [completed(call.call_id, ok=False, output=told)]
    if asked.decision == "approve" and asked.approval_hash == approval_hash(
        call.name, arguments, call.call_id
    ):
        return [_intent(state, call, spec, arguments, asked)]
    told = f"{call.name} was not called, a person rejected it: {asked.answer or 'no reason was given'}"
    return [completed(call.call_id, ok=False, output=told)]


def _intent(
    state: RunState,
    call: ModelToolCall,
    spec: ToolSpec,
    arguments: dict[str, object],
    approval: Question | None,
) -> e.ToolRequested:
    return e.ToolRequested(
        call_id=call.call_id,
        name=call.name,
        arguments=arguments,
        semantics=spec.semantics,
        idempotency_key=f"{state.run_id}:{call.call_id}",
        approval_sequence=approval.answered_sequence if approval is not None else None,
        approval_hash=approval.approval_hash if approval is not None else None,
        needs_workspace=spec.needs_workspace,
        timeout_s=min(state.limits.tool_timeout_s, spec.timeout_s)
        if call.name not in RUNTIME_TOOLS
        else None,
    )


def _known_result(state: RunState, call: CallState) -> list[e.LogEvent]:
    """The result of a runtime tool whose intent is in the log, once there is one."""
    match call.name:
        case ASK_USER.name:
            asked = answer_to(state, call.call_id)
            if asked is None or asked.answer is None:
                return []
            return [completed(call.call_id, ok=True, output=asked.answer)]
        case WRITE_TODOS.name:
            ok, output = write_todos(call.arguments)
            return [completed(call.call_id, ok=ok, output=output)]
        case HANDOFF.name:
            ok, output = write_handoff(call.arguments)
            return [completed(call.call_id, ok=ok, output=output)]
        case FEATURES.name:
            ok, output = write_features(state.task.session, call.arguments)
            return [completed(call.call_id, ok=ok, output=output)]
        case DELEGATE.name:
            result = state.child_results.get(call.call_id)
            if result is None:
                return []
            ok = result.status == "COMPLETED"
            output = result.answer if ok else f"the child run ended {result.status}: {result.answer}"
            return [
                completed(call.call_id, ok=ok, output=output, metadata={"child_run_id": result.child_run_id})
            ]
        case _:
            return []
