"""What survives: killed services, a restart of everything, tasks from the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.dev import demo_repair
from libs.bus.connection import connect
from libs.bus.ports import Message
from libs.chassis.clock import SystemClock
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually

FAIRLY_SLOW_TESTS = "sleep 0.3; python3 -B -m unittest -q\n"
SCRIPT = {
    "[ask]": [
        calls(call("read_file", path="a.txt"), call("write_file", path="b.txt", content="once")),
        calls(call("ask_user", question="left or right?", options=["left", "right"])),
        says("Thank you."),
    ],
    "[echo]": [calls(call("echo", text="hi")), says("Echoed.")],
    "splitting a bill": json.loads(demo_repair.script())["conversations"][0]["turns"],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("recovery"), SCRIPT) as ready:
        yield ready


async def _repair(on: Stage, name: str) -> str:
    """Start the demo's run in a workspace of its own."""
    files = {path.name: path.read_text() for path in demo_repair.PROJECT.iterdir() if path.is_file()}
    on.workspace(name, {**files, "run_tests.sh": FAIRLY_SLOW_TESTS})
    return await on.submit(demo_repair.GOAL, workspace=name, acceptance=demo_repair.ACCEPTANCE)


def _tree(on: Stage, name: str) -> dict[str, bytes]:
    root = on.data / "workspaces" / name
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_killing_any_service_while_it_is_idle_loses_nothing(on: Stage) -> None:
    before = await on.submit("[echo]")
    await on.ended(before)
    events = await on.events(before)
    for service in ("gateway", "scheduler", "executor", "toolhost", "verifier"):
        on.perdure.kill(service)
        await on.perdure.healthy(PATIENCE_S)
        assert (await on.ended(await on.submit("[echo]"))).status == "COMPLETED", service
    assert await on.events(before) == events


@pytest.mark.parametrize(
    "moments", [("model.requested", "tool.requested"), ("tool.requested", "model.completed")]
)
async def test_a_run_whose_executor_and_toolhost_are_killed_ends_as_if_nothing_had_happened(
    on: Stage, moments: tuple[str, str]
) -> None:
    undisturbed, name = f"calm-{moments[0]}", f"killed-{moments[0]}"
    await on.ended(await _repair(on, undisturbed))
    run_id = await _repair(on, name)
    for service, moment in zip(("executor", "toolhost"), moments, strict=True):
        seen = len(await on.events(run_id))

        async def happened(seen: int = seen, moment: str = moment) -> bool:
            return any(event.type == moment for event in (await on.events(run_id))[seen:])

        await eventually(happened, f"{moment} behind event {seen} of {run_id}")
        on.perdure.kill(service)
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert run.verification is not None
    assert run.verification["status"] == "PASSED"
    assert _tree(on, name) == _tree(on, undisturbed)
    events = await on.events(run_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert sum(event.type.startswith("run.completed") for event in events) == 1


async def test_a_published_task_runs_like_a_posted_one_and_a_malformed_one_is_rejected_with_its_reason(
    on: Stage,
) -> None:
    async with (
        connect(on.bus, SystemClock()) as bus,
        bus.wire.listen("perdure.rejected.local") as rejected,
    ):
        await bus.queue.publish(
            bus.subjects.tasks("local"), json.dumps({"goal": "[echo] published"}).encode()
        )
        await bus.queue.publish(bus.subjects.tasks("local"), b'{"goal": 7, "surprise": true}')
        async with asyncio.timeout(PATIENCE_S):
            reason = await anext(rejected)
        found = await _published(on)
    assert (await on.ended(found)).status == "COMPLETED"
    assert "surprise" in _told(reason)


async def _published(on: Stage) -> str:
    async def look() -> str | None:
        return next((run.run_id for run in (await on.client.runs(q="published")).runs), None)

    return await eventually(look, "a run of the published task")


def _told(message: Message) -> str:
    return message.body.decode() + json.dumps(message.headers)


async def test_a_question_survives_a_restart_of_everything_and_its_answer_goes_on_where_the_run_stood(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, SCRIPT) as on:
        on.workspace("asking", {"a.txt": "hello", "run_tests.sh": "exit 0\n"})
        run_id = await on.submit("[ask]", workspace="asking")
        waiting = await on.until(run_id, lambda run: run.status == "WAITING_FOR_INPUT")
        assert waiting.pending_question is not None
        assert waiting.lease is None or waiting.lease.owner is None
        before = await on.events(run_id)
    (tmp_path / "data" / "workspaces" / "asking" / "a.txt").write_text("changed meanwhile")
    async with stage(tmp_path, SCRIPT) as on:
        assert await on.events(run_id) == before
        await on.client.reply(run_id, "left")
        run = await on.ended(run_id)
        after = (await on.events(run_id))[len(before) :]
        sent = on.model.bodies[-1].decode()
    assert run.status == "COMPLETED", run.error
    assert run.iteration == 3
    assert [event.payload["call_id"] for event in after if event.type == "tool.requested"] == []
    assert "SYSTEM NOTE" in sent
    assert "a.txt" in sent.partition("SYSTEM NOTE")[2]
