"""One round of chaos from start to verdict.

Invariant: the same seed makes the same load and the same choice of faults; what it started is gone when it ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from deploy.dev.nats_server import NatsServer
from deploy.dev.plan import SERVICES, Service, twice
from libs.bus.connection import connect
from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable
from libs.contracts.ids import is_id
from tests.chaos.faults import Fault, Faults
from tests.chaos.load import SCRIPT, Load
from tests.chaos.verdict import Finding, Observed, findings, table
from tests.e2e.stage import Stage, stage
from tests.fakes.cluster import Deployment, one_node, three_nodes

COUNTING_HOST = Service(name="countinghost", argv=(sys.executable, "-m", "tests.fakes.counting_host"))
# After the last fault everything has to end by itself: the longest wait of all is for a call of a dead host, 30 s
# after its timeout, and nothing here has one above a minute.
SETTLE_S = 150.0
PREFIX = "perdure"


class Chaos(NamedTuple):
    """What is to be done."""

    seconds: float
    seed: int
    nodes: int = 3
    runs: int = 50


class Report(NamedTuple):
    """What came of it."""

    findings: list[Finding]
    faults: list[Fault]
    table: str


async def drive(folder: Path, chaos: Chaos) -> Report:
    """Start everything below `folder`, make faults for a time, let it settle, judge."""
    async with _deployment(folder, chaos.nodes) as (on, servers):
        load = Load(on.perdure.urls, on.data / "workspaces", Random(chaos.seed))
        faults = Faults(on.perdure, servers, Random(chaos.seed + 1), partial(_delete, servers))
        stop = asyncio.Event()
        keeping = asyncio.create_task(load.keep(chaos.runs, stop))
        faulting = asyncio.create_task(faults.run(stop))
        try:
            await asyncio.wait(
                {keeping, faulting}, timeout=chaos.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            stop.set()
            await faulting
            await asyncio.wait({keeping}, timeout=SETTLE_S)
            if keeping.done():
                keeping.result()
        finally:
            keeping.cancel()
            faulting.cancel()
            await asyncio.gather(keeping, faulting, return_exceptions=True)
            await load.close()
        seen = await _observed(on, servers, load)
    told = "".join(f"{f.at} {f.kind} {f.victim} {f.seconds:.1f}\n" for f in faults.made)
    (folder / "faults").write_text(told)
    found = [*findings(seen), *_defects(folder / "perdure.log", load)]
    return Report(found, faults.made, table(found, seen, faults.made))


@asynccontextmanager
async def _deployment(folder: Path, nodes: int) -> AsyncGenerator[tuple[Stage, list[NatsServer]]]:
    start = one_node if nodes == 1 else three_nodes
    async with start(folder / "nats") as deployment:
        environment = {**_access(deployment), "COUNTING_FOLDER": str(folder)}
        services = twice((*SERVICES, COUNTING_HOST))
        async with stage(
            folder, SCRIPT, environment, services=services, nats_url=deployment.address.url
        ) as on:
            yield on, deployment.servers


def _access(deployment: Deployment) -> dict[str, str]:
    address = deployment.address
    return {
        "NATS_USER": address.user,
        "NATS_PASSWORD": address.password,
        "NATS_MONITOR_URL": address.monitor_url,
        "PERDURE_REPLICAS": str(deployment.replicas),
    }


async def _delete(servers: list[NatsServer], name: str) -> None:
    """Delete a stream; a server that is just away makes it no fault at all."""
    try:
        async with connect(Deployment(servers).settings(PREFIX), SystemClock()) as bus:
            await bus.wire.request(f"$JS.API.STREAM.DELETE.{name}", b"", timeout_s=5.0)
    except BusUnavailable:
        return


async def _observed(on: Stage, servers: list[NatsServer], load: Load) -> Observed:
    settings = Deployment(servers).settings(PREFIX)
    async with connect(settings, SystemClock()) as bus:
        keys = await _runs(bus)
        logs = {key: await bus.log.read(key) for key in keys}
    effects = on.data.parent / "effects"
    lines = effects.read_text().splitlines() if effects.exists() else []
    answered = sum(len(run.answers) for run in (*load.accepted.values(), *load.children.values()))
    return Observed(load.accepted, logs, lines, on.data / "workspaces", load.open, answered)


async def _runs(bus: Bus) -> list[LogKey]:
    """Every run that the log knows: those that clients made, and their children."""
    answer = await bus.wire.request(
        f"$JS.API.STREAM.INFO.{PREFIX}-log-0", b'{"subjects_filter": ">"}', timeout_s=10.0
    )
    subjects = msgspec.json.decode(answer)["state"]["subjects"]
    found = {(tokens[3], tokens[4]) for subject in subjects if len(tokens := subject.split(".")) == 6}
    return [LogKey(tenant, log_id) for tenant, log_id in sorted(found) if is_id("run", log_id)]


def _defects(log: Path, load: Load) -> list[Finding]:
    """What no fault excuses: tracebacks, and answers of the gateway that blame itself."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "Traceback" in line]
    found = [Finding("defect", "-", line[:300]) for line in lines[:5]]
    if internal := load.refused.count("INTERNAL_ERROR"):
        found.append(Finding("defect", "-", f"{internal} requests were answered with INTERNAL_ERROR"))
    return found
