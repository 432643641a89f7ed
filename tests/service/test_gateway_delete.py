"""Deleting a run over HTTP: only ended ones, once, and then it is gone for everybody; also after its purge."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.ids import child_run_id, task_id_of
from libs.contracts.tasks import Limits, Parent, TaskSpec
from services.gateway.app import Gateway
from services.gateway.server import listen, serve_until
from services.gateway.settings import GatewaySettings
from tests.service.gateway_served import (
    DEADLINE_S,
    Owner,
    Served,
    created,
    http_client,
    registered,
    runs_of,
)

KEY = {"Idempotency-Key": "order 66"}


async def gone(client: httpx.AsyncClient, run_id: str) -> None:
    """Nothing tells this run from one that never was, but its key."""
    path = f"/api/runs/{run_id}"
    bodies: dict[str, dict[str, str]] = {
        "start": {},
        "cancel": {},
        "pause": {},
        "resume": {},
        "reply": {"answer": "a"},
        "message": {"text": "t"},
        "approve": {"call_id": "c", "decision": "approve"},
        "reconcile": {"call_id": "c", "decision": "fail"},
    }
    for command, body in bodies.items():
        response = await client.post(f"{path}/{command}", json=body)
        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND"), command
    for suffix in ("", "/events", "/events/1", "/stream", "/questions"):
        response = await client.get(path + suffix)
        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND"), suffix
    assert (await client.get(f"/api/tasks/{task_id_of(run_id)}")).status_code == 404
    assert (await client.delete(path)).status_code == 404
    assert (await client.get("/api/runs")).json()["runs"] == []
    again = await client.post("/api/tasks", json={"goal": "Mend the shop."}, headers=KEY)
    assert (again.status_code, again.json()["error_code"]) == (410, "RUN_DELETED")


async def test_only_an_ended_run_is_deleted_and_its_key_answers_410(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    response = await client.post("/api/tasks", json={"goal": "Mend the shop."}, headers=KEY)
    run_id = response.json()["run_id"]
    path = f"/api/runs/{run_id}"
    assert (await client.delete(path)).status_code == 409
    owner = await Owner.of(bus, run_id)
    running = await client.delete(path)
    assert (running.status_code, running.json()["error_code"]) == (409, "INVALID_STATE")
    await owner.complete()
    deleted = await client.delete(path)
    assert (deleted.status_code, deleted.content) == (204, b"")
    await gone(client, run_id)
    # What the scheduler does next changes no answer.
    tail = await bus.log.tail(LogKey("local", run_id))
    assert tail is not None
    await bus.log.purge(LogKey("local", run_id), tail.header.stream_sequence)
    assert len(await bus.log.read(LogKey("local", run_id))) == 1
    await gone(client, run_id)


async def test_of_concurrent_deletions_one_buries_the_run(client: httpx.AsyncClient, bus: Bus) -> None:
    run_id = await created(client)
    await client.post(f"/api/runs/{run_id}/cancel")
    async with asyncio.timeout(DEADLINE_S):
        answers = await asyncio.gather(*(client.delete(f"/api/runs/{run_id}") for _ in range(10)))
    assert sorted(answer.status_code for answer in answers) == [204] + [404] * 9
    stored = await bus.log.read(LogKey("local", run_id))
    assert sum(b"run.deleted" in record.body for record in stored) == 1
    assert (await client.delete(f"/api/runs/{run_id}")).status_code == 404


async def test_a_child_stays_until_its_living_parent_knows_its_end(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client))
    children = [child_run_id(owner.run_id, call) for call in ("call_1_0", "call_1_1")]
    for run_id, call in zip(children, ("call_1_0", "call_1_1"), strict=True):
        child = e.RunCreated(
            tenant="local",
            task_id=task_id_of(run_id),
            task=TaskSpec(goal="A part of it."),
            limits=Limits(),
            workspace="w",
            body_hash="h",
            parent=Parent(run_id=owner.run_id, call_id=call, depth=1),
            source="delegate",
        )
        await runs_of(bus).create("local", run_id, [child])
        await client.post(f"/api/runs/{run_id}/cancel")
        refused = await client.delete(f"/api/runs/{run_id}")
        assert (refused.status_code, owner.run_id in refused.json()["message"]) == (409, True)
    await owner.write(
        e.ChildFinished(call_id="call_1_0", child_run_id=children[0], status="CANCELLED", answer="")
    )
    assert (await client.delete(f"/api/runs/{children[0]}")).status_code == 204
    # A parent that has ended waits for nobody.
    await owner.complete()
    assert (await client.delete(f"/api/runs/{children[1]}")).status_code == 204


async def test_what_is_watched_is_not_streamed_any_more_once_it_is_deleted(bus: Bus, tmp_path: Path) -> None:
    settings = GatewaySettings.load("gateway", {"PERDURE_DATA": str(tmp_path)})
    stop = asyncio.Event()
    async with registered(bus, "gateway", "gateway-1") as liveness:
        made = Gateway(bus, runs_of(bus), SystemClock(), liveness, settings)
        async with made.parts() as (rows, watches), asyncio.TaskGroup() as group:
            bound = listen("127.0.0.1", 0)
            port = int(bound.getsockname()[1])
            group.create_task(serve_until(stop, made.app(rows, watches), bound, SystemClock()))
            async with http_client(Served(f"http://127.0.0.1:{port}", stop, port)) as client:
                alive, ended = await created(client), await created(client)
                await client.post(f"/api/runs/{ended}/cancel")
                async with (
                    watches.watch(LogKey("local", alive)) as early,
                    watches.watch(LogKey("local", ended)) as late,
                ):
                    await client.post(f"/api/runs/{alive}/cancel")
                    for run_id in (alive, ended):
                        assert (await client.delete(f"/api/runs/{run_id}")).status_code == 204
                        response = await client.get(f"/api/runs/{run_id}/stream")
                        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND")
                    async with asyncio.timeout(DEADLINE_S):
                        while not early.closed:
                            await asyncio.sleep(0.01)
                    assert not late.closed
            stop.set()
