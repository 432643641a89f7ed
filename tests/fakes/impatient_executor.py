"""An executor that takes a model's silence for a lost connection after `IDLE_S`, and not after the product's minutes.

Invariant: everything else of it is the product's own process; its waits between and behind attempts are hurried.
Run as `python -m tests.fakes.impatient_executor`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from libs.bus.ports import Bus
from libs.chassis.clock import HurriedClock
from libs.chassis.run import start
from libs.contracts.clock import Clock
from services.executor.app import Outside, serve
from services.executor.endpoint.circuits import Circuits
from services.executor.endpoint.completion import ModelSettings, open_model
from services.executor.endpoint.deltas import sending
from services.executor.endpoint.talk import PARK_S, Talker
from services.executor.settings import ExecutorSettings

# Long enough for a busy machine to be slow in, short enough for a test to sit out.
IDLE_S = 1.2
WAIT_SCALE = 0.01


@asynccontextmanager
async def open_talker(
    settings: ExecutorSettings, bus: Bus, clock: Clock, circuits: Circuits
) -> AsyncGenerator[Talker]:
    assert settings.key is not None
    assert settings.model_id is not None
    endpoint = ModelSettings(settings.key, settings.base_url, settings.model_id, idle_timeout_s=IDLE_S)
    async with (
        open_model(endpoint, HurriedClock(WAIT_SCALE), {}, circuits=circuits) as model,
        sending(bus, clock) as live,
    ):
        yield Talker(model, settings.model_id, clock, live, PARK_S * WAIT_SCALE)


if __name__ == "__main__":
    start("executor", ExecutorSettings, partial(serve, outside=Outside(open_talker=open_talker)))
