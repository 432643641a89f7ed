"""What the owner of a fork decides: the budget is its own, what was cut off is made again or asked about."""

import msgspec
import pytest

from libs.contracts import copying
from libs.contracts import events as e
from libs.contracts.envelope import Event
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics
from libs.contracts.values import ModelToolCall
from libs.contracts.workspaces import Saved
from services.executor.decision.decide import CallModel, CallTool, Do, Leave, foresee, settle
from services.executor.decision.limits import spent
from tests.fakes.histories import created
from tests.unit.test_executor_decide import NOW, env, owned, turn

FORKED = e.RunForked(origin="run_0_0123456789abcdefghjkmnpqrs", sequence=1, workspace="another")
CLAIMED = e.RunClaimed(owner="y", boot="b2", epoch=9, attempt=1)


def asked(iteration: int) -> e.ModelRequested:
    return e.ModelRequested(iteration=iteration, model="m", message_count=1, estimated_tokens=1)


def forked(state: RunState, marker: e.RunForked = FORKED) -> RunState:
    """A fork of a run in this state, claimed by its first owner."""
    return foresee(state, [marker, *copying.interrupted(state), CLAIMED], NOW)


def calling(semantics: Semantics, name: str = "read_file") -> RunState:
    """A run whose call has no result yet."""
    call = ModelToolCall(call_id="call_1_0", name=name, arguments={"path": "a"})
    intent = e.ToolRequested(
        call_id=call.call_id, name=name, arguments={"path": "a"}, semantics=semantics, idempotency_key="k"
    )
    return foresee(owned(), [asked(1), turn(1, calls=[call]), intent], NOW)


@pytest.mark.parametrize("semantics", [Semantics.READ_ONLY, Semantics.IDEMPOTENT])
def test_a_call_that_may_be_repeated_is_made_again_in_the_fork(semantics: Semantics) -> None:
    settled = settle(forked(calling(semantics)), env(attached=True))
    assert [type(event) for event in settled.events] == [e.ToolRequested]
    again = settled.events[0]
    assert isinstance(again, e.ToolRequested)
    assert (again.attempt, again.idempotency_key) == (2, "k")
    assert isinstance(settled.then, Do)
    assert [type(activity) for activity in settled.then.activities] == [CallTool]


def test_a_call_that_must_not_be_repeated_is_asked_about() -> None:
    settled = settle(forked(calling(Semantics.NON_IDEMPOTENT, "run_command")), env(attached=True))
    assert [event.type for event in settled.events] == ["run.released", "reconciliation.required"]
    assert isinstance(settled.then, Leave)


def test_a_question_that_nobody_had_answered_is_asked_again() -> None:
    call = ModelToolCall(call_id="call_1_0", name="ask_user", arguments={"question": "Which?"})
    state = foresee(owned(), [asked(1), turn(1, calls=[call])], NOW)
    settled = settle(state, env())
    state = foresee(state, settled.events, NOW)
    assert state.pending_question is not None
    again = settle(forked(state), env())
    assert [event.type for event in again.events] == ["run.released", "input.requested"]


def test_a_fork_has_the_whole_budget_and_asks_the_model_anew() -> None:
    state = owned(Limits(max_iterations=1))
    state = foresee(state, [asked(1), turn(1, "Nearly."), e.MessageReceived(text="Go on.", by="x")], NOW)
    assert spent(state) is not None
    copy = forked(state)
    assert (spent(copy), copy.usage.requests, copy.owned_ms) == (None, 0, 0)
    settled = settle(copy, env())
    assert isinstance(settled.then, Do)
    assert settled.then.activities == (CallModel(2),)


def test_a_fork_with_another_goal_tells_the_model_and_does_not_end_with_the_old_answer() -> None:
    state = foresee(owned(), [asked(1), turn(1, "Done.")], NOW)
    copy = forked(state, msgspec.structs.replace(FORKED, goal="Paint it."))
    assert copy.task.goal == "Paint it."
    assert "Paint it." in copy.inbox[-1].text
    settled = settle(copy, env())
    assert isinstance(settled.then, Do)
    assert settled.then.activities == (CallModel(2),)


def test_the_last_checkpoint_is_a_request_with_nothing_undone_behind_the_snapshot() -> None:
    def numbered(*bodies: e.LogEvent) -> list[Event]:
        return [Event(index, "run", "2026-11-29T12:00:00.000Z", body) for index, body in enumerate(bodies, 1)]

    write = e.ToolRequested(
        call_id="c", name="write_file", arguments={}, semantics=Semantics.IDEMPOTENT, idempotency_key="k"
    )
    saved = Saved(snapshot="s", commit="c", chain=["s"], run_id="run", at_sequence=3)
    kept = e.WorkspaceSnapshotted(commit="c", changed=1, saved=saved)
    first = created(Limits(), TaskSpec(goal="x"))
    begun = e.RunStartRequested(by=first.tenant)
    assert copying.last_checkpoint(numbered(begun)) == 1
    assert copying.last_checkpoint(numbered(begun, asked(1), asked(2))) == 3
    assert copying.last_checkpoint(numbered(begun, asked(1), write, asked(2))) == 2
    assert copying.last_checkpoint(numbered(begun, write, asked(1), kept, asked(2))) == 5
    assert copying.last_checkpoint(numbered(begun, write, asked(1), kept, write, asked(2))) == 3
