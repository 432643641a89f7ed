"""A gateway with a thousand clients: how late events come and where they spend that time, what it takes, and whether a
client that stands still matters.

Invariant: late is counted from before an append is sent, in the writer's process, to the kernel's stamp at the sockets of
the clients; the gateway is a process of its own, as `perdure up` runs it. The full form is `python -m tests.bench.streams`.
"""

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from deploy.dev.plan import SERVICES
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.contracts.events import LogEvent
from libs.contracts.http import TaskCreate
from services.gateway.server import make_room
from tests.bench.figures import Row, percentile, table
from tests.bench.processes import CpuMeter, rss_mb
from tests.bench.streamclients import Feed, Heard, Task
from tests.e2e.stage import stage
from tests.service.gateway_served import Owner

LATE_MS = 100.0
RSS_MB = 250.0
# A turn of `Owner` is four events in three records.
TURN_EVENTS = 4
PATIENCE_S = 240.0
# What the clients say at the end is one line: 50 bytes for each event that one of them got.
LINE_BYTES_MAX = 256 * 1024 * 1024


class Sizes(NamedTuple):
    """`events_a_second` is the sum over all runs."""

    runs: int
    clients: int
    turns: int
    events_a_second: float


FULL = Sizes(runs=100, clients=10, turns=30, events_a_second=500)


class Cost(NamedTuple):
    """What the gateway took, in MB and shares of a core, for so many events a second."""

    rate: float
    mb: float
    cpu: float


class Seen(NamedTuple):
    """What came of it. All times are in milliseconds and sorted.

    `late` is from the beginning of an append to a client's socket, `beside` the same of the clients beside the frozen one.
    Its parts: to the `ack`, to the `feed` at a listener's socket, from there `through` the gateway to a client's. `read` is
    what the clients of the bench need beyond. `missing` counts clients that did not get each event once and in order.
    """

    late: Sequence[float]
    beside: Sequence[float]
    ack: Sequence[float]
    feed: Sequence[float]
    through: Sequence[float]
    read: Sequence[float]
    missing: int
    cost: Cost


class Append(NamedTuple):
    """When the append of an event began and when it was acknowledged."""

    begun_s: float
    acked_s: float


class TimedOwner(Owner):
    """Remembers the append of each event, by its sequence."""

    def __init__(self, bus: Bus, runs: Runs, folded: Folded) -> None:
        super().__init__(bus, runs, folded)
        self.appends: dict[int, Append] = {}

    async def write(self, *bodies: LogEvent) -> None:
        clock, before = asyncio.get_running_loop().time, self.folded.state.sequence
        begun_s = clock()
        await super().write(*bodies)
        times = Append(begun_s, clock())
        self.appends.update(dict.fromkeys(range(before + 1, self.folded.state.sequence + 1), times))


async def measured(folder: Path, sizes: Sizes) -> Seen:
    """Write `sizes.runs` runs at once while `sizes.clients` watch each of them, and one more, frozen, the first."""
    # For the process of the clients, which begins with the limits of this one.
    make_room()
    async with (
        asyncio.timeout(PATIENCE_S),
        stage(folder, {}, services=SERVICES[:1]) as on,
        connect(on.bus, SystemClock()) as bus,
    ):
        tasks = [TaskCreate(goal=f"stream {number}") for number in range(sizes.runs)]
        runs = [(await on.client.create_task(task)).run_id for task in tasks]
        owners = [await TimedOwner.of(bus, run_id) for run_id in runs]
        server = urlsplit(on.bus.url)
        feed = Feed(
            host=server.hostname or "127.0.0.1",
            port=server.port or 4222,
            user=on.bus.user,
            password=on.bus.password,
            subject=bus.subjects.feed("local", "*"),
        )
        task = Task(port=on.perdure.port, clients=sizes.clients, runs=runs, feed=feed)
        async with _watching(task) as clients:
            pid = on.perdure.pids["gateway"]
            meter = CpuMeter({"gateway": pid})
            took_s = await _written(owners, sizes)
            rate = sum(len(owner.appends) for owner in owners) / took_s
            cost = Cost(rate, rss_mb(pid), meter.spent_s()["gateway"] / took_s)
            assert clients.stdout is not None
            heard = msgspec.json.decode(await clients.stdout.readline(), type=Heard)
        return _seen(owners, sizes, heard, cost)


@asynccontextmanager
async def _watching(task: Task) -> AsyncGenerator[Process]:
    """The process of the clients, once all are connected."""
    clients = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.streamclients"), stdin=PIPE, stdout=PIPE, limit=LINE_BYTES_MAX
    )
    try:
        assert clients.stdin is not None
        assert clients.stdout is not None
        clients.stdin.write(msgspec.json.encode(task) + b"\n")
        assert await clients.stdout.readline() == b"ready\n"
        yield clients
    finally:
        if clients.returncode is None:
            clients.kill()
        await clients.wait()


