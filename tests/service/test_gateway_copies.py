"""Runs made of runs: forks share the log up to a point, retries begin a task again; the origin is never touched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from libs.bus.copies import Copies
from libs.bus.ports import Bus, Draft, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts import copying
from libs.contracts import events as e
from libs.contracts.ids import derived_run_id
from libs.contracts.run import COPYING
from libs.contracts.tools import Semantics
from libs.contracts.values import ModelToolCall, RunError, Usage
from tests.service.gateway_served import (
    Owner,
    created,
    frames,
    gateway,
    http_client,
    registered,
    runs_of,
    sequences,
)
from tests.service.test_gateway_problems import OTHER, SECRET, enveloped

LONG = "wide " * 150_000


async def events_of(client: httpx.AsyncClient, run_id: str) -> list[dict[str, Any]]:
    return (await client.get(f"/api/runs/{run_id}/events", params={"limit": 1000})).json()["events"]


async def finished(client: httpx.AsyncClient, bus: Bus) -> Owner:
    """A run of two turns that has ended; it asked a person in between, and said something long."""
    owner = await Owner.of(bus, await created(client, metadata={"of": "shop"}))
    await owner.turn(1)
    await owner.ask()
    answered = await client.post(f"/api/runs/{owner.run_id}/reply", json={"answer": "the first"})
    assert answered.status_code == 202
    await owner.refresh()
    await owner.claim()
    await owner.turn(2, LONG)
    await owner.complete()
    return owner


async def test_a_fork_at_any_event_shares_the_log_up_to_there_and_no_more(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await finished(client, bus)
    before = await events_of(client, owner.run_id)
    for after in range(1, len(before) + 1):
        response = await client.post(f"/api/runs/{owner.run_id}/fork", json={"after_sequence": after})
        assert response.status_code == 201, response.text
        made = response.json()
        assert (made["status"], made["from_run_id"], made["after_sequence"]) == (
            "QUEUED",
            owner.run_id,
            after,
        )
        assert made["workspace_sequence"] is None
        events = await events_of(client, made["run_id"])
        assert events[:after] == [{**event, "run_id": made["run_id"]} for event in before[:after]]
        marker = events[after]
        assert (marker["type"], marker["sequence"]) == ("run.forked", after + 1)
        assert (marker["payload"]["from"], marker["payload"]["sequence"]) == (owner.run_id, after)
        assert {event["type"] for event in events[after + 1 :]} <= {"tool.uncertain"}
        run = (await client.get(f"/api/runs/{made['run_id']}")).json()
        assert (run["status"], run["task_id"], run["answer"], run["finished_at"], run["error"]) == (
            "QUEUED",
            owner.folded.state.task_id,
            None,
            None,
            None,
        )
        assert run["usage"]["requests"] == 0
        assert (run["workspace"], run["pending_question"]) == (made["run_id"], None)
    assert await events_of(client, owner.run_id) == before
    # The newest forks come first, each as its log tells it.
    listed = (await client.get("/api/runs", params={"limit": 3})).json()["runs"]
    for row in listed:
        shown = (await client.get(f"/api/runs/{row['run_id']}")).json()
        assert {name: shown[name] for name in row if name in shown and name != "pending_question"} == {
            name: row[name] for name in row if name in shown and name != "pending_question"
        }
    # What was too long for a record is whole in the copy, too.
    whole = (await client.get(f"/api/runs/{listed[0]['run_id']}/events/{len(before) - 1}")).json()
    assert whole["payload"]["output"] == LONG


async def test_a_fork_in_the_midst_of_a_call_marks_the_interruption(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.write(e.ModelRequested(iteration=1, model="m", message_count=1, estimated_tokens=1))
    asked = [
        ModelToolCall(call_id=f"call_1_{index}", name="run_command", arguments={"command": "date"})
        for index in range(3)
    ]
    intents = [
        e.ToolRequested(
            call_id=call.call_id,
            name=call.name,
            arguments={"command": "date"},
            semantics=semantics,
            idempotency_key=call.call_id,
        )
        for call, semantics in zip(asked, Semantics, strict=True)
    ]
    await owner.write(
        e.ModelCompleted(
            iteration=1, content="", tool_calls=asked, finish_reason="tool_calls", usage=Usage(), latency_ms=1
        ),
        *intents,
    )
    await owner.write(e.ToolCompleted(call_id="call_1_0", ok=True, output="now", duration_ms=1))
    after = owner.folded.state.sequence - 1
    await owner.write(e.ToolCompleted(call_id="call_1_1", ok=True, output="later", duration_ms=1))
    made = (await client.post(f"/api/runs/{owner.run_id}/fork", json={"after_sequence": after})).json()
    events = await events_of(client, made["run_id"])
    assert [event["type"] for event in events[after:]] == ["run.forked", *["tool.uncertain"] * 3]
    state = (await runs_of(bus).load("local", made["run_id"])).state
    assert [call.call_id for call in state.calls if call.uncertain is not None] == [
        "call_1_0",
        "call_1_1",
        "call_1_2",
    ]
    assert all("later" not in json.dumps(event) for event in events)


async def test_a_fork_may_have_another_goal_and_is_streamed_from_its_beginning(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await finished(client, bus)
    last = owner.folded.state.sequence
    body = {"after_sequence": last, "goal": "Now paint the shop."}
    made = (await client.post(f"/api/runs/{owner.run_id}/fork", json=body)).json()
    run = (await client.get(f"/api/runs/{made['run_id']}")).json()
    assert run["goal"] == "Now paint the shop."
    found = (await client.get("/api/runs", params={"q": "paint"})).json()["runs"]
    assert [row["run_id"] for row in found] == [made["run_id"]]
    fork = await Owner.of(bus, made["run_id"])
    await fork.turn(3)
    await fork.complete()
    text = (await client.get(f"/api/runs/{made['run_id']}/stream")).text
    assert sequences(frames(text)) == list(range(1, fork.folded.state.sequence + 1))
    task = (await client.get(f"/api/tasks/{made['task_id']}")).json()
    assert {run["run_id"] for run in task["runs"]} == {owner.run_id, made["run_id"]}


async def test_what_cannot_be_forked_is_refused_by_its_field(client: httpx.AsyncClient, bus: Bus) -> None:
    run_id = await created(client)
    for body in ({}, {"after_sequence": 0}, {"after_sequence": 2}, {"after_sequence": "1"}, {"after": 1}):
        response = await client.post(f"/api/runs/{run_id}/fork", json=body)
        enveloped(response, 422, "VALIDATION_ERROR")
        assert response.json()["details"][0]["field"] in ("after_sequence", "after")
    blank = await client.post(f"/api/runs/{run_id}/fork", json={"after_sequence": 1, "goal": " "})
    enveloped(blank, 422, "VALIDATION_ERROR")
    enveloped(
        await client.post(f"/api/runs/{run_id}/retry", json={"from": "middle"}), 422, "VALIDATION_ERROR"
    )
    enveloped(await client.post(f"/api/runs/{run_id}/retry"), 409, "INVALID_STATE")
    unknown = "/api/runs/run_0_00000000000000000000000000"
    enveloped(await client.post(f"{unknown}/fork", json={"after_sequence": 1}), 404, "NOT_FOUND")
    enveloped(await client.post(f"{unknown}/retry"), 404, "NOT_FOUND")
    async with registered(bus, "executor", "executor-1", model=False):
        owner = await finished(client, bus)
        for path, given in (("fork", {"after_sequence": 1}), ("retry", {})):
            response = await client.post(f"/api/runs/{owner.run_id}/{path}", json=given)
            enveloped(response, 503, "CONFIGURATION_ERROR")


@pytest.mark.parametrize("path", ["fork", "retry", "retry_checkpoint"])
async def test_a_key_makes_one_run_also_twenty_at_once_and_half_way(
    client: httpx.AsyncClient, bus: Bus, path: str
) -> None:
    owner = await finished(client, bus)
    name = path.partition("_")[0]
    body: dict[str, object] = {"after_sequence": 5} if path == "fork" else {"from": "start"}
    if path == "retry_checkpoint":
        body = {"from": "last_checkpoint"}
    url = f"/api/runs/{owner.run_id}/{name}"
    if path == "fork":
        # A gateway that died in the midst of this very copy.
        run_id = derived_run_id(1, "local", "fork", owner.run_id, "k1")
        copies = Copies(bus, runs_of(bus), SystemClock())
        events = copying.renamed((await copies.events(LogKey("local", owner.run_id)))[:3], run_id)
        await bus.log.append(Draft(LogKey("local", run_id), 0, events, 0, COPYING))
        enveloped(await client.get(f"/api/runs/{run_id}"), 404, "NOT_FOUND")
    answers = await asyncio.gather(
        *(client.post(url, json=body, headers={"Idempotency-Key": "k1"}) for _ in range(20))
    )
    assert {response.status_code for response in answers} == {200, 201}
    assert len({response.text for response in answers}) == 1
    made = answers[0].json()
    other = {"after_sequence": 6} if path == "fork" else {"from": "last_checkpoint"}
    if path != "retry_checkpoint":
        conflict = await client.post(url, json=other, headers={"Idempotency-Key": "k1"})
        if path == "fork":
            enveloped(conflict, 409, "IDEMPOTENCY_CONFLICT")
    assert (await client.post(f"/api/runs/{made['run_id']}/cancel")).status_code == 202
    assert (await client.delete(f"/api/runs/{made['run_id']}")).status_code == 204
    again = await client.post(url, json=body, headers={"Idempotency-Key": "k1"})
    enveloped(again, 410, "RUN_DELETED")


async def test_a_retry_begins_the_task_again_or_where_the_run_asked_the_model_last(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client, acceptance=[{"kind": "tests"}], priority="high"))
    await owner.turn(1)
    await owner.write(e.ModelRequested(iteration=2, model="m", message_count=1, estimated_tokens=1))
    asked_at = owner.folded.state.sequence
    failure = RunError(error_code="MODEL_ERROR", message="gone")
    await owner.write(
        e.ModelFailed(iteration=2, error_code="MODEL_ERROR", message="gone", attempt=1),
        e.RunFailed(error=failure, usage=Usage()),
    )
    anew = (await client.post(f"/api/runs/{owner.run_id}/retry")).json()
    assert (anew["task_id"], anew["after_sequence"]) == (owner.folded.state.task_id, 0)
    assert [event["type"] for event in await events_of(client, anew["run_id"])] == [
        "run.created",
        "run.start_requested",
    ]
    task = (await runs_of(bus).load("local", anew["run_id"])).state.task
    assert task == owner.folded.state.task
    body = {"from": "last_checkpoint"}
    made = (await client.post(f"/api/runs/{owner.run_id}/retry", json=body)).json()
    assert made["after_sequence"] == asked_at
    fork = await Owner.of(bus, made["run_id"])
    await fork.turn(3)
    await fork.complete()
    assert (await client.get(f"/api/runs/{made['run_id']}")).json()["status"] == "COMPLETED"


async def test_another_tenants_run_is_neither_forked_nor_tried_again(bus: Bus, tmp_path: Path) -> None:
    keys = {"RUNTIME_API_KEYS_JSON": json.dumps({"alpha": SECRET, "beta": OTHER})}
    async with gateway(bus, tmp_path, environment=keys) as served, http_client(served) as client:
        mine, theirs = ({"Authorization": f"Bearer {secret}"} for secret in (SECRET, OTHER))
        made = await client.post("/api/tasks", json={"goal": "Mine."}, headers=mine)
        run = f"/api/runs/{made.json()['run_id']}"
        for path, body in (("fork", {"after_sequence": 1}), ("retry", {})):
            response = await client.post(f"{run}/{path}", json=body, headers=theirs)
            enveloped(response, 404, "NOT_FOUND")
        for path in ("artifacts", "artifacts/a", "diff"):
            enveloped(await client.get(f"{run}/{path}", headers=theirs), 404, "NOT_FOUND")
