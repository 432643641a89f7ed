"""The durable append against its floor: a raw publish with its acknowledgement, in turns in the same loop.

Invariant: both go to the same server over connections of the same process, one after the other, with the same body, so
whatever drifts, drifts for both.
"""

import time
from typing import NamedTuple

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from deploy.dev.datafolder import Credentials
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import BusSettings, connect
from libs.bus.ports import Bus, Draft, LogKey
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event, encode_record
from libs.contracts.events import (
    LogEvent,
    ModelCompleted,
    ModelRequested,
    RunClaimed,
    RunCreated,
    RunStartRequested,
    ToolCompleted,
    ToolRequested,
)
from libs.contracts.ids import call_id, random_run_id, task_id_of
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics
from libs.contracts.values import ModelToolCall, Usage
from tests.bench import work
from tests.bench.figures import Row, spread

# The bench's own logs, beside those of the services that are running.
PREFIX = "bench"
_TENANT = "bench"
_FLOOR = "benchfloor"
# The target: a fence, a header and a fold may cost less than a third of a plain write.
APPEND_RATIO = 1.3
# The first appends and publishes pay for what every later one finds warm.
_WARM_UP = 20


def turn(iteration: int) -> list[LogEvent]:
    """The first record of an iteration: the model's turn and the intent of its call."""
    arguments: dict[str, object] = {"text": work.ECHO_TEXT}
    call = ModelToolCall(call_id=call_id(iteration, 0), name="echo", arguments=arguments)
    usage = Usage(requests=1, input_tokens=2500, output_tokens=40, cost_usd=None)
    return [
        ModelCompleted(
            iteration=iteration,
            content="",
            tool_calls=[call],
            finish_reason="tool_calls",
            usage=usage,
            latency_ms=2,
            model="scripted",
        ),
        ToolRequested(
            call_id=call.call_id,
            name="echo",
            arguments=arguments,
            semantics=Semantics.READ_ONLY,
            idempotency_key=f"{call.call_id}-1",
        ),
    ]


def result(iteration: int) -> list[LogEvent]:
    """The second record: the result and the intent of the next model call."""
    return [
        ToolCompleted(call_id=call_id(iteration, 0), ok=True, output=work.ECHO_TEXT, duration_ms=1),
        ModelRequested(
            iteration=iteration + 1, model="scripted", message_count=2 * iteration + 2, estimated_tokens=2500
        ),
    ]


class Appends(NamedTuple):
    """The rows, and the median of the raw publish, which everything else is set against."""

    rows: list[Row]
    publish_ms: float


async def appends(access: Credentials, rounds: int) -> Appends:
    """Measure `rounds` iterations' worth of records: two commits, two appends and two raw publishes each."""
    clock = SystemClock()
    settings = BusSettings(
        url=access.url, user=access.user, password=access.password, creds=None, prefix=PREFIX, name="bench"
    )
    client = Client()
    await client.connect(access.url, user=access.user, password=access.password)
    try:
        async with connect(settings, clock) as bus:
            await bus.ensure_topology()
            raw = JetStreamContext(client)
            # The client leaves its keywords untyped.
            await raw.add_stream(StreamConfig(name=_FLOOR, subjects=[f"{_FLOOR}.*"]))  # pyright: ignore[reportUnknownMemberType]
            return _rows(*await _alternate(raw, bus, clock, rounds))
    finally:
        await client.close()


class _Times(NamedTuple):
    publish: list[float]
    append: list[float]
    commit: list[float]


async def _alternate(
    raw: JetStreamContext, bus: Bus, clock: SystemClock, rounds: int
) -> tuple[_Times, list[int]]:
    """Seconds of each kind of write, and the sizes of what was written."""
    runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
    folded, draft_on = await claimed(runs, clock), await claimed(runs, clock)
    times, sizes = _Times([], [], []), list[int]()
    last, sequence = draft_on.last, draft_on.state.sequence
    for number in range(2 * rounds + _WARM_UP):
        iteration, second = number // 2 + 1, number % 2
        bodies = result(iteration) if second else turn(iteration)
        at, run_id = rfc3339(clock.now()), draft_on.state.run_id
        events = [Event(sequence + 1 + index, run_id, at, body) for index, body in enumerate(bodies)]
        body = encode_record(events)

        draft = Draft(LogKey(_TENANT, run_id), last, events, 1, draft_on.state.status)
        # Who comes first changes, so that nobody is always the one behind another's flush.
        for kind in (0, 1, 2) if number % 4 < 2 else (2, 1, 0):
            began = time.perf_counter()
            if kind == 0:
                await raw.publish(f"{_FLOOR}.{run_id}", body)
            elif kind == 1:
                last = (await bus.log.append(draft)).header.stream_sequence
            else:
                folded = await runs.commit(folded, bodies)
            if number >= _WARM_UP:
                times[kind].append(time.perf_counter() - began)
        sequence = events[-1].sequence
        sizes.append(len(body))
    return times, sizes


async def claimed(runs: Runs, clock: SystemClock) -> Folded:
    """A fresh run that the bench owns, its first model call requested."""
    run_id = random_run_id(clock, 0)
    created = RunCreated(
        tenant=_TENANT,
        task_id=task_id_of(run_id),
        task=TaskSpec(goal=work.goal(0)),
        limits=Limits(),
        workspace=run_id,
        body_hash="bench",
    )
    folded = await runs.create(_TENANT, run_id, [created, RunStartRequested(by="bench")])
    claimed = RunClaimed(owner="bench", boot="bench", epoch=1, attempt=1)
    first = ModelRequested(iteration=1, model="scripted", message_count=2, estimated_tokens=500)
    return await runs.commit(folded, [claimed, first])


def _rows(times: _Times, sizes: list[int]) -> Appends:
    publish, append, commit = (
        spread([value * 1000 for value in values]) for values in (times.publish, times.append, times.commit)
    )
    note = f"{publish.values} of each in turns, {round(spread(sizes).mean)} bytes a record"
    rows = [
        Row(name="raw publish p50", value=publish.p50, unit="ms", note=note),
        Row(name="raw publish p99", value=publish.p99, unit="ms"),
        Row(
            name="durable append p50",
            value=commit.p50,
            unit="ms",
            target_ratio=APPEND_RATIO,
            floor=publish.p50,
            note="numbered, folded, encoded, fenced, acknowledged",
        ),
        Row(name="durable append p99", value=commit.p99, unit="ms", floor=publish.p99),
        Row(name="  without the fold p50", value=append.p50, unit="ms", floor=publish.p50),
    ]
    return Appends(rows, publish.p50)
