"""Dead letters over HTTP: operators list them with their reasons and send them again; nobody else does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from libs.bus.ports import Bus, Delivery
from libs.contracts.tasks import Ticket
from tests.service.gateway_served import DEADLINE_S, created, gateway, http_client

TENANT, OPERATOR = "alpha-secret-0123456789", "operator-secret-0123456789"
KEYS = {"RUNTIME_API_KEYS_JSON": json.dumps({"alpha": TENANT})}
RUN = "run_0_00000000000000000000000000"
REASON = "its own process died by SIGKILL after 2 owners were lost"


async def keep(bus: Bus, kind: str, body: bytes, number: int, *, origin: str | None = None) -> None:
    delivery = Delivery(
        subject=bus.subjects.work("normal") if origin is None else origin,
        headers={},
        body=body,
        stream_sequence=number,
        delivered=2,
        stream_created="2026-11-29T12:00:00.000Z",
    )
    await bus.queue.dead_letter(kind, delivery, REASON)


async def poison(bus: Bus, number: int = 7) -> None:
    """What the executor keeps of a run that killed its own process."""
    ticket = Ticket(tenant="local", run_id=RUN, sequence=number)
    body = json.dumps({"tenant": ticket.tenant, "run_id": ticket.run_id, "sequence": number}).encode()
    await keep(bus, bus.subjects.dead("run"), body, number)


async def test_a_poisoned_run_is_listed_with_its_reason_and_can_be_sent_again(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    assert (await client.get("/api/dead-letters")).json() == {"dead_letters": [], "next_cursor": None}
    await poison(bus)
    (letter,) = (await client.get("/api/dead-letters?kind=run")).json()["dead_letters"]
    assert (letter["kind"], letter["run_id"], letter["tenant"]) == ("run", RUN, "local")
    assert (letter["reason"], letter["subject"]) == (REASON, bus.subjects.work("normal"))
    assert json.loads(letter["body"])["run_id"] == RUN
    path = f"/api/dead-letters/{letter['id']}/replay"
    replayed = await client.post(path)
    assert (replayed.status_code, replayed.json()) == (
        202,
        {"id": letter["id"], "subject": bus.subjects.work("normal")},
    )
    again = await client.post(path)
    assert (again.status_code, again.json()["error_code"]) == (404, "NOT_FOUND")
    assert (await client.get("/api/dead-letters")).json()["dead_letters"] == []


async def test_letters_are_paged_newest_first_whatever_is_in_them(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    bodies = [b"\xff\x00\x1b[2J", b"", b"x" * 100_000, b'{"run_id": 7}', b"[]"]
    for number, body in enumerate(bodies, 1):
        await keep(bus, bus.subjects.dead("tools"), body, number)
    await keep(bus, bus.subjects.rejected("alpha"), b"{", 9)
    seen: list[dict[str, object]] = []
    cursor = None
    async with asyncio.timeout(DEADLINE_S):
        while True:
            query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            page = (await client.get("/api/dead-letters", params=query)).json()
            assert len(page["dead_letters"]) <= 2
            seen += page["dead_letters"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert [letter["body_bytes"] for letter in seen] == [1, *(len(body) for body in reversed(bodies))]
    assert (seen[0]["kind"], seen[0]["tenant"]) == ("rejected", "alpha")
    assert seen[-1]["body"] == "\\xff\x00\x1b[2J"
    only = (await client.get("/api/dead-letters?kind=rejected")).json()["dead_letters"]
    assert [letter["id"] for letter in only] == [seen[0]["id"]]


async def test_what_cannot_be_meant_is_refused(client: httpx.AsyncClient, bus: Bus) -> None:
    for query, status, code in (
        ("limit=0", 422, "VALIDATION_ERROR"),
        ("limit=1000", 422, "VALIDATION_ERROR"),
        ("kind=a.b", 422, "VALIDATION_ERROR"),
        ("kind=>", 422, "VALIDATION_ERROR"),
        ("cursor=0", 400, "INVALID_CURSOR"),
        ("cursor=x", 400, "INVALID_CURSOR"),
    ):
        response = await client.get(f"/api/dead-letters?{query}")
        assert (response.status_code, response.json()["error_code"]) == (status, code), query
    for letter in ("0", "1", "-1", "x", "9" * 15):
        response = await client.post(f"/api/dead-letters/{letter}/replay")
        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND"), letter
    await keep(bus, bus.subjects.dead("tools"), b"{}", 1, origin="")
    (letter,) = (await client.get("/api/dead-letters")).json()["dead_letters"]
    lost = await client.post(f"/api/dead-letters/{letter['id']}/replay")
    assert (lost.status_code, lost.json()["error_code"]) == (409, "INVALID_STATE")
    forced = await client.post(f"/api/dead-letters/{letter['id']}/replay", json={"force": True})
    assert forced.status_code == 422


async def test_in_secure_mode_they_are_the_operators_alone(bus: Bus, tmp_path: Path) -> None:
    await poison(bus)
    environment = {**KEYS, "PERDURE_OPERATOR_KEY": OPERATOR}
    async with gateway(bus, tmp_path, environment=environment) as served, http_client(served) as client:
        for headers in ({}, bearer(TENANT), bearer(OPERATOR + "x"), {"Authorization": OPERATOR}):
            for response in (
                await client.get("/api/dead-letters", headers=headers),
                await client.post("/api/dead-letters/1/replay", headers=headers),
            ):
                assert (response.status_code, response.json()["error_code"]) == (401, "UNAUTHORIZED")
                assert response.headers["WWW-Authenticate"].startswith("Bearer")
        page = await client.get("/api/dead-letters", headers=bearer(OPERATOR))
        assert [letter["run_id"] for letter in page.json()["dead_letters"]] == [RUN]
        # An operator is no tenant.
        assert (await client.get("/api/runs", headers=bearer(OPERATOR))).status_code == 401
        assert (await client.get("/api/runs", headers=bearer(TENANT))).status_code == 200


async def test_without_an_operator_they_are_closed_in_secure_mode(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path, environment=KEYS) as served, http_client(served) as client:
        for headers in ({}, bearer(TENANT), {"Authorization": "Bearer"}):
            response = await client.get("/api/dead-letters", headers=headers)
            assert (response.status_code, "PERDURE_OPERATOR_KEY" in response.text) == (401, True)


async def test_in_trusted_local_mode_everybody_at_home_is_an_operator(bus: Bus, tmp_path: Path) -> None:
    environment = {"PERDURE_OPERATOR_KEY": OPERATOR}
    async with gateway(bus, tmp_path, environment=environment) as served, http_client(served) as client:
        await created(client)
        assert (await client.get("/api/dead-letters")).status_code == 200


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
