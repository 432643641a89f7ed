"""How long a run stands still when what carries it is lost: an executor, a tool host, a server of the bus.

Invariant: the loss is real (SIGKILL, SIGSTOP) and the time is from just before the signal until the record that goes on
is seen in the log; what was lost comes back before the next try, and the tries fall anywhere between two renewals of a
lease.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec

from deploy.dev.plan import twice
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import connect
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.envelope import Record, decode_events
from libs.contracts.errors import InternalError
from tests.bench.appends import PREFIX, claimed
from tests.bench.figures import Row, spread
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.cluster import Deployment, three_nodes
from tests.fakes.waiting import PATIENCE_S

TENANT = "local"
# The default lease, and what a take-over may cost beyond it.
TAKEOVER_S = 3.0 + 1.0
RESTART_S = 1.5
# The patience of every append: a gap that is shorter than this nobody hears of.
GAP_S = 15.0
# More than fit into any try; the run is cancelled when it has gone on.
TURNS = 1_000
SCRIPT = {
    "[steps]": [
        *(calls(call("write_file", path="a.txt", content=str(n)), delay_s=0.05) for n in range(TURNS)),
        says("Done."),
    ]
}


async def takeover_rows(folder: Path, tries: int) -> list[Row]:
    """Everything, in a deployment of two of each and in a cluster of three servers."""
    folder.mkdir()
    rows = list[Row]()
    async with stage(folder, SCRIPT, services=twice()) as on, connect(on.bus, SystemClock()) as bus:
        losses = Losses(on, bus, tries)
        rows += [
            await losses.row("executor killed → the other goes on", TAKEOVER_S, losses.executor_killed),
            await losses.row("executor hung → the other goes on", TAKEOVER_S, losses.executor_hung),
            await losses.row("tool host killed → next result", TAKEOVER_S, losses.host_killed),
            await losses.row("only executor killed → it goes on", RESTART_S, losses.executor_restarted),
        ]
    rows.append(await _publish_gap(folder / "cluster", tries))
    return rows


class Losses:
    """Loses one process after the other, each under a run of its own."""

    def __init__(self, on: Stage, bus: Bus, tries: int) -> None:
        self._on, self._bus, self._tries = on, bus, tries
        self._numbers = iter(range(1_000))

    async def row(self, name: str, target_s: float, lose: Callable[[str], Awaitable[float]]) -> Row:
        """So many tries of one loss."""
        times = list[float]()
        for _ in range(self._tries):
            workspace = f"takeover-{next(self._numbers)}"
            self._on.workspace(workspace, {"run_tests.sh": "exit 0\n"})
            run_id = await self._on.submit("[steps]", workspace=workspace, limits={"max_iterations": 50})
            await self._on.until(run_id, lambda run: run.iteration >= 3)
            times.append(await lose(run_id))
            await self._on.client.cancel(run_id)
            await self._on.ended(run_id)
            await self._on.perdure.healthy(PATIENCE_S)
        return _row(name, target_s, times)

    async def executor_killed(self, run_id: str) -> float:
        victim = await self._owner(run_id)

        async def lose() -> None:
            await self._on.perdure.halt(victim)

        took_s = await self._until_claimed(run_id, lose)
        self._on.perdure.start(victim)
        return took_s

    async def executor_hung(self, run_id: str) -> float:
        victim = await self._owner(run_id)

        async def lose() -> None:
            self._on.perdure.kill(victim, signal.SIGSTOP)

        took_s = await self._until_claimed(run_id, lose)
        self._on.perdure.kill(victim)
        return took_s

    async def executor_restarted(self, run_id: str) -> float:
        victim = await self._owner(run_id)
        other = "executor" if victim != "executor" else "executor-2"
        await self._on.perdure.halt(other)

        async def lose() -> None:
            self._on.perdure.kill(victim)

        took_s = await self._until_claimed(run_id, lose)
        # A first death costs no pause; the launcher counts them, and begins anew with each new start.
        await self._on.perdure.halt(victim)
        for name in (victim, other):
            self._on.perdure.start(name)
        return took_s

    async def host_killed(self, run_id: str) -> float:
        """Until the first result of the host that took the workspace over."""
        attached = next(
            event for event in await self._on.events(run_id) if event.type == "workspace.attached"
        )
        victim = _child(str(attached.payload["replica"]))
        elsewhere = False

        def goes_on(record: Record) -> bool:
            nonlocal elsewhere
            for event in decode_events(record):
                if isinstance(event.body, e.WorkspaceAttached):
                    elsewhere = event.body.host != attached.payload["host"]
                elif isinstance(event.body, e.ToolCompleted) and elsewhere:
                    return True
            return False

        async def lose() -> None:
            await self._on.perdure.halt(victim)

        took_s = await self._until(run_id, lose, goes_on)
        self._on.perdure.start(victim)
        return took_s

    async def _until_claimed(self, run_id: str, lose: Callable[[], Awaitable[None]]) -> float:
        former = (await self._on.client.run(run_id)).lease.epoch

        def goes_on(record: Record) -> bool:
            return (record.header.epoch or 0) > former

        return await self._until(run_id, lose, goes_on)

    async def _until(
        self, run_id: str, lose: Callable[[], Awaitable[None]], goes_on: Callable[[Record], bool]
    ) -> float:
        key = LogKey(TENANT, run_id)
        tail = await self._bus.log.tail(key)
        assert tail is not None
        async with (
            asyncio.timeout(PATIENCE_S),
            self._bus.log.follow(key, tail.header.stream_sequence) as records,
        ):
            seen = asyncio.create_task(_first(records, goes_on))
            began = time.monotonic()
            await lose()
            return await seen - began

    async def _owner(self, run_id: str) -> str:
        owner = (await self._on.client.run(run_id)).lease.owner
        assert owner is not None
        return _child(owner)


async def _first(records: AsyncIterator[Record], goes_on: Callable[[Record], bool]) -> float:
    """When the first record that says so was seen."""
    async for record in records:
        if goes_on(record):
            return time.monotonic()
    raise InternalError("a follow ended by itself")


async def _publish_gap(folder: Path, tries: int) -> Row:
    """From the loss of the log's leader until the next append is acknowledged."""
    clock, times = SystemClock(), list[float]()
    async with three_nodes(folder) as cluster, connect(cluster.settings(PREFIX), clock) as bus:
        await bus.ensure_topology()
        runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
        folded = await claimed(runs, clock)
        for number in range(tries):
            leader = int((await _info(bus)).cluster.leader.removeprefix("n"))
            folded = await runs.commit(folded, [e.MessageReceived(text=f"before {number}", by="bench")])
            began = time.monotonic()
            await cluster.servers[leader].kill()
            folded = await runs.commit(folded, [e.MessageReceived(text="after", by="bench")])
            times.append(time.monotonic() - began)
            await _whole(cluster, bus, leader)
    return _row("leader of three servers killed → append", GAP_S, times)


class _Peer(msgspec.Struct):
    current: bool = False


class _Cluster(msgspec.Struct):
    leader: str = ""
    replicas: list[_Peer] = []


class _Info(msgspec.Struct):
    cluster: _Cluster


async def _info(bus: Bus) -> _Info:
    answer = await bus.wire.request(f"$JS.API.STREAM.INFO.{PREFIX}-log-0", b"", timeout_s=5.0)
    return msgspec.json.decode(answer, type=_Info)


async def _whole(cluster: Deployment, bus: Bus, lost: int) -> None:
    """Bring the server back and wait until it has caught up."""
    await cluster.servers[lost].start()
    async with asyncio.timeout(PATIENCE_S):
        while not all(peer.current for peer in (await _info(bus)).cluster.replicas):
            await asyncio.sleep(0.1)


def _row(name: str, target_s: float, times: list[float]) -> Row:
    seen = spread(times)
    return Row(
        name=f"{name}, median",
        value=seen.p50,
        unit="s",
        target=target_s,
        note=f"{seen.values} tries, {min(times):.2f} to {seen.largest:.2f} s",
    )


def _child(replica: str) -> str:
    """What the launcher calls the process with this replica id."""
    return replica.removesuffix("-1")
