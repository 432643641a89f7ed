"""Tasks over HTTP: made once for each key, refused by field, shown as their logs tell them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.ids import child_run_id, task_id_of
from libs.contracts.tasks import Parent, TaskSpec
from libs.contracts.views import RunView, TaskView
from tests.fakes.bus import bus_settings
from tests.fakes.waiting import eventually
from tests.service.gateway_served import (
    DEADLINE_S,
    Owner,
    created,
    gateway,
    http_client,
    registered,
    runs_of,
)


async def test_a_task_is_created_pending_and_shown_with_every_field(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/api/tasks", json={"goal": "Mend the shop.", "workspace": "shop", "metadata": {"team": "a"}}
    )
    made = response.json()
    assert (response.status_code, made["status"]) == (201, "PENDING")
    assert response.headers["Location"] == f"/api/runs/{made['run_id']}"
    shown = (await client.get(f"/api/runs/{made['run_id']}")).json()
    assert set(shown) >= {
        *("run_id", "task_id", "parent_run_id", "tenant", "goal", "status", "attempt", "iteration"),
        *("created_at", "started_at", "finished_at", "last_sequence", "last_event_at", "activity"),
        *("pending_question", "pending_reconciliation", "answer", "verification", "usage", "limits"),
        *("error", "lease", "todos", "workspace"),
    }
    view = RunView.model_validate(shown)
    assert (view.tenant, view.workspace, view.last_sequence, view.lease.owner) == ("local", "shop", 1, None)
    assert view.limits["max_iterations"] == 50
    task = TaskView.model_validate((await client.get(f"/api/tasks/{made['task_id']}")).json())
    assert [run.run_id for run in task.runs] == [made["run_id"]]
    assert task.task["metadata"] == {"team": "a"}


async def test_a_child_names_its_parent(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    child = child_run_id(owner.run_id, "call_1_0")
    state = owner.folded.state
    body = e.RunCreated(
        tenant="local",
        task_id=task_id_of(child),
        task=TaskSpec(goal="A part of it."),
        limits=state.limits,
        workspace=state.workspace,
        body_hash="h",
        parent=Parent(run_id=owner.run_id, call_id="call_1_0", depth=1),
        source="delegate",
    )
    await runs_of(bus).create("local", child, [body])
    assert (await client.get(f"/api/runs/{child}")).json()["parent_run_id"] == owner.run_id
    assert (await client.get(f"/api/runs/{owner.run_id}")).json()["parent_run_id"] is None


async def test_auto_start_queues_the_run_in_the_same_record(client: httpx.AsyncClient) -> None:
    run_id = await created(client, auto_start=True)
    page = (await client.get(f"/api/runs/{run_id}/events")).json()
    assert [event["type"] for event in page["events"]] == ["run.created", "run.start_requested"]
    shown = (await client.get(f"/api/runs/{run_id}")).json()
    assert (shown["status"], shown["workspace"]) == ("QUEUED", run_id)


async def test_twenty_identical_posts_to_two_gateways_make_one_run(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    settings = bus_settings(nats_node.address, prefix=bus.subjects.prefix)
    async with (
        connect(settings, SystemClock()) as other_bus,
        gateway(bus, tmp_path) as first,
        gateway(other_bus, tmp_path, replica="gateway-2") as second,
        http_client(first) as a,
        http_client(second) as b,
    ):
        headers = {"Idempotency-Key": "order 66"}
        posts = [
            side.post("/api/tasks", json={"goal": "Once.", "auto_start": True}, headers=headers)
            for _ in range(10)
            for side in (a, b)
        ]
        async with asyncio.timeout(DEADLINE_S):
            answers = await asyncio.gather(*posts)
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert len({answer.text for answer in answers}) == 1
        for side in (a, b):
            assert len((await side.get("/api/runs")).json()["runs"]) == 1
        again = await b.post("/api/tasks", json={"goal": "Twice."}, headers=headers)
        assert (again.status_code, again.json()["error_code"]) == (409, "IDEMPOTENCY_CONFLICT")
        other = await b.post("/api/tasks", json={"goal": "Twice."}, headers={"Idempotency-Key": "67"})
        assert other.status_code == 201


async def test_the_key_of_a_deleted_run_is_gone_and_its_id_unknown(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    headers = {"Idempotency-Key": "k"}
    made = (await client.post("/api/tasks", json={"goal": "g"}, headers=headers)).json()
    await client.post(f"/api/runs/{made['run_id']}/cancel")
    runs = runs_of(bus)
    folded = await runs.load("local", made["run_id"])
    await runs.commit(folded, [e.RunDeleted(body_hash=folded.state.body_hash, by="local")])
    again = await client.post("/api/tasks", json={"goal": "g"}, headers=headers)
    assert (again.status_code, again.json()["error_code"]) == (410, "RUN_DELETED")
    for path in ("", "/events", "/stream", "/questions"):
        assert (await client.get(f"/api/runs/{made['run_id']}{path}")).status_code == 404


async def test_without_any_model_nothing_is_started_but_history_works(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    pending = await created(client)
    headers = {"Idempotency-Key": "k"}
    body = {"goal": "g", "auto_start": True}
    before = await client.post("/api/tasks", json=body, headers=headers)
    assert before.status_code == 201
    async with registered(bus, "executor", "executor-1"):
        # What was seen of the executors may be a second old; a start is refused on fresh knowledge only.
        await _until_seen(client)
        for response in (
            await client.post("/api/tasks", json=body),
            await client.post(f"/api/runs/{pending}/start"),
        ):
            assert (response.status_code, response.json()["error_code"]) == (503, "CONFIGURATION_ERROR")
        retry = await client.post("/api/tasks", json=body, headers=headers)
        assert (retry.status_code, retry.json()) == (200, before.json())
        assert len((await client.get("/api/runs")).json()["runs"]) == 2
        async with registered(bus, "executor", "executor-2", model=True):
            assert (await client.post(f"/api/runs/{pending}/start")).status_code == 202


async def _until_seen(client: httpx.AsyncClient) -> None:
    async def look() -> object:
        return (await client.get("/api/health")).json()["services"]["executor"]

    await eventually(look, "an executor is seen")


async def test_limits_may_be_lowered_but_not_raised(bus: Bus, tmp_path: Path) -> None:
    environment = {"PERDURE_LIMITS": json.dumps({"max_iterations": 10})}
    async with gateway(bus, tmp_path, environment=environment) as served, http_client(served) as client:
        run_id = await created(client, limits={"max_iterations": 5})
        assert (await client.get(f"/api/runs/{run_id}")).json()["limits"]["max_iterations"] == 5
        response = await client.post("/api/tasks", json={"goal": "g", "limits": {"max_iterations": 11}})
        assert (response.status_code, response.json()["error_code"]) == (422, "VALIDATION_ERROR")
        assert "max_iterations" in response.json()["message"]


async def test_lists_show_own_writes_at_once_and_pages_stay_right(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    made = [await created(client, goal=f"Goal number {number}") for number in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/api/runs", params=query)).json()
        seen += [run["run_id"] for run in page["runs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        await created(client)
    assert seen == list(reversed(made))
    await client.post(f"/api/runs/{made[2]}/cancel")
    cancelled = (await client.get("/api/runs", params={"status": "CANCELLED"})).json()["runs"]
    assert [run["run_id"] for run in cancelled] == [made[2]]
    found = (await client.get("/api/runs", params={"q": "NUMBER 4"})).json()["runs"]
    assert [run["goal"] for run in found] == ["Goal number 4"]
    owner = await Owner.of(bus, made[0])
    await owner.ask(question="Really?")
    async with asyncio.timeout(DEADLINE_S):
        while not (waiting := (await client.get("/api/runs?status=WAITING_FOR_INPUT")).json()["runs"]):
            await asyncio.sleep(0.02)
    assert waiting[0]["pending_question"] == "Really?"


BAD_QUERIES = (
    ("cursor=bogus", 400, "INVALID_CURSOR"),
    ("cursor=WyJhIl0=", 400, "INVALID_CURSOR"),
    ("cursor=%C3%A9", 400, "INVALID_CURSOR"),
    ("status=SLEEPING", 422, "VALIDATION_ERROR"),
    ("limit=0", 422, "VALIDATION_ERROR"),
    ("limit=201", 422, "VALIDATION_ERROR"),
    ("limit=ten", 422, "VALIDATION_ERROR"),
    ("limit=1&limit=2", 422, "VALIDATION_ERROR"),
)


async def test_a_bad_query_is_named(client: httpx.AsyncClient) -> None:
    for query, status, code in BAD_QUERIES:
        response = await client.get(f"/api/runs?{query}")
        assert (response.status_code, response.json()["error_code"]) == (status, code)
        if status == 422:
            assert response.json()["details"][0]["field"] == query.partition("=")[0]


async def test_a_rebuilt_index_gives_the_same_list(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        for _ in range(3):
            await created(client)
        before = (await client.get("/api/runs")).json()
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        assert (await client.get("/api/runs")).json() == before
    async with gateway(bus, tmp_path / "new") as served, http_client(served) as client:
        async with asyncio.timeout(DEADLINE_S):
            while (await client.get("/api/runs")).json() != before:
                await asyncio.sleep(0.02)


async def test_an_index_that_was_made_from_another_log_is_forgotten(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        made = await created(client)
        await client.get("/api/runs")
    (path,) = tmp_path.glob("index/*.sqlite")
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE runs SET run_id = 'run_0_99999999999999999999999999'")
        file.execute("UPDATE positions SET message_id = 'of another log'")
        file.commit()
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        async with asyncio.timeout(DEADLINE_S):
            while not (runs := (await client.get("/api/runs")).json()["runs"]):
                await asyncio.sleep(0.02)
        assert [run["run_id"] for run in runs] == [made]
