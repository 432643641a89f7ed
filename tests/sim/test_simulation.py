"""The short form of the simulation: seeded schedules, every crash point of four scenarios, and the planted bugs.

Each runs in a process of its own: the order of sets of strings, the collector and the last words of dead coroutines
belong to a schedule, not to the test runner.
"""

from __future__ import annotations

import asyncio
import os
import sys

# The machine may be busy with other tests; each of these takes about ten seconds on a free core.
DEADLINE_S = 240.0


async def simulated(*arguments: str) -> str:
    """What the simulation prints; it must have ended well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.sim", *arguments),
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    assert process.returncode == 0, text[-20_000:]
    return text


async def test_in_weeks_of_work_with_daily_restarts_nothing_is_lost_and_nothing_grows_with_age() -> None:
    assert "0 findings" in await simulated("--weeks", "0")


async def test_nothing_is_lost_doubled_or_stuck_in_seeded_schedules() -> None:
    assert "0 with findings" in await simulated("--schedules", "300")


async def test_a_crash_at_every_step_of_four_scenarios_is_survived() -> None:
    assert "0 with findings" in await simulated("--points", "plain,parallel,reconcile,ask_user", "--quiet")


async def test_a_freeze_at_every_step_of_a_run_and_of_its_deletion_is_survived() -> None:
    assert "0 with findings" in await simulated("--freezes", "plain,delete", "--quiet")


async def test_a_record_that_arrives_late_below_a_command_is_not_appended_again() -> None:
    """Its owner has given it up, has looked, and is about to try again when it arrives; a message comes right behind."""
    late = ("--troubles", "message", "--how", "unknown, done late")
    assert "0 with findings" in await simulated(*late, "--variant", "9", "--variants", "2", "--quiet")


async def test_the_same_seed_is_the_same_schedule() -> None:
    assert "0 with findings" in await simulated("--schedules", "20", "--first", "700", "--twice")


async def test_every_planted_bug_is_found() -> None:
    assert "NOT FOUND" not in await simulated("--planted", "quickly")
