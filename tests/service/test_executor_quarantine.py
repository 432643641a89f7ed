"""Runs that wait for a process of their own."""

from __future__ import annotations

import asyncio
import logging

import pytest

from libs.bus.checkpoints import Checkpoints
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.ids import random_run_id
from libs.contracts.tasks import Limits, TaskSpec
from services.executor.quarantine import Quarantine

CLOCK = SystemClock()


async def test_no_process_is_made_for_a_run_that_somebody_has_claimed_meanwhile(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), CLOCK)
    run_id = random_run_id(CLOCK, 0)
    created = e.RunCreated(
        tenant="local",
        task_id="task_1",
        task=TaskSpec(goal="test"),
        limits=Limits(),
        workspace=run_id,
        body_hash="0",
    )
    claims = [e.RunClaimed(owner="gone", boot=f"b{n}", epoch=n, attempt=n) for n in (1, 2, 3)]
    before = await runs.create("local", run_id, [created, e.RunStartRequested(by="test"), *claims[:2]])
    assert before.state.carried_alone
    await runs.command("local", run_id, lambda _: claims[2:])
    await Quarantine(bus, runs, CLOCK).carry(before.state, asyncio.Event(), asyncio.Event())
    assert "run.quarantined" not in caplog.messages
