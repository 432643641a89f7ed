"""The bus goes away, and parts of it are deleted under load: services wait, rebuild and go on by themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from libs.contracts.views import EventView
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually

# Enough that every stream has something in flight when it goes.
RUNS = 6
# All that a deployment must survive the loss of (design, section 1.4).
HINT_STREAMS = ("perdure-work", "perdure-tools", "perdure-timers")
HINT_BUCKETS = ("KV_perdure-leases", "KV_perdure-checkpoints", "KV_perdure-catalog")
CONSUMERS = ("perdure-work.executors-normal", "perdure-tools.any-verify")

SCRIPT = {
    "[work]": [
        *(
            calls(
                call("write_file", path=f"{n}.txt", content=str(n)),
                call("echo", text=f"turn {n}"),
                delay_s=0.2,
            )
            for n in range(8)
        ),
        says("I wrote `0.txt` and seven others."),
    ],
    "[echo]": [calls(call("echo", text="hi")), says("Echoed.")],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("outages"), SCRIPT) as ready:
        yield ready


async def test_while_the_server_is_away_the_gateway_says_so_and_when_it_is_back_everything_goes_on(
    on: Stage,
) -> None:
    runs = await _start(on, "away")
    streams = [asyncio.create_task(_streamed(on, run_id)) for run_id in runs]
    await on.until(runs[0], lambda run: run.iteration >= 3)
    await on.perdure.halt("nats")
    try:
        async with httpx.AsyncClient(base_url=on.perdure.url, timeout=PATIENCE_S) as http:

            async def unready() -> httpx.Response | None:
                answer = await http.get("/api/health/ready")
                return answer if answer.status_code == 503 else None

            await eventually(unready, "a gateway that is not ready")
            refused = await http.post("/api/tasks", json={"goal": "[echo] meanwhile", "auto_start": True})
            assert refused.status_code == 503
            assert refused.json()["error_code"] == "BUS_UNAVAILABLE"
            assert int(refused.headers["Retry-After"]) >= 1
    finally:
        on.perdure.start("nats")
    await _all_completed(on, runs)
    for run_id, streaming in zip(runs, streams, strict=True):
        async with asyncio.timeout(PATIENCE_S):
            assert await streaming == await on.events(run_id)
    assert (await on.ended(await on.submit("[echo] after"))).status == "COMPLETED"
    await on.perdure.healthy(PATIENCE_S)


@pytest.mark.parametrize("names", [HINT_STREAMS, HINT_BUCKETS], ids=["streams", "buckets"])
async def test_what_only_holds_hints_can_be_deleted_under_load(on: Stage, names: tuple[str, ...]) -> None:
    runs = await _start(on, names[0])
    for turn, name in enumerate(names):
        await on.until(runs[0], lambda run, turn=turn: run.iteration >= 2 + turn)
        await _api(on, f"STREAM.DELETE.{name}")
        runs.append(await on.submit(f"[echo] behind {name}"))
    await _all_completed(on, runs)


async def test_consumers_can_be_deleted_under_load(on: Stage) -> None:
    runs = await _start(on, "consumers")
    for turn, name in enumerate(CONSUMERS):
        await on.until(runs[0], lambda run, turn=turn: run.iteration >= 2 + turn)
        await _api(on, f"CONSUMER.DELETE.{name}")
        runs.append(await on.submit(f"[echo] behind {name}"))
    await _all_completed(on, runs)


async def _start(on: Stage, name: str) -> list[str]:
    """Runs in workspaces of their own, all at once."""
    for number in range(RUNS):
        on.workspace(f"{name.lower()}-{number}", {"run_tests.sh": "exit 0\n"})
    return await asyncio.gather(
        *(on.submit("[work]", workspace=f"{name.lower()}-{number}") for number in range(RUNS))
    )


async def _all_completed(on: Stage, runs: list[str]) -> None:
    for run_id in runs:
        run = await on.ended(run_id)
        assert run.status == "COMPLETED", run.error
        events = await on.events(run_id)
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def _streamed(on: Stage, run_id: str) -> list[EventView]:
    """Everything that one client hears of a run; it resumes by itself."""
    return [event async for event in on.client.stream(run_id, deltas=False)]


async def _api(on: Stage, name: str) -> None:
    """One request to the server's own API, with the credentials of the services."""
    async with connect(on.bus, SystemClock()) as bus:
        answer = json.loads(await bus.wire.request(f"$JS.API.{name}", b"", timeout_s=5.0))
    assert answer.get("success"), answer
