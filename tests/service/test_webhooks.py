"""Webhooks: who registered hears of its own events, in order, signed, once they can be taken; nobody reaches inside."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts import webhooks as contract
from libs.policy.outbound import Outbound, parse_outbound
from services.scheduler.leadership import Leadership
from services.scheduler.webhooks.keeper import Webhooks
from services.scheduler.webhooks.outbound import Sender
from tests.fakes.receiver import Received, Receiver, receiver
from tests.fakes.waiting import eventually, until
from tests.service.gateway_served import Owner, created, gateway, http_client, process

ALLOWED = {"PERDURE_WEBHOOK_ALLOW": "127.0.0.0/8"}
KEY = b"thirty-two bytes of a key, or so"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
KEYS = {"acme": "secret-of-acme-enough", "other": "secret-of-the-others"}
SECURE = ALLOWED | {"RUNTIME_API_KEYS_JSON": msgspec.json.encode(KEYS).decode()}


@asynccontextmanager
async def sending(
    bus: Bus, *, again_s: tuple[float, ...] = (0.05,) * 5, refused_s: tuple[float, ...] = (0.05,)
) -> AsyncGenerator[None]:
    """A leading scheduler's part in it, with little patience."""
    clock = SystemClock()
    leadership = Leadership(
        bus.bucket("leases"), clock, boot="bscheduler", group=0, ttl_s=3.0, gained=lambda: None
    )
    webhooks = Webhooks(bus, clock, parse_outbound("127.0.0.0/8"), again_s=again_s, refused_s=refused_s)
    async with asyncio.TaskGroup() as group:
        tasks = group.create_task(leadership.campaign()), group.create_task(webhooks.run(leadership))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@pytest.fixture
