"""A tenant without tokens for today: what would start a run answers 429, and everything else goes on."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec

from libs.bus.ports import Bus
from libs.bus.spending import Spending
from libs.chassis.clock import SystemClock
from tests.fakes.waiting import eventually
from tests.service.gateway_served import gateway, http_client

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
