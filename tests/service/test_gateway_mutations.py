"""Requests that no client would send: every answer is an envelope of the client's own fault, and nothing is left behind.

The short form takes seconds; `MUTATIONS=100000` (`make soak`) is the long one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import httpx

from libs.bus.ports import Bus
from tests.service.gateway_served import created, gateway, http_client
from tests.service.test_gateway_problems import SECRET
from tests.service.test_gateway_schemathesis import SECURE

MUTATIONS = int(os.environ.get("MUTATIONS", "400"))
AT_ONCE, RUN_REQUESTS = 8, 400
# What the interpreter's own pools take while it gets warm; a leak of a request each would be ten times that in the soak.
GROWTH_BYTES_MAX = 96 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

GOOD = (
    b'{"goal": "Mend it.", "auto_start": true, "acceptance": [{"kind": "tests"}], "limits": {"max_iterations": 5}}',
    b'{"goal": "Mend it.", "priority": "low", "metadata": {"a": "b"}, "tools": ["echo"], "workspace": "shop"}',
    b'{"answer": "yes", "question_id": "q1"}',
    b'{"call_id": "call_1_0", "decision": "accept", "observation": "it is there"}',
    b'{"text": "Go on."}',
    b'{"after_sequence": 1, "goal": "Another."}',
    b'{"from": "start"}',
    b"{}",
)
VALUES = (
    b"null", b"true", b"-1", b"0", b"1e400", b"-0.0", b"NaN", b"1" * 5000, b"1.5", b'""', b'"\\u0000"', b'"\\ud800"',
    b'"\xff\xfe"', b"[]", b"{}", b'{"kind": "file"}', b"[" * 2000, b"[" * 2000 + b"]" * 2000, b'{"a":' * 2000, b'"' + b"x" * 200_000 + b'"',
)  # fmt: skip
PATHS = ("reply", "approve", "reconcile", "message", "fork", "retry", "start", "pause", "resume", "cancel")
QUERIES = (
    "limit=-1",
    "limit=1e9",
    "cursor=%00",
    "cursor=" + "A" * 3000,
    "status=x",
    "after_sequence=9" * 3,
    "deltas=2",
)


def mutated(chance: random.Random) -> bytes:
    """A body that is nearly one of ours."""
    body = chance.choice(GOOD)
    for _ in range(chance.randint(1, 3)):
        place, value = chance.randrange(len(body) + 1), chance.choice(VALUES)
        match chance.randrange(6):
            case 0:
                body = body[:place] + value + body[place:]
            case 1:
                body = body[:place]
            case 2:
                body = body.replace(b": ", b": " + value + b', "goal": ', 1)
            case 3:
                body = body[:-1] + b', "goal": ' + value + b"}"
            case 4:
                body = body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]
            case _:
                body = value
    return body


async def sent(client: httpx.AsyncClient, run_id: str, chance: random.Random) -> httpx.Response:
    kind = chance.randrange(10)
    if kind == 0:
        return await client.get(f"/api/runs?{chance.choice(QUERIES)}")
    if kind == 1:
        return await client.get(f"/api/runs/{run_id}/events?{chance.choice(QUERIES)}")
    path = "/api/tasks" if kind < 5 else f"/api/runs/{run_id}/{chance.choice(PATHS)}"
    types = ("application/json", "application/json; charset=latin-1", "application/x+json", "text/plain", "")
    headers = {"Content-Type": chance.choice(types)}
    if chance.random() < 0.3:
        headers["Idempotency-Key"] = chance.choice(("k", "x" * 255, "x" * 256, ""))
    return await client.post(path, content=mutated(chance), headers=headers)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


async def test_mutated_requests_are_answered_as_the_clients_own_fault(bus: Bus, tmp_path: Path) -> None:
    chance = random.Random(20261130)
    statuses: Counter[int] = Counter()
    async with (
        gateway(bus, tmp_path / "open") as trusted,
        gateway(bus, tmp_path / "secure", replica="gateway-2", environment=SECURE) as secure,
        http_client(trusted) as anybody,
        http_client(secure) as tenant,
    ):
        tenant.headers["Authorization"] = f"Bearer {SECRET}"
        clients, runs, before = (anybody, tenant), ("", ""), 0
        for done in range(0, MUTATIONS, AT_ONCE):
            if done % RUN_REQUESTS == 0:
                # Messages that happen to be right pile up in a run that nobody owns.
                runs = (await created(anybody), await created(tenant))
            if done >= MUTATIONS // 4 and not before:
                before = resident_bytes()
            answers = await asyncio.gather(
                *(sent(clients[place % 2], runs[place % 2], chance) for place in range(AT_ONCE))
            )
            statuses.update(answer.status_code for answer in answers)
            for answer in answers:
                assert answer.status_code < 500, answer.text
                if answer.status_code >= 400:
                    assert answer.json()["error_code"], answer.text
                    assert answer.headers["X-Request-ID"] == answer.json()["request_id"]
        assert {400, 409, 415, 422} <= set(statuses), statuses
        assert 401 not in statuses
        assert resident_bytes() - before < GROWTH_BYTES_MAX, statuses
        for client in clients:
            assert (await client.get("/api/health/ready")).status_code == 200