async def _written(owners: list[TimedOwner], sizes: Sizes) -> float:
    """Write all runs at the wanted rate, evenly spread; the seconds that it took."""
    clock = asyncio.get_running_loop().time
    pace_s, began_s = sizes.runs * TURN_EVENTS / sizes.events_a_second, clock()
    await asyncio.gather(
        *(
            _write(owner, sizes.turns, pace_s, start_s=pace_s * number / sizes.runs)
            for number, owner in enumerate(owners)
        )
    )
    return clock() - began_s


async def _write(owner: TimedOwner, turns: int, pace_s: float, *, start_s: float) -> None:
    """Write one run. A writer that is late does not catch up."""
    clock = asyncio.get_running_loop().time
    owner.appends.clear()
    await asyncio.sleep(start_s)
    for turn in range(1, turns + 1):
        due_s = clock() + pace_s
        await owner.turn(turn)
        await asyncio.sleep(max(0.0, due_s - clock()))
    await owner.complete()


def _seen(owners: list[TimedOwner], sizes: Sizes, heard: Heard, cost: Cost) -> Seen:
    """The times of all that was heard. An event may come to a listener before its writer has the ack."""
    fed_s = {
        (fed.run, sequence): fed.arrived_s
        for fed in heard.fed
        for sequence in range(fed.first, fed.first + fed.events)
    }
    late: list[float] = []
    beside: list[float] = []
    through: list[float] = []
    read: list[float] = []
    got: list[list[int]] = [[] for _ in range(sizes.runs * sizes.clients)]
    for frame in heard.frames:
        got[frame.client].append(frame.sequence)
        run = frame.client // sizes.clients
        append = owners[run].appends.get(frame.sequence)
        if append is None:
            # It was there before anybody came.
            continue
        late.append((frame.arrived_s - append.begun_s) * 1000)
        through.append((frame.arrived_s - fed_s[run, frame.sequence]) * 1000)
        read.append((frame.read_s - frame.arrived_s) * 1000)
        if run == 0:
            beside.append(late[-1])
    appends = [(run, *one) for run, owner in enumerate(owners) for one in owner.appends.items()]
    return Seen(
        late=sorted(late),
        beside=sorted(beside),
        ack=sorted((append.acked_s - append.begun_s) * 1000 for _, _, append in appends),
        feed=sorted((fed_s[run, sequence] - append.begun_s) * 1000 for run, sequence, append in appends),
        through=sorted(through),
        read=sorted(read),
        missing=sum(
            seen != list(range(1, max(owners[number // sizes.clients].appends) + 1))
            for number, seen in enumerate(got)
        ),
        cost=cost,
    )


def rows(seen: Seen, sizes: Sizes) -> list[Row]:
    clients = sizes.runs * sizes.clients
    return [
        _late(
            f"append to the sockets of {clients:,} clients, p99",
            seen.late,
            LATE_MS,
            f"{seen.cost.rate:.0f} events/s on {sizes.runs} runs; {seen.missing} clients without every event once",
        ),
        _late("  of the clients beside a frozen one", seen.beside, LATE_MS),
        _late("  append to its ack", seen.ack),
        _late("  append to the feed", seen.feed),
        _late("  from the feed through the gateway", seen.through),
        _late("  (and until the bench has read it)", seen.read),
        Row(
            name=f"RSS of a gateway with {clients:,} clients",
            value=seen.cost.mb,
            unit="MB",
            target=RSS_MB,
            note=f"{seen.cost.cpu * 100:.0f} % of a core",
        ),
    ]


def _late(name: str, times_ms: Sequence[float], target: float | None = None, note: str = "") -> Row:
    spread = f"p50 {percentile(times_ms, 0.5):.1f}, worst {times_ms[-1]:.0f} ms"
    return Row(
        name=name,
        value=percentile(times_ms, 0.99),
        unit="ms",
        target=target,
        note=f"{spread}; {note}" if note else spread,
    )


async def _main() -> None:
    before = os.getloadavg()[0]
    # Not in a temporary folder: that may lie in memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(dir=".", prefix="bench-results-") as folder:
        seen = await measured(Path(folder).resolve(), FULL)
    print(table(rows(seen, FULL), 1.0))
    print(f"load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} cores")
    assert not seen.missing, f"{seen.missing} clients did not get every event once and in order"


if __name__ == "__main__":
    asyncio.run(_main())
