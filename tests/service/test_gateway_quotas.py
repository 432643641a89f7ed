"""Quotas: exact over two gateways, told in headers, and nothing is lost with a gateway that dies."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import httpx
import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.bus.spending import Spending
from libs.chassis.clock import SystemClock
from tests.fakes.bus import bus_settings
from tests.fakes.waiting import eventually
from tests.service.gateway_served import Owner, Served, free_port, gateway, http_client, process, until_ready

SECRETS = {"poor": "secret-of-the-poor-1", "rich": "secret-of-the-rich-1"}
QUOTA = {
    "TENANT_MAX_TOKENS_PER_DAY": "100",
    "RUNTIME_API_KEYS_JSON": msgspec.json.encode(SECRETS).decode(),
}
STARTED = {"goal": "g", "auto_start": True}


def sent_by(tenant: str, key: str | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[tenant]}"} | ({} if key is None else {"Idempotency-Key": key})


async def test_a_tenant_that_has_used_up_its_day_starts_nothing_and_others_and_retries_are_served(
    bus: Bus, tmp_path: Path
) -> None:
    executor = Spending(bus.bucket("spending"), SystemClock(), limit=100, boot="boot-of-an-executor")
    async with gateway(bus, tmp_path, environment=QUOTA) as served, http_client(served) as client:

        async def post(tenant: str, key: str | None = None, path: str = "/api/tasks") -> httpx.Response:
            body = STARTED if path == "/api/tasks" else {}
            return await client.post(path, json=body, headers=sent_by(tenant, key))

        before = await post("poor", "key-1")
        assert before.status_code == 201
        made = await client.post("/api/tasks", json={"goal": "later"}, headers=sent_by("poor"))
        await executor.bought("poor", 100)

        async def refused() -> httpx.Response | None:
            # The gateway hears of it a moment later.
            answer = await post("poor")
            return answer if answer.status_code == 429 else None

        answer = await eventually(refused, "a refusal")
        assert answer.json()["error_code"] == "QUOTA_EXCEEDED"
        assert 0 < int(answer.headers["retry-after"]) <= 24 * 3600
        start = f"/api/runs/{made.json()['run_id']}/start"
        assert (await post("poor", path=start)).status_code == 429
        again = await post("poor", "key-1")
        assert (again.status_code, again.json()["run_id"]) == (200, before.json()["run_id"])
        assert (await post("rich")).status_code == 201
        unstarted = await client.post("/api/tasks", json={"goal": "later"}, headers=sent_by("poor"))
        assert unstarted.status_code == 201
        assert (await client.get("/api/runs", headers=sent_by("poor"))).status_code == 200


async def test_of_200_requests_at_once_on_two_gateways_exactly_the_quota_is_served(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    environment = {**QUOTA, "TENANT_REQUESTS_PER_MINUTE": "60"}
    async with two_gateways(bus, nats_node, tmp_path, environment) as clients:

        async def ask(number: int) -> httpx.Response:
            return await clients[number % 2].get("/api/runs", headers=sent_by("poor"))

        answers = await asyncio.gather(*(ask(number) for number in range(200)))
        assert Counter(answer.status_code for answer in answers) == {200: 60, 429: 140}
        for answer in answers:
            assert answer.headers["ratelimit-policy"] == '"requests";q=60;w=60'
            assert re.fullmatch(r'"requests";r=\d+;t=\d+', answer.headers["ratelimit"])
        left = sorted(int(answer.headers["ratelimit"].split(";")[1][2:]) for answer in answers)
        assert left[-60:] == list(range(60))
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error_code"] == "QUOTA_EXCEEDED"
        assert 1 <= int(refused.headers["retry-after"]) <= 61
        assert (await clients[0].get("/api/runs", headers=sent_by("rich"))).status_code == 200
        assert (await clients[1].get("/api/health")).status_code == 200


async def test_of_200_starts_at_once_on_two_gateways_exactly_as_many_begin_as_there_are_places(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    environment = {**QUOTA, "TENANT_MAX_ACTIVE_RUNS": "2", "TENANT_MAX_QUEUED_RUNS": "8"}
    async with two_gateways(bus, nats_node, tmp_path, environment) as clients:

        async def start(number: int) -> httpx.Response:
            headers = sent_by("poor", f"key-{number}")
            return await clients[number % 2].post("/api/tasks", json=STARTED, headers=headers)

        answers = await asyncio.gather(*(start(number) for number in range(200)))
        assert Counter(answer.status_code for answer in answers) == {201: 10, 429: 190}
        begun = [number for number, answer in enumerate(answers) if answer.status_code == 201]
        assert answers[begun[0]].headers["ratelimit-policy"] == '"runs";q=10'
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert (refused.headers["ratelimit"], refused.headers["retry-after"]) == ('"runs";r=0', "5")
        # A retry of what was begun is answered, what starts nothing is made, and others have places of their own.
        assert (await start(begun[0])).status_code == 200
        later = await clients[0].post("/api/tasks", json={"goal": "later"}, headers=sent_by("poor"))
        assert later.status_code == 201
        pending = f"/api/runs/{later.json()['run_id']}/start"
        assert (await clients[1].post(pending, headers=sent_by("poor"))).status_code == 429
        assert (await clients[1].post("/api/tasks", json=STARTED, headers=sent_by("rich"))).status_code == 201
        # A run that waits for a person holds no place, and neither does one that ended.
        runs = [answers[number].json()["run_id"] for number in begun]
        owner = await Owner.of(bus, runs[0], tenant="poor")
        await owner.ask()
        cancelled = await clients[0].post(f"/api/runs/{runs[1]}/cancel", headers=sent_by("poor"))
        assert cancelled.status_code == 202

        async def another(number: int) -> int | None:
            answer = await start(number)
            return number if answer.status_code == 201 else None

        # As soon as the lists of that gateway show it.
        await eventually(lambda: another(500), "a place of the run that waits")
        await eventually(lambda: another(501), "a place of the run that was cancelled")
        assert (await start(502)).status_code == 429


async def test_a_gateway_that_is_killed_in_the_midst_of_starts_takes_no_place_with_it(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    environment = {"TENANT_MAX_ACTIVE_RUNS": "2", "TENANT_MAX_QUEUED_RUNS": "18"}
    ports = free_port(), free_port()
    served = [Served(f"http://127.0.0.1:{port}", asyncio.Event(), port) for port in ports]
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(
                process(bus, nats_node, tmp_path / str(port), port, environment | {"REPLICA_ID": f"g-{port}"})
            )
            for port in ports
        ]
        clients = [await stack.enter_async_context(http_client(one)) for one in served]
        for one in served:
            await until_ready(one)

        async def start(client: httpx.AsyncClient, key: str) -> tuple[int, str]:
            try:
                answer = await client.post("/api/tasks", json=STARTED, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                return 0, ""
            return answer.status_code, answer.json().get("run_id", "")

        keys = [f"key-{number}" for number in range(200)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start(clients[place % 2], key)) for place, key in enumerate(keys)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            processes[0].kill()
        answers = dict(zip(keys, (task.result() for task in tasks), strict=True))
        statuses = Counter(status for status, _ in answers.values())
        assert set(statuses) <= {0, 201, 429}
        assert statuses[201] <= 20

        # Whoever asks the other one again, with the key, learns what became of it and begins nothing twice.
        again = dict(zip(keys, await asyncio.gather(*(start(clients[1], key) for key in keys)), strict=True))
        for key, (status, run_id) in answers.items():
            assert again[key] == (200, run_id) if status == 201 else again[key][0] in {200, 201, 429}, key

        async def begun() -> list[str]:
            return [run["run_id"] for run in (await clients[1].get("/api/runs?limit=200")).json()["runs"]]

        others = count()

        async def filled() -> bool:
            assert len(await begun()) <= 20
            return (await start(clients[1], f"other-{next(others)}"))[0] == 429 and len(await begun()) == 20

        # What the dead gateway had reserved and not begun is free again after a while, and no sooner more than 20 begin.
        await eventually(filled, "all places taken by runs", fits=bool, every_s=0.2)
        told = {run_id for status, run_id in again.values() if status in {200, 201}}
        assert told <= set(await begun())


@asynccontextmanager
async def two_gateways(
    bus: Bus, node: NatsServer, data: Path, environment: dict[str, str]
) -> AsyncGenerator[list[httpx.AsyncClient]]:
    """Clients of two gateways that share nothing but the server."""
    settings = bus_settings(node.address, prefix=bus.subjects.prefix)
    async with AsyncExitStack() as stack:
        clients: list[httpx.AsyncClient] = []
        for number in range(2):
            own = await stack.enter_async_context(connect(settings, SystemClock()))
            serving = gateway(own, data / str(number), replica=f"gateway-{number}", environment=environment)
            served = await stack.enter_async_context(serving)
            clients.append(await stack.enter_async_context(http_client(served)))
        yield clients
