"""Two of each service, which is the normal case: what one loses or holds back, the other one does; and never both."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from deploy.dev.plan import Service, twice
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import connect
from libs.bus.ports import LogKey
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Record, decode_events
from libs.contracts.errors import NotFound
from libs.contracts.events import LogEvent, ReconciliationResolved, RunDeleted
from libs.contracts.run import RunState
from libs.contracts.views import EventView, RunView
from tests.e2e.stage import Stage, call, calls, living, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually

TENANT = "local"
COUNTING_HOST = Service(name="countinghost", argv=(sys.executable, "-m", "tests.fakes.counting_host"))

SCRIPT = {
    "[steps]": [
        *(
            calls(call("echo", text=f"turn {n}"), call("count", counter=f"step-{n}"), delay_s=0.1)
            for n in range(15)
        ),
        says("Fifteen steps."),
    ],
    "[write]": [
        calls(call("write_file", path="a.txt", content="one")),
        calls(call("read_file", path="a.txt"), delay_s=0.5),
        calls(call("run_tests")),
        calls(call("write_file", path="b.txt", content="two")),
        says("I wrote `a.txt` and `b.txt`."),
    ],
    "[late]": [
        calls(call("read_file", path="run_tests.sh")),
        calls(call("run_tests"), call("write_file", path="late.txt", content="late"), delay_s=2.0),
        says("Done."),
    ],
    "[test]": [calls(call("run_tests")), says("Tested.")],
    "[ask]": [calls(call("ask_user", question="left or right?")), says("Thank you.")],
    "[echo]": [calls(call("echo", text="hi")), says("Echoed.")],
    "[count accept]": [calls(call("count", counter="accept", hold=True)), says("Counted.")],
    "[count retry]": [calls(call("count", counter="retry", hold=True)), says("Counted.")],
    "[count outlived]": [calls(call("count", counter="outlived", hold=True)), says("Counted.")],
    "[count fail]": [calls(call("count", counter="fail", hold=True)), says("Counted.")],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("two")
    environment = {"COUNTING_FOLDER": str(folder)}
    async with stage(folder, SCRIPT, environment, services=(*twice(), COUNTING_HOST)) as ready:
        yield ready


async def test_a_frozen_executor_writes_nothing_more_and_calls_nothing_and_the_other_completes_its_run(
    on: Stage,
) -> None:
    run_id = await on.submit("[steps]")
    first = await _claim(on, run_id, 1)
    await on.until(run_id, lambda run: run.iteration >= 3)
    frozen = _child(first)
    on.perdure.kill(frozen, signal.SIGSTOP)
    try:
        second = await _claim(on, run_id, 2)
    finally:
        on.perdure.kill(frozen, signal.SIGCONT)
    assert second.payload["owner"] != first.payload["owner"]
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    await _no_gaps_and_one_end(on, run_id)
    boots = [record.header.boot for record in await _records(on, run_id)]
    epochs = [record.header.epoch for record in await _records(on, run_id)]
    assert epochs == sorted(epochs)
    assert first.payload["boot"] not in boots[epochs.index(2) :]
    effects = _effects(on, run_id)
    assert len(effects) == len(set(effects)) == 15
    await on.perdure.healthy(PATIENCE_S)


async def test_a_run_that_was_deleted_does_not_come_back_when_its_frozen_owner_thaws(on: Stage) -> None:
    run_id = await on.submit("[steps]")
    first = await _claim(on, run_id, 1)
    await on.until(run_id, lambda run: run.iteration >= 3)
    frozen = _child(first)
    process = on.perdure.kill(frozen, signal.SIGSTOP)
    try:
        await on.client.cancel(run_id)
        await on.ended(run_id)
        await on.client.delete(run_id)
        done = _effects(on, run_id)
    finally:
        on.perdure.kill(frozen, signal.SIGCONT)

    async def replaced() -> bool | None:
        # It reads that it is dead, and its successor begins.
        return on.perdure.pids.get(frozen, process) != process or None

    await eventually(replaced, "a new executor")
    await on.perdure.healthy(PATIENCE_S)
    with pytest.raises(NotFound):
        await on.client.run(run_id)
    assert [type(event.body) for record in await _records(on, run_id) for event in decode_events(record)] in (
        [],
        [RunDeleted],
    )
    assert _effects(on, run_id) == done


async def test_a_cancel_ends_the_tools_of_a_run_although_no_executor_is_there_to_do_it(on: Stage) -> None:
    folder = on.workspace("orphaned", {"run_tests.sh": "sleep 61.25; touch ended\n"})
    run_id = await on.submit("[test]", workspace="orphaned")

    async def began() -> bool | None:
        return bool(living("sleep\x0061.25")) or None

    async def ended() -> bool | None:
        return living("sleep\x0061.25") == [] or None

    await eventually(began, "the tests")
    # A frozen owner is like a dead one, and the other executor takes nothing over before the cancel has had its effect.
    frozen = [name for name in on.perdure.pids if name.startswith("executor")]
    for name in frozen:
        on.perdure.kill(name, signal.SIGSTOP)
    try:
        await on.client.cancel(run_id)
        await eventually(ended, "the end of the tests")
        assert (await on.client.run(run_id)).status == "RUNNING"
    finally:
        for name in frozen:
            on.perdure.kill(name, signal.SIGCONT)
    assert (await on.ended(run_id)).status == "CANCELLED"
    assert not (folder / "ended").exists()
    await _no_gaps_and_one_end(on, run_id)
    await on.perdure.healthy(PATIENCE_S)


async def test_a_killed_executor_is_replaced_and_no_effect_happens_twice(on: Stage) -> None:
    run_id = await on.submit("[steps]")
    first = await _claim(on, run_id, 1)
    await on.until(run_id, lambda run: run.iteration >= 3)
    on.perdure.kill(_child(first))
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert len([event for event in await on.events(run_id) if event.type == "run.claimed"]) == 2
    effects = _effects(on, run_id)
    assert len(effects) == len(set(effects)) == 15
    await _no_gaps_and_one_end(on, run_id)
    await on.perdure.healthy(PATIENCE_S)


async def test_a_drained_executor_hands_its_run_to_the_other(on: Stage) -> None:
    run_id = await on.submit("[steps]")
    first = await _claim(on, run_id, 1)
    await on.until(run_id, lambda run: run.iteration >= 3)
    on.perdure.kill(_child(first), signal.SIGTERM)
    second = await _claim(on, run_id, 2)
    assert second.payload["owner"] != first.payload["owner"]
    released = await on.event(run_id, "run.released")
    assert released.payload["reason"] == "shutdown"
    assert (await on.ended(run_id)).status == "COMPLETED"
    assert len(_effects(on, run_id)) == 15
    # Who lets go loses nothing, so nothing is complained of.
    said = (_folder(on) / "perdure.log").read_text().splitlines()
    assert [line for line in said if "session.lost" in line and run_id in line] == []
    await on.perdure.healthy(PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_workspace_whose_host_is_lost_goes_on_under_the_other_one(
    on: Stage, number: signal.Signals
) -> None:
    name = f"hosted-{number.name.lower()}"
    folder = on.workspace(name, {"run_tests.sh": "echo ran >> ran; exit 0\n"})
    run_id = await on.submit("[write]", workspace=name)
    attached = await on.event(run_id, "workspace.attached")
    await on.until(run_id, lambda run: run.iteration >= 2)
    on.perdure.kill(_child_named(str(attached.payload["replica"])), number)
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert ((folder / "a.txt").read_text(), (folder / "b.txt").read_text()) == ("one", "two")
    hosts = [event.payload["host"] for event in await on.events(run_id) if event.type == "workspace.attached"]
    assert len(hosts) == 2
    # The one that was frozen is dead by now: its successor on the same machine killed it.
    await on.perdure.healthy(PATIENCE_S)


async def test_of_twenty_replies_through_two_gateways_one_wins(on: Stage) -> None:
    run_id = await on.submit("[ask]")
    await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
    async with httpx.AsyncClient(timeout=30) as http:
        replies = await asyncio.gather(
            *(
                http.post(f"{_gateway(on, n)}/api/runs/{run_id}/reply", json={"answer": f"left {n}"})
                for n in range(20)
            )
        )
    assert sorted(reply.status_code for reply in replies) == [202] + [409] * 19
    assert (await on.ended(run_id)).status == "COMPLETED"
    assert [event.type for event in await on.events(run_id)].count("input.received") == 1


async def test_of_twenty_equal_keyed_posts_through_two_gateways_one_makes_the_run(on: Stage) -> None:
    body = {"goal": "[echo] once", "auto_start": True}
    async with httpx.AsyncClient(timeout=30, headers={"Idempotency-Key": "once-and-only-once"}) as http:
        made = await asyncio.gather(
            *(http.post(f"{_gateway(on, n)}/api/tasks", json=body) for n in range(20))
        )
    assert sorted(answer.status_code for answer in made) == [200] * 19 + [201]
    (run_id,) = {answer.json()["run_id"] for answer in made}
    assert (await on.ended(run_id)).status == "COMPLETED"


async def test_what_was_cancelled_while_no_tool_host_lived_never_runs(on: Stage) -> None:
    folder = on.workspace("late", {"run_tests.sh": "touch ran\n"})
    run_id = await on.submit("[late]", workspace="late")
    await on.until(run_id, lambda run: run.iteration >= 2)
    await asyncio.gather(*(on.perdure.halt(name) for name in ("toolhost", "toolhost-2")))
    await on.until(run_id, lambda run: run.status == "RUNNING" and run.iteration == 2)
    await _intent(on, run_id, "write_file")
    await on.client.cancel(run_id)
    assert (await on.ended(run_id)).status == "CANCELLED"
    for name in ("toolhost", "toolhost-2"):
        on.perdure.start(name)
    await on.perdure.healthy(PATIENCE_S)
    after = await on.submit("[write]", workspace="late")
    assert (await on.ended(after)).status == "COMPLETED"
    assert not (folder / "late.txt").exists()


@pytest.mark.parametrize("decision,status,attempts", [
    ("accept", "COMPLETED", ["1"]), ("retry", "COMPLETED", ["1", "2"]), ("fail", "FAILED", ["1"]),
])  # fmt: skip
async def test_an_effect_of_unknown_outcome_waits_for_a_person_who_decides(
    on: Stage, decision: str, status: str, attempts: list[str]
) -> None:
    run_id = await on.submit(f"[count {decision}]")
    await _effect(on, run_id)
    on.perdure.kill("countinghost")
    run = await on.until(run_id, lambda run: run.status == "RECONCILIATION_REQUIRED")
    assert run.lease.owner is None
    assert len(_effects(on, run_id)) == 1
    (_folder(on) / f"{decision}.go").touch()
    await _reconcile(on, run, decision)
    run = await on.ended(run_id)
    assert run.status == status, run.error
    assert [attempt for _, attempt in _effects(on, run_id)] == attempts
    if decision == "accept":
        assert "it was counted once" in on.model.bodies[-1].decode()
    await _no_gaps_and_one_end(on, run_id)


async def test_a_call_that_outlives_its_executor_is_adopted_by_the_next_one(on: Stage) -> None:
    run_id = await on.submit("[count outlived]")
    first = await _claim(on, run_id, 1)
    await _effect(on, run_id)
    on.perdure.kill(_child(first))
    await _claim(on, run_id, 2)
    (_folder(on) / "outlived.go").touch()
    assert (await on.ended(run_id)).status == "COMPLETED"
    assert [attempt for _, attempt in _effects(on, run_id)] == ["1"]
    await on.perdure.healthy(PATIENCE_S)


async def _claim(on: Stage, run_id: str, number: int) -> EventView:
    """The `number`-th claim of a run, once it is there."""

    async def look() -> EventView | None:
        claims = [event for event in await on.events(run_id) if event.type == "run.claimed"]
        return claims[number - 1] if len(claims) >= number else None

    return await eventually(look, f"claim {number} of {run_id}")


async def _intent(on: Stage, run_id: str, tool: str) -> None:
    async def look() -> bool | None:
        intents = [event for event in await on.events(run_id) if event.type == "tool.requested"]
        return any(event.payload["name"] == tool for event in intents) or None

    await eventually(look, f"{tool} of {run_id}")


async def _effect(on: Stage, run_id: str) -> None:
    async def look() -> bool | None:
        return len(_effects(on, run_id)) == 1 or None

    await eventually(look, f"the effect of {run_id}")


async def _no_gaps_and_one_end(on: Stage, run_id: str) -> None:
    events = await on.events(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    ends = [event for event in events if event.type in ("run.completed", "run.failed", "run.cancelled")]
    assert ends == events[-1:]


async def _records(on: Stage, run_id: str) -> list[Record]:
    async with connect(on.bus, SystemClock()) as bus:
        return await bus.log.read(LogKey(TENANT, run_id))


async def _reconcile(on: Stage, run: RunView, decision: str) -> None:
    """A person's word on the call that nobody knows the outcome of."""

    def decide(state: RunState) -> list[LogEvent]:
        assert state.reconciliation is not None
        observation = "it was counted once" if decision == "accept" else None
        resolved = ReconciliationResolved(
            call_id=state.reconciliation.call_id,
            decision=decision,  # pyright: ignore[reportArgumentType] one of the three words, from the parameters
            by="a person",
            observation=observation,
        )
        return [resolved]

    clock = SystemClock()
    async with connect(on.bus, clock) as bus:
        runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
        await runs.command(TENANT, run.run_id, decide)


def _folder(on: Stage) -> Path:
    return on.data.parent


def _effects(on: Stage, run_id: str) -> list[tuple[str, str]]:
    """Call and attempt of each effect of the run, in the order in which they happened."""
    path = _folder(on) / "effects"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(line[1], line[2]) for line in lines if line[0] == run_id]


def _child(claim: EventView) -> str:
    return _child_named(str(claim.payload["owner"]))


def _child_named(replica: str) -> str:
    """What the launcher calls the process with this replica id."""
    return replica.removesuffix("-1")


def _gateway(on: Stage, number: int) -> str:
    return on.perdure.urls[number % 2]
