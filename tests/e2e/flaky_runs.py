"""Runs on a provider that fails three of ten requests: each has to come to its end, and no effect may happen twice.

`FLAKY_TRIES` runs (soak: 100) of a dozen turns, `FLAKY_SEED` chooses what goes wrong.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

from deploy.dev.model_script import Script as ModelScript
from tests.e2e.stage import Script, Stage, call, calls, says
from tests.fakes.flaky import FAULTS, FlakyServer

TRIES = int(os.environ.get("FLAKY_TRIES", "5"))
SEED = int(os.environ.get("FLAKY_SEED", "17"))
TOGETHER = 10
STEPS = 10
MARKER = "[flaky"
FLAKY: Script = {
    MARKER: [
        calls(call("write_file", path="plan.md", content="count to ten")),
        *(calls(call("count", counter=f"step-{n}"), text=f"Step {n} is next.") for n in range(STEPS)),
        says("I counted to ten, and `plan.md` says so."),
    ]
}


def flaky_server(script: ModelScript) -> FlakyServer:
    """The model's server: flaky to these runs, to all others what their script says."""
    return FlakyServer(script, seed=SEED, marker=MARKER)


async def flaky_runs(on: Stage) -> list[str]:
    """All of them, from their starts to completed ends; their ids."""
    room = asyncio.Semaphore(TOGETHER)
    return await asyncio.gather(*(_tried(on, number, room) for number in range(TRIES)))


async def _tried(on: Stage, number: int, room: asyncio.Semaphore) -> str:
    async with room:
        name = f"flaky-{number}"
        on.workspace(name, {"run_tests.sh": "grep -qx 'count to ten' plan.md\n"})
        run_id = await on.submit(f"Count to ten. {MARKER} {number}]", workspace=name)
        run = await on.ended(run_id)
        events = await on.events(run_id)
        told = [(event.type, event.payload) for event in events[-12:]]
        assert run.status == "COMPLETED", "\n".join(map(str, (number, run.error, *told)))
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert run.verification is not None
        assert run.verification["status"] == "PASSED"
        return run_id


def no_effect_twice(server: FlakyServer, run_ids: list[str], effects: list[str]) -> None:
    """`effects` are the lines of the counting host, of any runs."""
    done = Counter((run_id, counter) for run_id, _, _, counter in map(str.split, effects))
    ours = Counter({key: times for key, times in done.items() if key[0] in run_ids})
    assert ours == Counter((run_id, f"step-{n}") for run_id in run_ids for n in range(STEPS))
    assert server.refused == []
    failed, asked = server.failed, server.flaky
    sys.stderr.write(f"{len(run_ids)} runs, {asked} requests, {failed.total()} failed: {dict(failed)}\n")
    if TRIES >= TOGETHER:
        assert set(failed) == set(FAULTS)
        assert 0.25 < failed.total() / asked < 0.35
