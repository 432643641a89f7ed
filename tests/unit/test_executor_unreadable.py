"""Calls that nobody can read are answered and go no further: no intent, no host, nobody asked to approve them."""

import pytest

from libs.contracts import events as e
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import ModelToolCall, Usage
from services.executor.decision.activity import CallModel
from services.executor.decision.decide import Do, Env, Settled, foresee, settle
from services.executor.egress.context import Fits, Window
from services.executor.ingress.arguments import read_arguments
from tests.fakes.histories import created
from tests.fakes.wanderings import NOW

RUN_COMMAND = ToolSpec(
    name="run_command",
    description="",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    semantics=Semantics.NON_IDEMPOTENT,
    risk="high",
)


def decided(raw: str) -> Settled:
    """What follows a call of `run_command` with these arguments."""
    read = read_arguments(raw, RUN_COMMAND.parameters)
    call = ModelToolCall(call_id="call_1_0", name="run_command", arguments=read.value, problem=read.problem)
    turn = e.ModelCompleted(
        iteration=1, content="", tool_calls=[call], finish_reason="tool_calls", usage=Usage(), latency_ms=1
    )
    asked = e.ModelRequested(iteration=1, model="m", message_count=2, estimated_tokens=9)
    claimed = e.RunClaimed(owner="x", boot="b", epoch=1, attempt=1)
    state = created(Limits(), TaskSpec(goal="x"))
    state = foresee(state, [e.RunStartRequested(by="test"), claimed, asked, turn], NOW)

    def window(_: RunState, __: bool) -> tuple[int, Window]:
        return 4, Fits(tokens=9)

    specs = {RUN_COMMAND.name: RUN_COMMAND}
    env = Env(now=NOW, model="m", specs=specs, attached=True, busy=False, draining=False, window=window)
    return settle(state, env)


@pytest.mark.parametrize(
    "raw", ['{"command":"rm -r', "[1]", "3", '{"command": rm}', "{" * 99 + "}" * 99, '{"command":"ls"}}']
)
def test_what_cannot_be_read_is_never_allowed_and_nobody_is_asked(raw: str) -> None:
    settled = decided(raw)
    kinds = [type(event) for event in settled.events]
    assert kinds == [e.ToolCompleted, e.ModelRequested]
    answer = settled.events[0]
    assert isinstance(answer, e.ToolCompleted)
    assert not answer.ok
    assert settled.then == Do((CallModel(2),))


def test_what_can_be_read_is_asked_about() -> None:
    kinds = [type(event) for event in decided('{"command":"ls"}').events]
    assert e.InputRequested in kinds
    assert e.ToolRequested not in kinds
