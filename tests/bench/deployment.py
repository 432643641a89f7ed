"""Everything that is measured, running: the scripted model, the embedded server, five services, and who watches.

Invariant: the services run as `perdure up` runs them, with default settings but for the number of slots; what the bench
watches it watches on the bus, so that no watching client is part of a figure.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from deploy.dev.datafolder import Credentials
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.plan import SERVER, Plan
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import BusSettings, connect
from libs.bus.ports import Bus, Log
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts.run import TERMINAL
from tests.bench.model import ScriptedModel, scripted_model

# All 256 runs of the largest fleet are under way at once.
SLOTS = 256


class Ends:
    """How runs ended, by their `life` records."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._news = asyncio.Event()

    async def watch(self, log: Log) -> None:
        """Look on until cancelled."""
        async with log.wakeups() as wakeups:
            async for wakeup in wakeups:
                if wakeup.header_state in TERMINAL:
                    self._states[wakeup.key.log_id] = wakeup.header_state
                    self._news.set()

    async def wait(self, run_ids: Iterable[str], timeout_s: float) -> dict[str, str]:
        """How these runs ended; the ones that are not over in time are missing."""
        wanted = set(run_ids)
        try:
            async with asyncio.timeout(timeout_s):
                while not wanted <= self._states.keys():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        return {run_id: self._states[run_id] for run_id in wanted & self._states.keys()}


class Deployment(NamedTuple):
    """What the phases of the bench use."""

    model: ScriptedModel
    perdure: Launcher
    bus: Bus
    runs: Runs
    ends: Ends

    @property
    def access(self) -> Credentials:
        assert self.perdure.credentials is not None
        return self.perdure.credentials

    @property
    def pids(self) -> dict[str, int]:
        """The five services and the server, by name."""
        return self.perdure.pids

    @property
    def services(self) -> dict[str, int]:
        """The five services, by name."""
        return {name: pid for name, pid in self.pids.items() if name != SERVER}


@asynccontextmanager
async def deployment(folder: Path, script: bytes, log: MergedLog) -> AsyncGenerator[Deployment]:
    """Start everything in `folder`, which must lie on the disk that is to be measured."""
    clock, ends = SystemClock(), Ends()
    async with scripted_model(folder, script, log) as model:
        plan = Plan(data=folder / "data", environment=_environment(model.url), port=0)
        async with Launcher(plan, log) as perdure:
            access = perdure.credentials
            assert access is not None
            settings = BusSettings(
                url=access.url, user=access.user, password=access.password, creds=None, name="bench"
            )
            async with connect(settings, clock) as bus:
                watching = asyncio.create_task(ends.watch(bus.log), name="bench-ends")
                runs = Runs(
                    bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock
                )
                try:
                    yield Deployment(model, perdure, bus, runs, ends)
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)


def _environment(model_url: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "OPENAI_API_KEY": "the-scripted-model-takes-any",
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "MODEL_ID": "scripted",
        "MAX_CONCURRENT_RUNS_PER_REPLICA": str(SLOTS),
        # The longest single run is longer than the default of 50; a task may only lower the deployment's limits.
        "PERDURE_LIMITS": '{"max_iterations": 1000}',
    }
