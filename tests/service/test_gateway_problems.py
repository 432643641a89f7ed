"""Failures over HTTP: one envelope for all of them, a request id on every response, an API that describes itself."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from libs.bus.ports import Bus
from libs.contracts.healthviews import HealthView
from libs.contracts.http import BODY_BYTES_MAX
from services.gateway import openapi
from services.gateway.operations import OPERATIONS
from tests.service.gateway_served import DEADLINE_S, Owner, Served, created, gateway, http_client, registered

SECRET, OTHER = "alpha-secret-0123456789", "beta-secret-0123456789"


def enveloped(response: httpx.Response, status: int, code: str) -> None:
    body = response.json()
    assert (response.status_code, body["error_code"]) == (status, code), response.text
    assert set(body) - {"details"} == {"error_code", "message", "request_id"}
    assert response.headers["X-Request-ID"] == body["request_id"]


async def test_every_kind_of_refusal_has_its_envelope(client: httpx.AsyncClient) -> None:
    as_json = {"Content-Type": "application/json"}
    run = f"/api/runs/{await created(client)}"
    for path in (
        "/",
        "/api",
        "/api/",
        "/api/nothing",
        "/api/runs/",
        "/api/runs/x/y/z",
        "/api/tasks/task_0_x",
    ):
        enveloped(await client.get(path), 404, "NOT_FOUND")
    for method, path, allow in (
        ("GET", "/api/tasks", "POST"),
        ("DELETE", "/api/runs", "GET, HEAD"),
        ("PUT", "/api/health", "GET, HEAD"),
        ("OPTIONS", f"{run}/start", "POST"),
        ("POST", f"{run}/stream", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ):
        response = await client.request(method, path)
        enveloped(response, 405, "METHOD_NOT_ALLOWED")
        assert response.headers["Allow"] == allow
    for content, headers, status, code in (
        (b'{"goal": "g"}', {"Content-Type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b'{"goal": "g"}', {}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        (b"{", as_json, 422, "VALIDATION_ERROR"),
        (b"", as_json, 422, "VALIDATION_ERROR"),
        (b'{"goal": "g", "gaol": 1}', as_json, 422, "VALIDATION_ERROR"),
        (b'{"goal": "g"}', {**as_json, "Idempotency-Key": "x" * 256}, 422, "VALIDATION_ERROR"),
        (b'"' + b"x" * BODY_BYTES_MAX + b'"', as_json, 413, "PAYLOAD_TOO_LARGE"),
    ):
        response = await client.post("/api/tasks", content=content, headers=headers)
        enveloped(response, status, code)
        if status == 422:
            assert response.json()["details"]
    enveloped(await client.post(f"{run}/cancel", json={"force": True}), 422, "VALIDATION_ERROR")
    enveloped(await client.get(f"{run}/stream?deltas=maybe"), 422, "VALIDATION_ERROR")
    assert (await client.get("/api/runs")).json()["runs"][0]["status"] == "PENDING"


async def spoken(served: Served, request: bytes) -> httpx.Response:
    """The answer to bytes that no client library would send."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    status, *fields = head.decode().split("\r\n")
    pairs = [(name, value) for name, _, value in (field.partition(": ") for field in fields)]
    return httpx.Response(int(status.split()[1]), headers=pairs, content=body)


NO_HTTP = (
    b"BREW /api/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/runs/\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    b"\x16\x03\x01\x02\x00\x01\x00",
)


async def test_what_is_no_http_has_the_envelope_too(served: Served) -> None:
    for request_bytes in NO_HTTP:
        enveloped(await spoken(served, request_bytes), 400, "BAD_REQUEST")


async def test_a_stream_is_not_written_into_when_its_client_sends_nonsense(
    served: Served, client: httpx.AsyncClient
) -> None:
    path = f"/api/runs/{await created(client)}/stream"
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await reader.readuntil(b"event: run.created")
        writer.write(b"NONSENSE\r\n\r\n")
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()


