"""A tool host that is away while a person approves a call for it."""

from __future__ import annotations

import msgspec

from libs.bus.history import blob_name
from libs.bus.liveness import Registration, register
from libs.bus.ports import LogKey
from libs.bus.twin.server import TwinBus
from libs.contracts import events as e
from libs.contracts.envelope import decode_events
from libs.contracts.run import RunStatus
from libs.contracts.subjects import catalog_key
from libs.contracts.tools import HostCatalog, Semantics, ToolSpec
from libs.contracts.values import ModelToolCall, Usage
from libs.policy.approval import approval_hash
from services.executor.decision.waits import NO_HOST_PAUSE_S
from services.executor.tools.hosts import HOSTS_WAIT_S
from services.executor.tools.offering import named
from tests.sim.clock import SimClock
from tests.sim.test_late_claims import RUN, Asked, created, executor, ticketed
from tests.sim.virtual import Weather, told

LAUNCH = ToolSpec(
    name="launch",
    description="",
    parameters={"type": "object"},
    semantics=Semantics.NON_IDEMPOTENT,
    risk="high",
    needs_workspace=False,
)
CALL = ModelToolCall(call_id="call_1_0", name="launch", arguments={})
OFFERED = named({"launch": LAUNCH})


def approved() -> list[e.LogEvent]:
    """What happened to a run until somebody approved its call."""
    question, bound = f"approval_{CALL.call_id}", approval_hash("launch", {}, CALL.call_id)
    turn = e.ModelCompleted(
        iteration=1, content="", tool_calls=[CALL], finish_reason="tool_calls", usage=Usage(), latency_ms=1
    )
    return [
        e.RunClaimed(owner="executor", boot="bformer", epoch=1, attempt=1),
        e.ModelRequested(iteration=1, model="m", message_count=1, estimated_tokens=1, offered=OFFERED),
        turn,
        e.RunReleased(reason="suspended", waiting_for="input"),
        e.InputRequested(
            question_id=question,
            kind="approval",
            question="?",
            call_id=CALL.call_id,
            tool="launch",
            arguments={},
            approval_hash=bound,
        ),
        e.InputReceived(
            question_id=question,
            kind="approval",
            answer="",
            by="test",
            decision="approve",
            approval_hash=bound,
        ),
    ]


def test_an_approved_call_waits_for_its_host_to_come_back() -> None:
    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        del weather
        await bus.store("blobs").put(blob_name("local", OFFERED.digest), msgspec.json.encode([LAUNCH]))
        runs = await created(bus, clock, *approved())
        async with executor(bus, clock, runs, Asked()):
            await ticketed(bus)
            await clock.sleep(5.0)
            host = Registration("host", "host-1", 1, model_configured=False, ttl_s=3.0, info={})
            async with register(bus, clock, host, on_death=lambda: None) as lease:
                catalog = HostCatalog(boot=lease.boot, replica="host-1", host="h", tools=[LAUNCH])
                await bus.bucket("catalog").put(catalog_key(lease.boot), msgspec.json.encode(catalog))
                await clock.sleep(5.0)
                state = (await runs.load("local", RUN)).state
                assert [(call.call_id, call.attempt) for call in state.calls] == [(CALL.call_id, 1)]

    told(story, at_most_s=60.0)


def test_a_run_lets_go_of_its_place_where_there_is_no_host_for_its_workspace_and_says_so() -> None:
    async def story(bus: TwinBus, clock: SimClock, weather: Weather) -> None:
        del weather
        before = [
            e.RunClaimed(owner="executor", boot="bformer", epoch=1, attempt=1),
            e.WorkspaceAttached(workspace_id="ws_0_x", host="bgone", replica="toolhost-1"),
            e.RunReleased(reason="shutdown"),
        ]
        runs = await created(bus, clock, *before)
        async with executor(bus, clock, runs, Asked()):
            for tries in (1, 2):
                await ticketed(bus)
                await clock.sleep(HOSTS_WAIT_S + 5.0)
                folded = await runs.load("local", RUN)
                assert folded.state.status is RunStatus.RETRYING
                # It is no fault of the run, however often: nobody carries it alone for that, or gives it up.
                assert (folded.state.epoch, folded.state.claims_without_progress) == (1 + tries, 0)
                *_, last = decode_events((await bus.log.read(LogKey("local", RUN)))[-1])
                assert isinstance(last.body, e.RunReleased)
                assert "start one" in (last.body.message or "")
                await clock.sleep(NO_HOST_PAUSE_S)

    told(story, at_most_s=300.0)
