"""A run that kills whoever carries it, among others that must not suffer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.e2e.stage import call, calls, says, stage

# Those that share its process: as many as there are slots under `make soak`, enough to be hurt in the suite.
OTHERS = 63 if os.environ.get("CRASH_POINTS") == "all" else 15
SCRIPT = {
    "[poison]": [says("Nobody lives to hear this.")],
    "[long]": [
        *(calls(call("echo", text=f"turn {n}"), delay_s=0.02) for n in range(30)),
        says("Still here."),
    ],
}


async def test_a_run_that_kills_its_executor_ends_poisoned_and_the_others_in_the_same_process_complete(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, SCRIPT, {"PERDURE_TEST_CRASH_GOAL": "[poison]"}) as on:
        others = [await on.submit(f"[long] {n}") for n in range(OTHERS)]
        poison = await on.submit("[poison]")
        run = await on.ended(poison)
        assert run.error is not None
        assert run.error.error_code == "POISONED"
        ended = await asyncio.gather(*(on.ended(run_id) for run_id in others))
        assert {other.status for other in ended} == {"COMPLETED"}
        assert (await on.events(poison))[-1].type == "run.failed"
