"""What the tests of the gateway share: a real gateway on a socket, and a scripted owner that writes runs to the log."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self

import httpx
import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.checkpoints import Checkpoints
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.checks import Verdict, Verification
from libs.contracts.live import ModelDelta
from libs.contracts.tools import Semantics
from libs.contracts.values import Usage
from services.gateway.app import Gateway
from services.gateway.protocol import PATIENCE, Patience
from services.gateway.server import listen
from services.gateway.settings import GatewaySettings
from tests.fakes.waiting import eventually
from tests.service.described import as_described

# What takes longer hangs, however busy the machine is.
DEADLINE_S = 30.0


class Served(NamedTuple):
    """A running gateway: where it listens, and what makes it drain."""

    url: str
    stop: asyncio.Event
    port: int


def runs_of(bus: Bus) -> Runs:
    checkpoints = Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log)
    return Runs(bus.log, checkpoints, SystemClock())


@asynccontextmanager
async def gateway(
    bus: Bus,
    data: Path,
    *,
    replica: str = "gateway-1",
    environment: dict[str, str] | None = None,
    patience: Patience = PATIENCE,
) -> AsyncGenerator[Served]:
    """A gateway on a free port, drained at the end."""
    settings = GatewaySettings.load(
        "gateway", {"PERDURE_DATA": str(data), "REPLICA_ID": replica, **(environment or {})}
    )
    stop = asyncio.Event()
    clock = SystemClock()
    async with registered(bus, "gateway", replica) as liveness:
        bound = listen("127.0.0.1", 0)
        port = int(bound.getsockname()[1])
        with bound:
            serving = asyncio.create_task(
                Gateway(bus, runs_of(bus), clock, liveness, settings).run(bound, stop, patience)
            )
            try:
                yield Served(f"http://127.0.0.1:{port}", stop, port)
            finally:
                stop.set()
                async with asyncio.timeout(DEADLINE_S):
                    await serving


@asynccontextmanager
async def http_client(served: Served) -> AsyncGenerator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    hooks = {"response": [as_described]}
    async with httpx.AsyncClient(
        base_url=served.url, timeout=DEADLINE_S, limits=limits, event_hooks=hooks
    ) as client:
        yield client


def registered(bus: Bus, service: str, replica: str, *, model: bool = False):
    """A liveness key of a service, as its process would hold it."""
    registration = Registration(
        service=service, replica=replica, slots=1, model_configured=model, ttl_s=3.0, info={}
    )
    return register(bus, SystemClock(), registration, on_death=lambda: None)


async def created(client: httpx.AsyncClient, **fields: object) -> str:
    response = await client.post("/api/tasks", json={"goal": "Mend the shop.", **fields})
    assert response.status_code == 201, response.text
    return response.json()["run_id"]


class Owner:
    """Writes a run as its executor would, record by record."""

    def __init__(self, bus: Bus, runs: Runs, folded: Folded) -> None:
        self._bus, self._runs = bus, runs
        self.folded = folded
        self.run_id = folded.state.run_id

    @classmethod
    async def of(cls, bus: Bus, run_id: str, *, boot: str = "bexecutor", tenant: str = "local") -> Self:
        """Claim a run, starting it first when nobody did."""
        runs = runs_of(bus)
        owner = cls(bus, runs, await runs.load(tenant, run_id))
        if owner.folded.state.status == "PENDING":
            await owner.write(e.RunStartRequested(by="test"))
        await owner.claim(boot)
        return owner

    async def write(self, *bodies: e.LogEvent) -> None:
        self.folded = await self._runs.commit(self.folded, bodies)

    async def refresh(self) -> None:
        self.folded = await self._runs.refresh(self.folded)

    async def claim(self, boot: str = "bexecutor") -> None:
        state = self.folded.state
        claim = e.RunClaimed(owner="executor-1", boot=boot, epoch=state.epoch + 1, attempt=state.attempt + 1)
        await self.write(claim)

    async def turn(self, iteration: int, content: str = "Looking.") -> None:
        """A model's turn with one call and its result: three records."""
        await self.write(
            e.ModelRequested(iteration=iteration, model="m", message_count=1, estimated_tokens=1)
        )
        call = f"call_{iteration}_0"
        await self.write(
            e.ModelCompleted(
                iteration=iteration,
                content=content,
                tool_calls=[],
                finish_reason="tool_calls",
                usage=Usage(requests=1, input_tokens=2, output_tokens=1),
                latency_ms=1,
            ),
            e.ToolRequested(
                call_id=call,
                name="echo",
                arguments={"text": content},
                semantics=Semantics.READ_ONLY,
                idempotency_key=f"{self.run_id}/{call}",
            ),
        )
        await self.write(e.ToolCompleted(call_id=call, ok=True, output=content, duration_ms=1))

    async def ask(self, question_id: str = "q1", question: str = "Which one?") -> None:
        await self.write(
            e.RunReleased(reason="suspended", waiting_for="input"),
            e.InputRequested(question_id=question_id, kind="question", question=question, call_id="call_1_0"),
        )

    async def complete(self) -> None:
        verification = Verification(status=Verdict.UNVERIFIED, round=1)
        await self.write(
            e.RunCompleted(answer="Done.", verification=verification, usage=self.folded.state.usage)
        )

    async def delta(self, iteration: int, content: str) -> None:
        delta = ModelDelta(run_id=self.run_id, iteration=iteration, attempt=1, content=content)
        subject = self._bus.subjects.live(self.folded.state.tenant, self.run_id)
        await self._bus.wire.publish(subject, _encoded(delta))


def _encoded(delta: ModelDelta) -> bytes:
    return msgspec.json.encode(delta)


class Frame(NamedTuple):
    """One server-sent event as it stood on the wire."""

    event: str
    id: str | None
    data: str


def frames(text: str) -> list[Frame]:
    """The events of a whole stream; comments and `retry` left out."""
    found: list[Frame] = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":") and line)
        if "data" in fields:
            found.append(Frame(fields["event"], fields.get("id"), fields["data"]))
    return found


def sequences(found: Sequence[Frame]) -> list[int]:
    return [int(frame.id) for frame in found if frame.id is not None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def process(
    bus: Bus,
    node: NatsServer,
    data: Path,
    port: int,
    settings: dict[str, str] | None = None,
    *,
    service: str = "gateway",
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A gateway, or another service, as a process of its own, killed at the end."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
        "NATS_URL": node.address.url,
        "NATS_USER": node.address.user or "",
        "NATS_PASSWORD": node.address.password or "",
        "PERDURE_PREFIX": bus.subjects.prefix,
        "PERDURE_DATA": str(data),
        "PERDURE_PORT": str(port),
        "NATS_MONITOR_URL": node.address.monitor_url or "",
        **(settings or {}),
    }
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"services.{service}",
        env=environment,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def until_ready(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url) as client:

        async def look() -> str:
            try:
                return (await client.get("/api/health/ready")).text
            except httpx.TransportError as error:
                return repr(error)

        await eventually(look, "the gateway is ready", fits=lambda seen: '"ready"' in seen)
