"""Runs on a provider that fails three of ten requests: each comes to its end, and no effect happens twice.

`FLAKY_TRIES` runs (soak: 100) of a dozen turns, `FLAKY_SEED` chooses what goes wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

from deploy.dev.model_script import Script
from deploy.dev.plan import SERVICES, Service
from services.executor.endpoint.talk import WAIT_SCALE
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.flaky import FAULTS, FlakyServer

TRIES = int(os.environ.get("FLAKY_TRIES", "5"))
SEED = int(os.environ.get("FLAKY_SEED", "17"))
TOGETHER = 10
STEPS = 10
COUNTING_HOST = Service(name="countinghost", argv=(sys.executable, "-m", "tests.fakes.counting_host"))
SCRIPT = {
    "[flaky": [
        calls(call("write_file", path="plan.md", content="count to ten")),
        *(calls(call("count", counter=f"step-{n}"), text=f"Step {n} is next.") for n in range(STEPS)),
        says("I counted to ten, and `plan.md` says so."),
    ]
}


async def _tried(on: Stage, number: int, room: asyncio.Semaphore) -> str:
    """One run, from its start to a completed end; its id."""
    async with room:
        name = f"flaky-{number}"
        on.workspace(name, {"run_tests.sh": "grep -qx 'count to ten' plan.md\n"})
        run_id = await on.submit(f"Count to ten. [flaky {number}]", workspace=name)
        run = await on.ended(run_id)
        events = await on.events(run_id)
        told = [(event.type, event.payload) for event in events[-12:]]
        assert run.status == "COMPLETED", "\n".join(map(str, (number, run.error, *told)))
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert run.verification is not None
        assert run.verification["status"] == "PASSED"
        return run_id


async def test_every_run_on_a_provider_that_fails_at_random_completes_without_repeating_an_effect(
    tmp_path: Path,
) -> None:
    made: list[FlakyServer] = []

    def flaky(script: Script) -> FlakyServer:
        made.append(FlakyServer(script, seed=SEED))
        return made[0]

    environment = {"COUNTING_FOLDER": str(tmp_path), WAIT_SCALE: "0.005"}
    services = (*SERVICES, COUNTING_HOST)
    async with stage(tmp_path, SCRIPT, environment, services=services, server=flaky) as on:
        room = asyncio.Semaphore(TOGETHER)
        run_ids = await asyncio.gather(*(_tried(on, number, room) for number in range(TRIES)))
    lines = (tmp_path / "effects").read_text().splitlines()
    effects = Counter((run_id, counter) for run_id, _, _, counter in map(str.split, lines))
    expected = {(run_id, f"step-{n}") for run_id in run_ids for n in range(STEPS)}
    assert effects == Counter(expected)
    assert made[0].refused == []
    failed, asked = made[0].failed, made[0].count
    sys.stderr.write(f"{TRIES} runs, {asked} requests, {failed.total()} failed: {dict(failed)}\n")
    if TRIES >= TOGETHER:
        assert set(failed) == set(FAULTS)
        assert 0.25 < failed.total() / asked < 0.35
