"""One run at a time: how soon it starts, what an iteration takes, and how soon a watching client sees an append.

Invariant: nothing else runs meanwhile; the plain loop and Perdure take turns, so that drift shows in both.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from libs.bus.ports import LogKey
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import decode_events
from libs.contracts.errors import InternalError
from libs.contracts.events import MessageReceived, ModelCompleted, ToolCompleted
from tests.bench import work
from tests.bench.deployment import Deployment
from tests.bench.figures import Row, spread, steps_ms
from tests.bench.floors import plain_loop
from tests.bench.http_wire import Answered, Connection, connected
from tests.bench.processes import CpuMeter

# A single run that takes longer than this hangs.
RUN_S = 60.0
_TENANT = "local"


def created(answered: Answered) -> str:
    """The run of an answered POST."""
    if answered.status != 201:
        raise InternalError(f"POST /api/tasks answered {answered.status}: {answered.body[:500]!r}")
    return msgspec.json.decode(answered.body, type=_Created).run_id


class _Created(msgspec.Struct):
    run_id: str


async def one_run(here: Deployment, gateway: Connection, iterations: int) -> tuple[str, float, float]:
    """Run a task to its end. Returns the run, and when the POST was sent and answered."""
    sent = time.monotonic()
    answered = await gateway.send("POST", "/api/tasks", work.task(iterations))
    run_id = created(answered)
    ended = await here.ends.wait([run_id], RUN_S)
    if ended.get(run_id) != "COMPLETED":
        raise InternalError(f"{run_id} did not complete: {ended.get(run_id, 'still running')}")
    return run_id, sent, answered.at


async def starts(here: Deployment, count: int) -> tuple[list[Row], dict[str, float]]:
    """From the answer to a POST until the model is asked; runs of no iterations, one after the other.

    Also returns the CPU milliseconds a run of each process.
    """
    plain = await plain_loop(here.model, runs=count, iterations=0, at_once=1)
    floor = spread(
        [(asked.at - began) * 1000 for asked, began in zip(plain.asked, plain.report.began_s, strict=True)]
    )
    async with connected(here.perdure.url) as gateway:
        for _ in range(work.WARM_UPS):
            await one_run(here, gateway, 0)
        await here.model.forget()
        cpu = CpuMeter(here.pids)
        times = [(await one_run(here, gateway, 0))[1:] for _ in range(count)]
        spent_ms = {name: seconds * 1000 / count for name, seconds in cpu.spent_s().items()}
    asked = await here.model.asked()
    if len(asked) != count:
        raise InternalError(f"{count} runs of one turn asked the model {len(asked)} times")
    answered_to_model = spread(
        [(one.at - answered) * 1000 for one, (_, answered) in zip(asked, times, strict=True)]
    )
    post = spread([(answered - sent) * 1000 for sent, answered in times])
    rows = [
        Row(
            name="POST answered → model asked p50",
            value=answered_to_model.p50,
            unit="ms",
            target=12,
            floor=floor.p50,
            note=f"{count} starts; plain loop: call → model asked",
        ),
        Row(
            name="POST answered → model asked p99",
            value=answered_to_model.p99,
            unit="ms",
            floor=floor.p99,
        ),
        Row(name="POST p50", value=post.p50, unit="ms", note="sent → answered, the run is in the log"),
        Row(
            name="CPU of a run without iterations",
            value=sum(spent_ms.values()),
            unit="ms",
            note="created, claimed, answered, verified, ended; all six processes",
        ),
    ]
    return rows, spent_ms


async def iterations(here: Deployment, rounds: int, length: int) -> tuple[list[Row], dict[str, float]]:
    """A whole iteration with one run: the model called, the tool called, both recorded.

    Also returns the CPU milliseconds an iteration of each process.
    """
    plain: list[float] = []
    durable: list[float] = []
    halves: list[_Halves] = []
    spent_ms: dict[str, float] = {}
    async with connected(here.perdure.url) as gateway:
        for _ in range(rounds):
            loop = await plain_loop(here.model, runs=1, iterations=length, at_once=1)
            plain += steps_ms([asked.at for asked in loop.asked])
            await here.model.forget()
            cpu = CpuMeter(here.pids)
            run_id, _, _ = await one_run(here, gateway, length)
            for name, seconds in cpu.spent_s().items():
                spent_ms[name] = spent_ms.get(name, 0.0) + seconds * 1000 / (rounds * length)
            durable += steps_ms([asked.at for asked in await here.model.asked()])
            halves += await _halves(here, run_id)
    whole, floor = spread(durable), spread(plain)
    short, short_floor = (
        spread([step for index, step in enumerate(steps) if index % length < 10])
        for steps in (durable, plain)
    )
    rows = [
        Row(
            name="iteration p50, one run",
            value=whole.p50,
            unit="ms",
            target=14,
            floor=floor.p50,
            note=f"{rounds} runs of {length} in turns with the plain loop",
        ),
        Row(name="iteration p99, one run", value=whole.p99, unit="ms", floor=floor.p99),
        Row(
            name="  its first ten, p50",
            value=short.p50,
            unit="ms",
            floor=short_floor.p50,
            note="a short history",
        ),
        *_half_rows(halves),
        Row(
            name="CPU an iteration, one run",
            value=sum(spent_ms.values()),
            unit="ms",
            target=14,
            note="five services and NATS, whole runs",
        ),
    ]
    return rows, spent_ms


class _Halves(NamedTuple):
    """The two records of an iteration, as their times tell (milliseconds): from the model's turn to the result of its
    call, and from there to the next turn; and what of each the tool and the model call took by themselves."""

    tool_ms: float
    model_ms: float
    tool_own_ms: float
    model_own_ms: float


async def _halves(here: Deployment, run_id: str) -> list[_Halves]:
    found: list[_Halves] = []
    turn_s = result_s = tool_ms = own_ms = 0.0
    for record in await here.bus.log.read(LogKey(_TENANT, run_id)):
        for event in decode_events(record):
            at_s = parse_rfc3339(event.at).timestamp()
            match event.body:
                case ModelCompleted(latency_ms=latency_ms):
                    if result_s:
                        found.append(_Halves(tool_ms, (at_s - result_s) * 1000, own_ms, latency_ms))
                    turn_s = at_s
                case ToolCompleted(duration_ms=duration_ms):
                    result_s, own_ms = at_s, duration_ms
                    tool_ms = (result_s - turn_s) * 1000
                case _:
                    pass
    return found


def _half_rows(halves: Sequence[_Halves]) -> list[Row]:
    """Means, because the times of events are whole milliseconds."""
    tool, model, tool_own, model_own = (spread(values).mean for values in zip(*halves, strict=True))
    return [
        Row(
            name="  turn appended, tool called, mean",
            value=tool,
            unit="ms",
            note=f"of it {tool_own:.1f} ms measured as the tool's",
        ),
        Row(
            name="  result appended, model called, mean",
            value=model,
            unit="ms",
            note=f"of it {model_own:.1f} ms measured as the model's",
        ),
    ]


async def stream(here: Deployment, count: int, publish_ms: float) -> list[Row]:
    """From an append until its event is read by a client of the stream; the bench appends, one after the other."""
    runs = here.runs
    async with connected(here.perdure.url) as gateway, connected(here.perdure.url) as client:
        run_id = created(await gateway.send("POST", "/api/tasks", work.task(0, start=False)))
        folded = await runs.load(_TENANT, run_id)
        events = client.stream(f"/api/runs/{run_id}/stream?deltas=false")
        await _seen(events, folded.state.sequence)
        from_call: list[float] = []
        from_ack: list[float] = []
        for _ in range(count):
            called = time.monotonic()
            folded = await runs.commit(folded, [MessageReceived(text=work.ECHO_TEXT, by="bench")])
            acknowledged = time.monotonic()
            read = await _seen(events, folded.state.sequence)
            from_call.append((read - called) * 1000)
            from_ack.append((read - acknowledged) * 1000)
    whole, behind = spread(from_call), spread(from_ack)
    return [
        Row(
            name="append → SSE client p50",
            value=whole.p50,
            unit="ms",
            target=5,
            floor=publish_ms,
            note=f"{count} appends, from the call; from the acknowledgement {behind.p50:.2f} ms",
        ),
        Row(name="append → SSE client p99", value=whole.p99, unit="ms"),
    ]


async def _seen(events: asyncio.Queue[tuple[int, float]], sequence: int) -> float:
    """When the event was read."""
    async with asyncio.timeout(RUN_S):
        while True:
            found, at = await events.get()
            if found == sequence:
                return at
