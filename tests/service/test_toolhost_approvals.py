"""An approval counts for one call with its arguments, and only as the run's log tells it."""

from __future__ import annotations

import msgspec

from libs.bus.ports import Bus
from libs.contracts.events import InputReceived, InputRequested, RunReleased
from libs.contracts.tools import ToolCall
from libs.policy.approval import approval_hash
from services.toolhost.approvals import is_approved
from tests.service.hosting_owner import Owner, owned_run

ARGUMENTS: dict[str, object] = {"command": "make deploy"}


async def decided(owner: Owner, decision: str) -> ToolCall:
    """The call after somebody decided about it, as its owner would send it."""
    bound = approval_hash("run_command", ARGUMENTS, "call_1_0")
    asked = InputRequested(
        question_id="q1", kind="approval", question="May it?", call_id="call_1_0", approval_hash=bound
    )
    owner.folded = await owner.runs.commit(
        owner.folded, [RunReleased(reason="suspended", waiting_for="input"), asked]
    )
    received = InputReceived(
        question_id="q1",
        kind="approval",
        answer="",
        by="test",
        decision="approve" if decision == "approve" else "reject",
        approval_hash=bound,
    )
    owner.folded = await owner.runs.commit(owner.folded, [received])
    return owner.call(
        "run_command",
        ARGUMENTS,
        "call_1_0",
        approval_sequence=owner.folded.state.sequence,
        approval_hash=bound,
    )


async def test_an_approved_call_is_approved_and_nothing_like_it_is(bus: Bus) -> None:
    call = await decided(await owned_run(bus), "approve")
    assert await is_approved(bus.log, call)
    changed: dict[str, object] = {"command": "make destroy"}
    for other in (
        msgspec.structs.replace(call, arguments=changed),
        msgspec.structs.replace(
            call, arguments=changed, approval_hash=approval_hash("run_command", changed, "call_1_0")
        ),
        msgspec.structs.replace(call, call_id="call_1_1"),
        msgspec.structs.replace(call, name="run_program"),
        msgspec.structs.replace(call, approval_sequence=1),
        msgspec.structs.replace(call, approval_sequence=99),
        msgspec.structs.replace(call, approval_sequence=None),
        msgspec.structs.replace(call, approval_hash=None),
        msgspec.structs.replace(call, tenant="other"),
    ):
        assert not await is_approved(bus.log, other)


async def test_a_rejected_call_is_not_approved(bus: Bus) -> None:
    call = await decided(await owned_run(bus), "reject")
    assert not await is_approved(bus.log, call)
