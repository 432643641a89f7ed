"""The tools that change the run alone: who is offered which, and what counts as a plan (case 173)."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, Parent, TaskSpec
from services.executor.decision.decide import foresee, settle
from services.executor.tools.runtime import offered_to
from tests.fakes.histories import RUN_ID, created
from tests.unit.test_executor_decide import NOW, asked, call, env, kinds, owned, turn


def at_depth(depth: int, depth_max: int = 2) -> RunState:
    run = created(Limits(max_depth=depth_max), TaskSpec(goal="g"))
    if depth == 0:
        return run
    return msgspec.structs.replace(run, parent=Parent(run_id=RUN_ID, call_id="call_1_0", depth=depth))


@pytest.mark.parametrize(
    "depth, depth_max, asks, delegates",
    [(0, 2, True, True), (1, 2, False, True), (2, 2, False, False), (1, 1, False, False), (0, 0, True, False)],
)  # fmt: skip
def test_a_child_asks_nobody_and_nobody_at_the_last_level_delegates(
    depth: int, depth_max: int, *, asks: bool, delegates: bool
) -> None:
    offered = offered_to(at_depth(depth, depth_max))
    assert ("ask_user" in offered, "delegate" in offered) == (asks, delegates)
    assert "write_todos" in offered


def test_a_plan_is_sent_whole_shown_back_and_kept_and_has_one_item_in_progress_at_most() -> None:
    state = owned()
    for number, (statuses, ok, said) in enumerate(
        (
            (("completed", "in_progress", "pending"), True, "[x] a\n[>] b\n[ ] c"),
            (("in_progress", "in_progress"), False, "2 items are in_progress, at most one may be"),
            (("completed",), True, "[x] a"),
        ),
        start=1,
    ):
        todos = [{"content": name, "status": status} for name, status in zip("abc", statuses, strict=False)]
        plan = msgspec.structs.replace(call("write_todos", todos=todos), call_id=f"call_{number}_0")
        before = state.todos
        state = foresee(asked(state), [turn(number, calls=[plan])], NOW)
        settled = settle(state, env())
        assert kinds(settled.events) == ["tool.requested", "tool.completed", "model.requested"]
        done = msgspec.structs.asdict(settled.events[1])
        assert (done["ok"], said in done["output"]) == (ok, True)
        state = foresee(state, settled.events[:2], NOW)
        assert [todo.content for todo in state.todos] == (
            list("abc"[: len(statuses)]) if ok else [todo.content for todo in before]
        )
