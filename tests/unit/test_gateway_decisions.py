"""What a command means, for every state that it may find: appended, nothing to do, or refused; never a defect."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from libs.contracts import deleting
from libs.contracts import events as e
from libs.contracts.envelope import Event
from libs.contracts.errors import InvalidState, NotFound
from libs.contracts.events import LogEvent
from libs.contracts.evolve import evolve, fold
from libs.contracts.http import Approval, Reconciliation, Reply, SteeringMessage
from libs.contracts.run import LEGAL, LIVE, TERMINAL, RunState, RunStatus
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.views import run_view
from services.gateway import decisions

RUN = "run_0_" + "0" * 26
AT = "2026-11-29T12:00:00.000Z"
Command = Callable[[RunState], list[LogEvent]]

COMMANDS: dict[str, Command] = {
    "start": lambda state: decisions.start(state, "local"),
    "cancel": lambda state: decisions.cancel(state, "local", owner_is_dead=False),
    "cancel of a dead owner's": lambda state: decisions.cancel(state, "local", owner_is_dead=True),
    "reply": lambda state: decisions.reply(state, Reply(answer="a"), "local", "k.b"),
    "approve": lambda state: decisions.approve(
        state, Approval(call_id="call_1_0", decision="approve"), "local", "k.b"
    ),
    "reconcile": lambda state: decisions.reconcile(
        state, Reconciliation(call_id="call_1_0", decision="retry"), "local", "k.b"
    ),
    "message": lambda state: decisions.message(state, SteeringMessage(text="t"), "local", "k.b"),
    "pause": lambda state: decisions.pause(state, "local"),
    "resume": lambda state: decisions.resume(state, "local"),
    "delete": lambda state: deleting.deleted(state, "local", parent_waits=False),
}


def state_in(status: RunStatus, *, pause: bool = False) -> RunState:
    """A run in a status, as a log makes one as far as the table allows it."""
    created = e.RunCreated(
        tenant="local",
        task_id="task_0_" + "0" * 26,
        task=TaskSpec(goal="g"),
        limits=Limits(),
        workspace="w",
        body_hash="h",
    )
    state = fold(None, [Event(1, RUN, AT, created), Event(2, RUN, AT, e.RunStartRequested(by="t"))])
    assert state is not None
    return msgspec.structs.replace(state, status=status, pause_requested=pause)


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("status", list(RunStatus))
@pytest.mark.parametrize("name", list(COMMANDS))
def test_what_a_command_appends_is_legal_in_every_state(name: str, status: RunStatus, pause: bool) -> None:
    state = state_in(status, pause=pause)
    try:
        bodies = COMMANDS[name](state)
    except InvalidState as error:
        refused = error.message
    else:
        refused = None
        for body in bodies:
            assert state.status in LEGAL[type(body)]
            state = evolve(state, Event(state.sequence + 1, RUN, AT, body))
    assert refused is None or status in refused
    assert run_view(state).status is state.status


def accepted(command: str, *, pause: bool = False) -> set[RunStatus]:
    """The states in which a command is carried out, or has nothing to do."""
    found: set[RunStatus] = set()
    for status in RunStatus:
        try:
            COMMANDS[command](state_in(status, pause=pause))
        except InvalidState:
            continue
        found.add(status)
    return found


def test_each_command_has_its_states() -> None:
    assert accepted("start") == {RunStatus.PENDING}
    assert accepted("cancel") == LIVE | {RunStatus.CANCELLED}
    assert accepted("message") == LIVE
    assert accepted("pause") == LIVE - {RunStatus.PENDING}
    assert accepted("resume") == {RunStatus.PAUSED}
    assert accepted("resume", pause=True) == LIVE - {RunStatus.PENDING}
    assert accepted("delete") == TERMINAL
    for nothing_is_asked in ("reply", "approve", "reconcile"):
        assert accepted(nothing_is_asked) == set()


def test_pausing_again_appends_nothing_and_a_queued_run_pauses_at_once() -> None:
    assert decisions.pause(state_in(RunStatus.PAUSED), "local") == []
    assert decisions.pause(state_in(RunStatus.RUNNING, pause=True), "local") == []
    for status in (RunStatus.QUEUED, RunStatus.RETRYING):
        state = state_in(status, pause=True)
        (body,) = decisions.pause(state, "local")
        assert evolve(state, Event(3, RUN, AT, body)).status is RunStatus.PAUSED


def test_a_deleted_run_takes_no_command() -> None:
    state = msgspec.structs.replace(state_in(RunStatus.COMPLETED), deleted=True)
    with pytest.raises(NotFound):
        decisions.present(state)
    alive = state_in(RunStatus.COMPLETED)
    assert decisions.present(alive) is alive


def test_a_child_is_kept_while_its_parent_waits_for_it() -> None:
    with pytest.raises(InvalidState, match="result"):
        deleting.deleted(state_in(RunStatus.COMPLETED), "local", parent_waits=True)