async def test_a_body_without_a_declared_length_is_bounded_too(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 65_536

    response = await client.post("/api/tasks", content=chunks(), headers={"Content-Type": "application/json"})
    enveloped(response, 413, "PAYLOAD_TOO_LARGE")


async def test_a_request_id_is_echoed_within_bounds_or_made_up(client: httpx.AsyncClient) -> None:
    for given, expected in (
        ("abc-123", "abc-123"),
        ("a b\tc", "abc"),
        ("x" * 300, "x" * 128),
    ):
        response = await client.get("/api/health", headers={"X-Request-ID": given})
        assert response.headers["X-Request-ID"] == expected
    made = {(await client.get("/api/nothing")).headers["X-Request-ID"] for _ in range(3)}
    assert len(made) == 3
    assert all(re.fullmatch(r"req_[0-9a-f]{20}", one) for one in made)


async def test_the_api_describes_itself_without_any_other_server(client: httpx.AsyncClient) -> None:
    described = (await client.get("/openapi.json")).json()
    assert described == json.loads(openapi.PUBLISHED.read_text(encoding="utf-8")), (
        "libs/contracts/openapi.json is stale: python -m services.gateway.openapi"
    )
    listed = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
    assert listed == {(operation.method, operation.path) for operation in OPERATIONS}
    assert all(
        "405" in one["responses"] for methods in described["paths"].values() for one in methods.values()
    )
    assert described["info"]["version"] == (await client.get("/api/health")).json()["version"]
    page = (await client.get("/docs")).text
    assert "Object.entries(api.components.schemas)" in page
    assert "/openapi.json" in page
    assert not re.search(r"(src|href)=\"(https?:)?//", page)


async def test_health_says_what_there_is_and_ready_whether_it_works(
    client: httpx.AsyncClient, bus: Bus
) -> None:
    assert (await client.get("/api/health/ready")).json() == {"status": "ready"}
    async with registered(bus, "executor", "executor-1", model=True):
        async with asyncio.timeout(10):
            while True:
                health = HealthView.model_validate((await client.get("/api/health")).json())
                if health.services["executor"]:
                    break
                await asyncio.sleep(0.05)
    assert (health.replica_id, health.model_configured, health.bus) == ("gateway-1", True, True)
    assert [one.replica_id for one in health.services["gateway"]] == ["gateway-1"]
    assert health.status == "degraded"


async def test_without_keys_a_page_of_another_site_gets_nothing_by_a_name_that_leads_here(
    client: httpx.AsyncClient,
) -> None:
    for host in (
        "evil.example",
        "127.0.0.1.evil.example:8000",
        "localhost.",
        "192.168.0.7",
        "0.0.0.0",
        "[fe80::1]",
        "[",
    ):
        for answer in (
            await client.post("/api/tasks", json={"goal": "g"}, headers={"Host": host}),
            await client.get("/api/runs", headers={"Host": host}),
            await client.put("/api/runs", headers={"Host": host}),
            await client.get("/api/nothing", headers={"Host": host}),
            await client.get("/api/metrics", headers={"Host": host}),
        ):
            enveloped(answer, 401, "UNAUTHORIZED")
        assert (await client.get("/api/health", headers={"Host": host})).status_code == 200
    for host in ("localhost", "LOCALHOST:1", "my.localhost:8000", "127.0.0.9", "[::1]:8000"):
        assert (await client.get("/api/runs", headers={"Host": host})).json()["runs"] == []


async def test_secure_mode_needs_a_secret_and_keeps_tenants_apart(bus: Bus, tmp_path: Path) -> None:
    keys = {"RUNTIME_API_KEYS_JSON": json.dumps({"alpha": SECRET, "beta": [OTHER, OTHER + "x"]})}
    async with gateway(bus, tmp_path, environment=keys) as served, http_client(served) as client:
        for headers in (
            {},
            {"Authorization": SECRET},
            {"Authorization": f"Basic {SECRET}"},
            {"Authorization": f"Bearer {SECRET}x"},
            {"Authorization": "Bearer"},
        ):
            response = await client.get("/api/runs", headers=headers)
            enveloped(response, 401, "UNAUTHORIZED")
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert SECRET not in response.text
        for path in ("/api/health", "/api/health/ready", "/openapi.json", "/docs"):
            response = await client.get(path)
            assert response.status_code == 200
            assert SECRET not in response.text
        alpha, beta = {"Authorization": f"Bearer {SECRET}"}, {"Authorization": f"bearer {OTHER}x"}
        made = (await client.post("/api/tasks", json={"goal": "g"}, headers=alpha)).json()
        assert (await client.get("/api/runs", headers=beta)).json()["runs"] == []
        for path in ("", "/events", "/stream", "/questions", "/events/1"):
            response = await client.get(f"/api/runs/{made['run_id']}{path}", headers=beta)
            enveloped(response, 404, "NOT_FOUND")
        enveloped(await client.post(f"/api/runs/{made['run_id']}/cancel", headers=beta), 404, "NOT_FOUND")
        mine = (await client.get(f"/api/runs/{made['run_id']}", headers=alpha)).json()
        assert (mine["tenant"], mine["status"]) == ("alpha", "PENDING")


async def test_a_defect_is_an_envelope_and_the_gateway_goes_on(client: httpx.AsyncClient, bus: Bus) -> None:
    owner = await Owner.of(bus, await created(client))
    # A record that nobody can read stands for a defect of ours: garbage below the log's own subject.
    subject = bus.subjects.log("local", owner.run_id, "work")
    await bus.wire.publish(subject, b"garbage")
    async with asyncio.timeout(10):
        while (response := await client.get(f"/api/runs/{owner.run_id}")).status_code == 200:
            await asyncio.sleep(0.02)
    enveloped(response, 500, "INTERNAL_ERROR")
    assert (await client.get("/api/health/ready")).status_code == 200
