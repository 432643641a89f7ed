"""Lists from PostgreSQL: what they say is what the embedded index says, through a real gateway over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from libs.bus.connection import ServerBus
from tests.fakes.postgres import PostgresServer, postgres
from tests.fakes.waiting import eventually
from tests.service.gateway_served import Owner, created, gateway, http_client

__all__ = ["postgres"]

QUERIES = (
    "/api/runs",
    "/api/runs?limit=2",
    "/api/runs?status=COMPLETED",
    "/api/runs?status=PENDING,WAITING_FOR_INPUT",
    "/api/runs?q=SHOP",
    "/api/runs?q=100%25_",
    "/api/runs?q=stra%C3%9Fe",
    "/api/runs?task_id=task_0_00000000000000000000000000",
    "/api/projects",
    "/api/projects?limit=1",
    "/api/schedules",
    "/api/schedules?limit=1",
)


class Both(NamedTuple):
    """A gateway with its own index and one with the database, over one bus."""

    embedded: httpx.AsyncClient
    database: httpx.AsyncClient

    async def same(self, path: str) -> Any:
        """What both answer to a list, once both have folded all of it."""

        async def asked() -> list[Any]:
            answers = [await client.get(path) for client in self]
            assert [answer.status_code for answer in answers] == [200, 200], answers
            return [answer.json() for answer in answers]

        answers = await eventually(
            asked, f"the same answer to {path}", fits=lambda found: found[0] == found[1]
        )
        return answers[0]


@pytest.fixture
async def both(bus: ServerBus, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Both]:
    environment = {"DATABASE_URL": postgres.url}
    async with (
        gateway(bus, tmp_path / "a", replica="embedded") as one,
        gateway(bus, tmp_path / "b", replica="database", environment=environment) as other,
        http_client(one) as embedded,
        http_client(other) as database,
    ):
        yield Both(embedded, database)


async def _history(both: Both, bus: ServerBus) -> list[str]:
    """Runs in many states, made through both gateways, two projects and two schedules; the runs in the order they were made."""
    runs = [
        await created(both[number % 2], goal=goal, metadata={"n": str(number)})
        for number, goal in enumerate(
            ("Mend the shop.", "Straße bauen", "100%_sure", "Mend it", "SHOP", "again", "last")
        )
    ]
    completed = await Owner.of(bus, runs[0])
    await completed.turn(1)
    await completed.complete()
    await (await Owner.of(bus, runs[1])).ask(question="Which one?")
    assert (await both.embedded.post(f"/api/runs/{runs[2]}/cancel")).status_code == 202
    feature = {"id": "a", "title": "A", "acceptance": [{"kind": "command", "argv": ["true"]}]}
    for name in ("one", "two"):
        body = {"name": name, "brief": "Build it.", "features": [feature], "verify": []}
        assert (await both.database.post("/api/projects", json=body)).status_code == 201
        schedule = {"name": name, "cron": "0 9 * * 1", "timezone": "UTC", "task": {"goal": "Look."}}
        assert (await both.embedded.post("/api/schedules", json=schedule)).status_code == 201
    return runs


async def test_every_list_says_the_same_from_either_index(both: Both, bus: ServerBus) -> None:
    runs = await _history(both, bus)
    everything = await both.same("/api/runs")
    assert [run["run_id"] for run in everything["runs"]] == runs[::-1]
    assert {run["status"] for run in everything["runs"]} == {
        "PENDING",
        "COMPLETED",
        "WAITING_FOR_INPUT",
        "CANCELLED",
    }
    for query in QUERIES:
        await both.same(query)
    assert [run["goal"] for run in (await both.same("/api/runs?q=STRASSE"))["runs"]] == ["Straße bauen"]
    assert (await both.database.get("/api/health")).json()["backends"]["index"] == "postgresql"

    # A cursor is a place, so a list may be read on from either.
    seen: list[str] = []
    path, turn = "/api/runs?limit=2", 0
    while True:
        page = (await both[turn % 2].get(path)).json()
        seen += [run["run_id"] for run in page["runs"]]
        if page["next_cursor"] is None:
            break
        path, turn = f"/api/runs?limit=2&cursor={page['next_cursor']}", turn + 1
    assert seen == runs[::-1]

    # A deleted run leaves both.
    assert (await both.embedded.delete(f"/api/runs/{runs[0]}")).status_code == 204
    assert runs[0] not in {run["run_id"] for run in (await both.same("/api/runs"))["runs"]}


async def test_the_rows_are_made_anew_from_the_log(
    both: Both, bus: ServerBus, postgres: PostgresServer, tmp_path: Path
) -> None:
    await _history(both, bus)
    before = await both.same("/api/runs")
    # Somebody empties the tables below a running gateway; the next one to start finds nothing and folds all again, and
    # the running one notices that the rows stand at an earlier place.
    tables = ", ".join(
        f'"{bus.subjects.prefix}".{name}'
        for name in ("runs", "questions", "positions", "projects", "schedules")
    )
    await postgres.execute(f"TRUNCATE {tables}")
    async with (
        gateway(bus, tmp_path / "c", replica="third", environment={"DATABASE_URL": postgres.url}) as third,
        http_client(third) as client,
    ):
        fresh = await created(both.database, goal="after")
        for asked in (client, both.database):

            async def listed(asked: httpx.AsyncClient = asked) -> list[Any]:
                return (await asked.get("/api/runs")).json()["runs"]

            found = await eventually(listed, "all runs again", fits=lambda runs: len(runs) == 8)
            assert found[0]["run_id"] == fresh
            assert found[1:] == before["runs"]


async def test_without_its_database_a_gateway_does_everything_but_lists(
    both: Both, postgres: PostgresServer
) -> None:
    before = await created(both.database)
    await both.same("/api/runs")
    await asyncio.to_thread(postgres.stop)
    try:
        refused = await both.database.get("/api/runs")
        assert (refused.status_code, refused.json()["error_code"]) == (503, "BUS_UNAVAILABLE")
        assert refused.headers["Retry-After"] == "1"
        assert "DATABASE_URL" in refused.json()["message"]
        meanwhile = await created(both.database, goal="meanwhile")
        assert (await both.database.get(f"/api/runs/{meanwhile}")).json()["status"] == "PENDING"
        assert (await both.database.get("/api/health/ready")).status_code == 200
    finally:
        await asyncio.to_thread(postgres.start)

    async def listed() -> list[str]:
        answer = await both.database.get("/api/runs")
        return [run["run_id"] for run in answer.json()["runs"]] if answer.status_code == 200 else []

    await eventually(
        listed, "the list once the database is back", fits=lambda found: found == [meanwhile, before]
    )
