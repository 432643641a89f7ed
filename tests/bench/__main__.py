"""`make bench`: measure, print a table, keep the figures as JSON in `bench-results/`.

    python -m tests.bench [--quick] [--out FOLDER]

Invariant: a missed target is marked and is no failure; only a bench that could not measure exits with 1.
"""

import argparse
import asyncio
import logging
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from os import cpu_count, getloadavg
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

from deploy.dev.mergedlog import MergedLog
from libs.chassis.clock import SystemClock
from libs.contracts.clock import rfc3339
from libs.contracts.errors import PerdureError
from tests.bench import work
from tests.bench.appends import appends
from tests.bench.deployment import Deployment, deployment
from tests.bench.figures import Row, publishes, table
from tests.bench.fleet import fleet_rows
from tests.bench.held import held_rows
from tests.bench.processes import rss_mb
from tests.bench.single import iterations, starts, stream
from tests.bench.streaming import streaming_rows
from tests.bench.takeover import takeover_rows
from tests.bench.tools import tool_rows

_RSS_GATEWAY_MB, _RSS_SUM_MB = 90, 450


class Sizes(NamedTuple):
    """How much is measured: (runs, iterations each) for the fleets, counts for the rest."""

    append_rounds: int
    starts: int
    single: tuple[int, int]
    streamed: int
    fleets: tuple[tuple[int, int], ...]
    losses: int
    held: int
    tools: int


FULL = Sizes(
    append_rounds=500,
    starts=60,
    single=(4, 50),
    streamed=300,
    fleets=((1, 50), (64, 20), (256, 10)),
    losses=5,
    held=2_000,
    tools=200,
)
QUICK = Sizes(
    append_rounds=150,
    starts=20,
    single=(2, 30),
    streamed=100,
    fleets=((1, 30), (64, 8), (256, 3)),
    losses=1,
    held=200,
    tools=50,
)
# A bench that is not through by then hangs.
_WATCHDOG_S = 1200.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a bench."""

    at: str
    quick: bool
    machine: dict[str, str | float]
    publish_ms: float
    rows: list[dict[str, object]]
    cpu_ms: dict[str, dict[str, float]]
    rss_mb: dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description="What Perdure costs.")
    parser.add_argument("--quick", action="store_true", help="less of everything, two to three minutes")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="where figures are kept")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    # Beside the results and not in a temporary folder: that may lie in memory, where a sync costs nothing.
    folder = Path(tempfile.mkdtemp(prefix="data-", dir=out)).absolute()
    # What the bus says while the server goes away at the end is no news; the services' own logs are kept.
    logging.getLogger("perdure").addHandler(logging.NullHandler())
    log = MergedLog((out / "bench.log").open("w", encoding="utf-8"), readable=False)
    try:
        result = uvloop.run(_measured(QUICK if options.quick else FULL, folder, log, quick=options.quick))
    except (PerdureError, TimeoutError) as error:
        sys.stderr.write(f"bench: {error or 'not done in time'}; all logs are in {out / 'bench.log'}\n")
        sys.exit(1)
    finally:
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
    path = out / f"{result.at.replace(':', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    print(f"figures: {path}")


async def _measured(sizes: Sizes, folder: Path, log: MergedLog, *, quick: bool) -> Result:
    before = getloadavg()[0]
    lengths = {0, sizes.single[1], *(length for _, length in sizes.fleets)}
    rows: list[Row] = []
    cpu_ms: dict[str, dict[str, float]] = {}
    async with asyncio.timeout(_WATCHDOG_S), deployment(folder, work.script(lengths), log) as here:
        rss = {"at rest": _rss(here)}
        _say("appends")
        written = await appends(here.access, sizes.append_rounds)
        rows += written.rows
        _say("starts")
        found, cpu_ms["a mere run"] = await starts(here, sizes.starts)
        rows += found
        _say("iterations of one run")
        found, cpu_ms["one run"] = await iterations(here, *sizes.single)
        rows += found
        _say("stream")
        rows += await stream(here, sizes.streamed, written.publish_ms)
        for runs, length in sizes.fleets:
            _say(f"{runs} at once, {length} iterations each")
            found, cpu_ms[f"{runs} at once"] = await fleet_rows(here, runs, length)
            rows += found
            rss[f"after {runs}"] = _rss(here)
    rows += _memory(rss)
    _say("tools")
    rows += await tool_rows(folder / "tools", sizes.tools)
    _say("losses")
    rows += await takeover_rows(folder / "losses", sizes.losses)
    _say("deltas and arguments")
    rows += await streaming_rows(folder / "streaming")
    _say(f"{sizes.held} runs held")
    rows += await held_rows(folder / "held", sizes.held)
    _say("")
    machine = {"cpus": float(cpu_count() or 0), "python": platform.python_version(), "load_before": before}
    _show(rows, cpu_ms, rss, written.publish_ms, machine)
    return Result(
        at=rfc3339(SystemClock().now()),
        quick=quick,
        machine=machine,
        publish_ms=written.publish_ms,
        rows=[_kept(row, written.publish_ms) for row in rows],
        cpu_ms=cpu_ms,
        rss_mb=rss,
    )


def _rss(here: Deployment) -> dict[str, float]:
    return {name: rss_mb(pid) for name, pid in here.pids.items()}


def _memory(rss: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The most that was seen between phases."""
    gateway = max(seen["gateway"] for seen in rss.values())
    five = max(sum(mb for name, mb in seen.items() if name != "nats") for seen in rss.values())
    return [
        Row(name="RSS of the gateway", value=gateway, unit="MB", target=_RSS_GATEWAY_MB),
        Row(name="RSS of the five services", value=five, unit="MB", target=_RSS_SUM_MB),
    ]


def _kept(row: Row, publish_ms: float) -> dict[str, object]:
    """A row as JSON, with what follows from it."""
    return {
        **msgspec.to_builtins(row),
        "ratio": row.ratio,
        "met": row.met,
        "publishes": publishes(row, publish_ms),
    }


def _show(
    rows: list[Row],
    cpu_ms: Mapping[str, Mapping[str, float]],
    rss: Mapping[str, Mapping[str, float]],
    publish_ms: float,
    machine: Mapping[str, str | float],
) -> None:
    print(
        f"{machine['cpus']:.0f} CPUs, Python {machine['python']}, load {machine['load_before']:.1f} at start\n"
    )
    print(table(rows, publish_ms))
    print("\nCPU ms by process, of an iteration and of a run without any")
    _by_process(cpu_ms, ".2f")
    print("\nresident MB, by process")
    _by_process(rss, ".0f")
    missed = [row.name.strip() for row in rows if row.met is False]
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall targets met")


def _by_process(figures: Mapping[str, Mapping[str, float]], form: str) -> None:
    names = list(next(iter(figures.values())))
    print("  " + " ".join(f"{name:>10}" for name in ("", *names, "all")))
    for phase, values in figures.items():
        numbers = [*(values[name] for name in names), sum(values.values())]
        print(f"  {phase:>10} " + " ".join(f"{number:>10{form}}" for number in numbers))


def _say(phase: str) -> None:
    """What is being measured, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{phase}\r")


if __name__ == "__main__":
    main()
