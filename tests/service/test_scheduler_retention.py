"""Retention: what ended long ago goes, whole and exported; nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from libs.bus.logfile import runs_in
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import projects_of
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.ids import child_run_id, task_id_of
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Limits, Parent, TaskSpec
from services.scheduler.leadership import Leadership
from services.scheduler.retention import Keeping, Retention
from tests.fakes.waiting import eventually, until
from tests.service.gateway_served import Owner, created, runs_of

DAYS = 0.5 / 86_400


@asynccontextmanager
async def keeping(bus: Bus, folder: Path | None, *, days: float = DAYS) -> AsyncGenerator[None]:
    clock = SystemClock()
    leadership = Leadership(
        bus.bucket("leases"), clock, boot="bscheduler", group=0, ttl_s=3.0, gained=lambda: None
    )
    kept = Keeping(days, folder, first_s=0.1, every_s=0.1, quiet_s=0.3)
    retention = Retention(bus, runs_of(bus), projects_of(bus, clock), clock, kept)
    async with asyncio.TaskGroup() as group:
        tasks = group.create_task(leadership.campaign()), group.create_task(retention.run(leadership))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def ended(bus: Bus, run_id: str) -> Owner:
    owner = await Owner.of(bus, run_id)
    await owner.turn(1)
    await owner.complete()
    return owner


async def gone(client: httpx.AsyncClient, run_id: str) -> None:
    async def status() -> int:
        return (await client.get(f"/api/runs/{run_id}")).status_code

    await eventually(status, f"{run_id} is gone", fits=lambda seen: seen == 404)


async def test_what_ended_long_ago_is_exported_and_deleted_and_what_goes_on_or_waits_is_kept(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    body = {"goal": "g", "auto_start": True}
    made = await client.post("/api/tasks", json=body, headers={"Idempotency-Key": "key-1"})
    old = made.json()["run_id"]
    owner = await ended(bus, old)
    state: RunState = owner.folded.state
    waiting, pending = await created(client), await created(client)
    await (await Owner.of(bus, waiting)).ask()
    async with keeping(bus, tmp_path / "exports"):
        await gone(client, old)
    file = tmp_path / "exports" / "local" / f"{old}.jsonl"
    assert file.stat().st_mode & 0o077 == 0
    (exported,) = runs_in(file.read_text(encoding="utf-8").splitlines())
    assert exported.key == LogKey("local", old)
    assert [event.sequence for event in exported.events] == list(range(1, state.sequence + 1))
    assert isinstance(exported.events[-1].body, e.RunCompleted)
    again = await client.post("/api/tasks", json=body, headers={"Idempotency-Key": "key-1"})
    assert (again.status_code, again.json()["error_code"]) == (410, "RUN_DELETED")
    for run_id, status in ((waiting, RunStatus.WAITING_FOR_INPUT), (pending, RunStatus.PENDING)):
        assert (await client.get(f"/api/runs/{run_id}")).json()["status"] == status


async def test_a_child_stays_until_its_parent_knows_its_end_and_what_is_fresh_stays(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    parent, other = await created(client), await created(client)
    delegating = await Owner.of(bus, parent)
    child = child_run_id(parent, "call_1_0")
    runs = runs_of(bus)
    made = e.RunCreated(
        tenant="local",
        task_id=task_id_of(child),
        task=TaskSpec(goal="part of it"),
        limits=Limits(),
        workspace=parent,
        body_hash="",
        parent=Parent(run_id=parent, call_id="call_1_0", depth=1),
    )
    await runs.create("local", child, [made, e.RunStartRequested(by="local")])
    await (await Owner.of(bus, child)).complete()
    await ended(bus, other)
    async with keeping(bus, None):
        await gone(client, other)
        assert (await client.get(f"/api/runs/{child}")).status_code == 200
        await delegating.complete()
        await gone(client, child)
        await gone(client, parent)
    fresh = await created(client)
    await ended(bus, fresh)
    old = await created(client)
    async with keeping(bus, None, days=1.0):
        await ended(bus, old)
    assert (await client.get(f"/api/runs/{fresh}")).status_code == 200


async def test_nothing_is_deleted_that_could_not_be_exported(
    bus: Bus, client: httpx.AsyncClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "exports"
    blocked.write_text("a file where a folder should be", encoding="utf-8")
    run_id = await created(client)
    await ended(bus, run_id)
    async with keeping(bus, blocked):
        await until(lambda: "run.kept" in caplog.messages, "a word that it could not be exported")
        assert (await client.get(f"/api/runs/{run_id}")).status_code == 200
        blocked.unlink()
        await gone(client, run_id)
    assert (blocked / "local" / f"{run_id}.jsonl").exists()


async def test_without_exports_runs_go_all_the_same(bus: Bus, client: httpx.AsyncClient) -> None:
    run_id = await created(client)
    await ended(bus, run_id)
    async with keeping(bus, None):
        await gone(client, run_id)
