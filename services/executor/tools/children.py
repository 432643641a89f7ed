"""Child runs: what a `delegate` call makes.

Invariant: a child's id derives from its parent's call and its log is begun at expected sequence 0, so however often and
by whomever it is made, there is one. Keyed by parent run and call.
"""

import contextlib
import hashlib
from datetime import datetime

import msgspec

from libs.bus.runs import Runs
from libs.contracts.errors import AppendConflict
from libs.contracts.events import RunCreated, RunStartRequested
from libs.contracts.ids import child_run_id, task_id_of
from libs.contracts.run import CallState, RunState
from libs.contracts.tasks import Limits, Parent, TaskSpec
from services.executor.decision.limits import deadline, made_turns
from services.executor.tools.runtime import DELEGATE


async def spawn(runs: Runs, parent: RunState, call: CallState, now: datetime) -> str:
    """Make the child of a call, or find it made; its run id."""
    run_id = child_run_id(parent.run_id, call.call_id)
    task = _task(parent, call)
    created = RunCreated(
        tenant=parent.tenant,
        task_id=task_id_of(run_id),
        task=task,
        limits=limits_of_child(parent, call.call_id, now),
        workspace=parent.workspace,
        body_hash=hashlib.sha256(msgspec.json.encode(task)).hexdigest(),
        parent=Parent(
            run_id=parent.run_id,
            call_id=call.call_id,
            depth=parent.parent.depth + 1 if parent.parent is not None else 1,
        ),
        source="delegate",
    )
    # A conflict says that it was made before, by this owner or by a former one.
    with contextlib.suppress(AppendConflict):
        await runs.create(parent.tenant, run_id, [created, RunStartRequested(by=parent.run_id)])
    return run_id


def _task(parent: RunState, call: CallState) -> TaskSpec:
    tools = call.arguments.get("tools")
    asked = msgspec.convert(tools, list[str]) if tools is not None else None
    allowed = parent.task.tools
    # A model names tools that it has seen elsewhere; a task that names what nobody offers would fail.
    known = parent.offered.names if parent.offered is not None else allowed
    if asked is not None and known is not None:
        asked = [name for name in asked if name in known]
    return TaskSpec(
        goal=str(call.arguments.get("goal", "")),
        workspace=parent.workspace,
        model=parent.task.model,
        tools=asked if asked is not None else allowed,
        priority=parent.task.priority,
        instructions=parent.task.instructions,
        unattended=parent.task.unattended,
    )


def limits_of_child(parent: RunState, call_id: str, now: datetime) -> Limits:
    """The parent's limits with what is left of them, in equal parts for the children that this turn makes: children count
    on their parent, and together they cannot use more than it has."""
    limits, used, turn = parent.limits, parent.usage, parent.last_turn
    siblings = [call.call_id for call in turn.calls if call.name == DELEGATE.name] if turn is not None else []
    parts = max(1, len(siblings))
    place = siblings.index(call_id) if call_id in siblings else 0
    turns = max(0, limits.max_iterations - made_turns(parent) - parent.children_iterations)
    time_s = max(0.0, (deadline(parent) - now).total_seconds())
    tokens, cost = limits.max_total_tokens, limits.max_cost_usd
    return msgspec.structs.replace(
        limits,
        # The first ones get a turn more where it does not come out even.
        max_iterations=turns // parts + (place < turns % parts),
        timeout_s=round(time_s / parts, 3),
        max_total_tokens=max(0, tokens - used.total_tokens) // parts if tokens is not None else None,
        max_cost_usd=max(0.0, cost - (used.cost_usd or 0.0)) / parts if cost is not None else None,
    )