async def client(bus: Bus, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with gateway(bus, tmp_path, environment=ALLOWED) as served, http_client(served) as made:
        yield made


async def register(
    client: httpx.AsyncClient, to: Receiver, *events: str, headers: Mapping[str, str] | None = None
) -> str:
    body = {"url": to.url, "events": list(events), "secret": SECRET}
    answer = await client.post("/api/webhooks", json=body, headers=dict(headers or {}))
    assert answer.status_code == 201, answer.text
    assert SECRET not in answer.text
    return answer.json()["webhook_id"]


async def told(client: httpx.AsyncClient, webhook_id: str) -> dict[str, object]:
    found = (await client.get("/api/webhooks")).json()["webhooks"]
    return next(one for one in found if one["webhook_id"] == webhook_id)


def expect_signed(one: Received) -> None:
    """As a receiver checks it, from the text of the specification alone."""
    signed = f"{one.headers['webhook-id']}.{one.headers['webhook-timestamp']}.".encode() + one.body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert one.headers["webhook-signature"] == f"v1,{expected}"


async def test_events_come_in_order_and_signed_and_again_until_they_are_taken(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    async with receiver() as life, receiver() as all_of_it, sending(bus):
        await created(client)
        first = await register(client, life, "run.created", "run.claimed", "run.completed")
        second = await register(client, all_of_it, "run.claimed", "tool.requested", "tool.completed")
        life.answers = [500, 503]
        owner = await Owner.of(bus, await created(client))
        await owner.turn(1)
        await owner.complete()
        await until(lambda: len(life.taken) == 3, "the events of the first")
        await until(lambda: len(all_of_it.taken) == 3, "the events of the second")

        assert life.taken == ["run.created", "run.claimed", "run.completed"]
        assert all_of_it.taken == ["run.claimed", "tool.requested", "tool.completed"]
        tries = life.requests[:3]
        assert [one.status for one in tries] == [500, 503, 204]
        assert len({(one.headers["webhook-id"], one.body) for one in tries}) == 1
        assert len({one.headers["webhook-id"] for one in life.requests}) == 3
        for one in (*life.requests, *all_of_it.requests):
            expect_signed(one)
            assert one.sent.data.run_id == owner.run_id
        shown = (await client.get(f"/api/runs/{owner.run_id}/events?limit=1")).json()["events"][0]
        assert msgspec.json.decode(life.requests[0].body)["data"] == shown

        async def settled() -> bool:
            state = await told(client, first)
            return (state["attempt"], state["problem"], state["last_status"]) == (0, None, 204)

        await eventually(settled, "no trouble any more", fits=bool)
        assert (await client.delete(f"/api/webhooks/{second}")).status_code == 204
        assert (await client.delete(f"/api/webhooks/{second}")).status_code == 404
        before = len(all_of_it.requests)
        again = await Owner.of(bus, await created(client))
        await again.complete()
        await until(lambda: life.taken.count("run.completed") == 2, "the next run")
        assert len(all_of_it.requests) == before


async def test_what_is_refused_to_the_end_is_kept_and_holds_up_nothing(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    async with receiver() as stubborn, sending(bus):
        webhook_id = await register(client, stubborn, "run.created")
        stubborn.answers = [400, 302, 400, 410]
        runs = [await created(client) for _ in range(3)]
        await until(lambda: len(stubborn.taken) == 1, "the third run's event")
        # Two tries of the first (a redirect is no way), one of the second, which nobody wants any more.
        assert [one.status for one in stubborn.requests] == [400, 302, 400, 410, 204]
        assert [one.sent.data.run_id for one in stubborn.requests] == [*[runs[0]] * 3, *runs[1:]]
        letters = (await client.get("/api/dead-letters?kind=hooks")).json()["dead_letters"]
        assert [(one["run_id"], one["tenant"]) for one in letters] == [(runs[1], "local"), (runs[0], "local")]
        assert SECRET not in str(letters)

        async def counted() -> bool:
            state = await told(client, webhook_id)
            return (state["given_up"], state["delivered"]) == (2, 1)

        await eventually(counted, "what was given up", fits=bool)
        replayed = await client.post(f"/api/dead-letters/{letters[1]['id']}/replay")
        assert replayed.status_code == 202
        await until(lambda: len(stubborn.taken) == 2, "the letter")
        assert stubborn.requests[-1].headers["webhook-id"] == stubborn.requests[0].headers["webhook-id"]


async def test_a_scheduler_that_is_killed_between_two_tries_loses_nothing(
    bus: Bus, nats_node: NatsServer, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    async with receiver() as slow:
        await register(client, slow, "run.created")
        slow.answers = [500]
        async with process(bus, nats_node, tmp_path / "s1", 1, ALLOWED, service="scheduler") as first:
            run_id = await created(client)
            await until(lambda: slow.requests, "the first try")
            first.kill()
            await first.wait()
        also = await created(client)
        async with process(bus, nats_node, tmp_path / "s2", 1, ALLOWED, service="scheduler"):
            await until(lambda: len(slow.taken) == 2, "both events")
        assert [one.sent.data.run_id for one in slow.requests if one.status < 300] == [run_id, also]


async def test_tenants_see_and_hear_of_their_own_alone(bus: Bus, tmp_path: Path) -> None:
    def sent_by(tenant: str, key: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {KEYS[tenant]}"} | ({"Idempotency-Key": key} if key else {})

    async with (
        gateway(bus, tmp_path, environment=SECURE) as served,
        http_client(served) as client,
        receiver() as acme,
        receiver() as other,
        sending(bus),
    ):
        assert (await client.get("/api/webhooks")).status_code == 401
        webhook_id = await register(client, acme, "run.created", headers=sent_by("acme", "key-1"))
        await register(client, other, "run.created", headers=sent_by("other"))
        body = {"url": acme.url, "events": ["run.created"], "secret": SECRET}
        again = await client.post("/api/webhooks", json=body, headers=sent_by("acme", "key-1"))
        assert (again.status_code, again.json()["webhook_id"]) == (200, webhook_id)
        assert "secret" not in again.json() or again.json()["secret"] is None
        changed = body | {"events": ["run.failed"]}
        conflict = await client.post("/api/webhooks", json=changed, headers=sent_by("acme", "key-1"))
        assert (conflict.status_code, conflict.json()["error_code"]) == (409, "IDEMPOTENCY_CONFLICT")
        mine = (await client.get("/api/webhooks", headers=sent_by("acme"))).json()
        assert [one["webhook_id"] for one in mine["webhooks"]] == [webhook_id]
        assert mine["next_cursor"] is None
        foreign = await client.delete(f"/api/webhooks/{webhook_id}", headers=sent_by("other"))
        assert foreign.status_code == 404

        task = {"goal": "g"}
        run_id = (await client.post("/api/tasks", json=task, headers=sent_by("acme"))).json()["run_id"]
        theirs = (await client.post("/api/tasks", json=task, headers=sent_by("other"))).json()["run_id"]
        await until(lambda: acme.taken and other.taken, "one event each")
        assert [one.sent.data.run_id for one in acme.requests] == [run_id]
        assert [one.sent.data.run_id for one in other.requests] == [theirs]


@pytest.mark.parametrize(
    "body, field",
    [
        ({"url": "ftp://a.example/x"}, "url"),
        ({"url": "https://user:pw@a.example/x"}, "url"),
        ({"url": "http://127.0.0.1:9/x"}, "url"),
        ({"url": "http://[::1]/x"}, "url"),
        ({"url": "http://[::ffff:10.0.0.1]/x"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://localhost/x"}, "url"),
        ({"events": []}, "events"),
        ({"events": ["run.deleted"]}, "events.0"),
        ({"events": ["model.delta"]}, "events.0"),
        ({"secret": "short"}, "secret"),
        ({"color": "red"}, "color"),
    ],
)
async def test_what_can_never_be_sent_is_refused_by_its_field(
    bus: Bus, tmp_path: Path, body: dict[str, object], field: str
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        whole = {"url": "https://hooks.example.com/x", "events": ["run.created"], "secret": SECRET} | body
        answer = await client.post("/api/webhooks", json=whole)
        assert (answer.status_code, answer.json()["error_code"]) == (422, "VALIDATION_ERROR")
        assert [one["field"] for one in answer.json()["details"]] == [field]
        assert "short" not in answer.text


async def test_a_secret_that_was_made_up_is_given_once(client: httpx.AsyncClient) -> None:
    body = {"url": "https://hooks.example.com/x", "events": ["run.created"]}
    made = (await client.post("/api/webhooks", json=body)).json()
    assert len(contract.key_of(made["secret"])) == 32
    listed = (await client.get("/api/webhooks")).text
    assert made["secret"] not in listed


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "localhost", "[::1]", "[::ffff:7f00:1]"]
)
async def test_no_way_of_writing_it_leads_to_this_machine(host: str) -> None:
    async with receiver() as inside:
        port = inside.url.split(":")[2].partition("/")[0]
        sender = Sender(Outbound())
        answer = await sender.post(f"http://{host}:{port}/hook", {}, b"{}")
        await sender.close()
        assert answer.status is None
        assert answer.problem is not None
        assert "PERDURE_WEBHOOK_ALLOW" in answer.problem
        assert inside.requests == []
