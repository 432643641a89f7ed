"""The recovery table: what becomes of a call, by its semantics and by what the journal says."""

import pytest

from libs.contracts.tools import JournalEntry, JournalState, Refusal, Semantics, ToolResult
from services.executor.tools.recovery import Adopt, NextAttempt, SendAgain, Uncertain, Wait, recover

DONE = ToolResult(call_id="call_1_0", attempt=1, ok=True, output="done")
CUT_OFF = ToolResult(call_id="call_1_0", attempt=1, ok=False, output="", refused=Refusal.STOPPED)
REPEATABLE = (Semantics.READ_ONLY, Semantics.IDEMPOTENT)


def entry(result: ToolResult | None = None) -> JournalEntry:
    state = JournalState.STARTED if result is None else JournalState.FINISHED
    return JournalEntry(
        state=state, boot="b1", replica="toolhost-1", host="h", at="2026-11-29T12:00:00Z", result=result
    )


@pytest.mark.parametrize("semantics", Semantics)
def test_a_result_is_adopted_and_what_nobody_began_is_sent_again_whatever_the_call_does(
    semantics: Semantics,
) -> None:
    for dead in (False, True):
        assert recover(semantics, entry(DONE), host_dead=dead, overdue=dead) == Adopt(DONE)
        assert recover(semantics, None, host_dead=dead, overdue=False) == SendAgain()
    assert recover(semantics, entry(), host_dead=False, overdue=False) == Wait()


@pytest.mark.parametrize(
    "found,dead,overdue",
    [(entry(), True, False), (entry(), False, True), (entry(CUT_OFF), False, False), (entry(CUT_OFF), True, True)],
    ids=["its host died", "overdue on a living host", "stopped by its host", "stopped, and the host is dead"],
)  # fmt: skip
def test_of_a_call_that_was_cut_off_only_what_may_be_repeated_is(
    found: JournalEntry, dead: bool, overdue: bool
) -> None:
    for semantics in REPEATABLE:
        assert recover(semantics, found, host_dead=dead, overdue=overdue) == NextAttempt()
    assert recover(Semantics.NON_IDEMPOTENT, found, host_dead=dead, overdue=overdue) == Uncertain(found)
