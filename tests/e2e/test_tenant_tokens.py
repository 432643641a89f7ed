"""A tenant whose tokens for the day are used up: nothing is started, nothing is lost, and no crash gives any back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import httpx
import pytest

from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually

USED = {"usage": {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}}
SCRIPT = {
    "[long]": [
        *(calls(call("echo", text=f"turn {n}"), delay_s=0.05, **USED) for n in range(50)),
        says("Never."),
    ],
    "[last]": [says("Just in time.", **USED)],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    environment = {"TENANT_MAX_TOKENS_PER_DAY": "5000"}
    async with stage(tmp_path_factory.mktemp("tokens"), SCRIPT, environment) as ready:
        yield ready


async def _start(on: Stage) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        body = {"goal": "[last]", "auto_start": True}
        return await http.post(f"{on.perdure.url}/api/tasks", json=body)


async def test_runs_under_way_wait_for_the_next_day_and_none_is_started_before_also_after_a_crash(
    on: Stage,
) -> None:
    answered = await on.ended(await on.submit("[last]"))
    assert answered.status == "COMPLETED"
    run_id = await on.submit("[long]")
    run = await on.until(run_id, lambda run: run.status == "RETRYING")
    assert (run.iteration, run.lease.owner) == (4, None)
    events = await on.events(run_id)
    assert [event.type for event in events][-2:] == ["tool.completed", "run.released"]
    tomorrow = datetime.fromisoformat(events[-1].at).date() + timedelta(days=1)
    assert str(events[-1].payload["retry_at"]).startswith(f"{tomorrow}T00:00:00")
    assert "TENANT_MAX_TOKENS_PER_DAY" in str(events[-1].payload["message"])

    refused = await _start(on)
    assert (refused.status_code, refused.json()["error_code"]) == (429, "QUOTA_EXCEEDED")
    assert 0 < int(refused.headers["retry-after"]) <= 24 * 3600
    pending = await on.submit("[last]", auto_start=False)
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        started = await http.post(f"{on.perdure.url}/api/runs/{pending}/start")
    assert started.status_code == 429
    assert (await on.client.run(pending)).status == "PENDING"

    for name in ("executor", "gateway"):
        on.perdure.kill(name, signal.SIGKILL)
    await on.perdure.healthy(PATIENCE_S)

    async def refused_again() -> bool | None:
        # A gateway that has just begun may not have heard yet.
        return (await _start(on)).status_code == 429 or None

    assert await eventually(refused_again, "a refusal after the crash")
    assert (await on.client.run(run_id)).status == "RETRYING"
    assert (await on.client.cancel(run_id)).status == "CANCELLED"
