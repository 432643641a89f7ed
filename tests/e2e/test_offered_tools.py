"""What a run offers its model stays what it was, whoever owns it and whatever hosts come and go meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.bus.connection import connect
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.subjects import catalog_key
from libs.contracts.tools import HostCatalog, Semantics, ToolSpec
from libs.contracts.views import EventView
from tests.e2e.field_case import legal, prefix_only_grows
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import eventually

WAITING = "while [ ! -f go ]; do sleep 0.02; done\n"
SCRIPT = {
    "[moved]": [
        calls(call("run_tests")),
        calls(call("weather", place="here"), call("echo", text="x")),
        says("Done."),
    ],
    "[later]": [says("Done.")],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("offered"), SCRIPT) as ready:
        yield ready


@asynccontextmanager
async def visiting(bus: Bus, name: str, tool: str) -> AsyncGenerator[None]:
    """A host that offers one tool while the context lasts, and never answers."""
    spec = ToolSpec(
        name=tool,
        description=f"Tells the {tool} of a place.",
        parameters={"type": "object", "properties": {"place": {"type": "string"}}},
        semantics=Semantics.NON_IDEMPOTENT,
        needs_workspace=False,
    )
    registration = Registration("toolhost", name, 1, False, 3.0, {})
    async with register(bus, SystemClock(), registration, on_death=lambda: None) as lease:
        catalog = HostCatalog(boot=lease.boot, replica=name, host="h", tools=[spec])
        key, bucket = catalog_key(lease.boot), bus.bucket("catalog")
        await bucket.put(key, msgspec.json.encode(catalog))
        yield
        await bucket.delete(key)


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


class _Request(msgspec.Struct):
    tools: list[_Tool]


def names(body: bytes) -> list[str]:
    return [tool.function.name for tool in msgspec.json.decode(body, type=_Request).tools]


def asked(on: Stage, marker: str) -> list[bytes]:
    return [body for body in on.model.bodies if marker.encode() in body]


async def of_kind(on: Stage, run_id: str, kind: str) -> list[EventView]:
    return [event for event in await on.events(run_id) if event.type == kind]


async def shown(on: Stage, tool: str, *, there: bool) -> None:
    """Wait until the deployment sees that a tool is there, or gone."""

    async def look() -> list[str]:
        return [one.name for one in (await on.client.health()).tools]

    await eventually(look, f"{tool} comes or goes", fits=lambda seen: (tool in seen) is there)


async def test_the_prefix_of_a_run_survives_a_take_over_while_hosts_come_and_go(on: Stage) -> None:
    folder = on.workspace("moved", {"run_tests.sh": WAITING})
    async with connect(on.bus, SystemClock()) as bus:
        async with visiting(bus, "first", "weather"):
            await shown(on, "weather", there=True)
            run_id = await on.submit("[moved] Go.", workspace=folder.name)
            await on.event(run_id, "tool.requested")
        async with visiting(bus, "second", "tides"):
            await shown(on, "tides", there=True)
            await shown(on, "weather", there=False)
            on.perdure.kill("executor")
            await on.until(run_id, lambda run: run.lease.epoch == 2)
            (folder / "go").touch()
            run = await on.ended(run_id)
            # What comes after it is offered what is there now.
            later = await on.submit("[later] Go.")
            await on.ended(later)
    assert run.status == "COMPLETED", run.error
    legal(await on.events(run_id))
    bodies = asked(on, "[moved]")
    assert len(bodies) == 3
    prefix_only_grows(bodies)
    assert "weather" in names(bodies[-1])
    assert "tides" not in names(bodies[-1])
    offered = [event.payload["offered"] for event in await of_kind(on, run_id, "model.requested")]
    assert offered[1:] == [None, None]
    assert msgspec.convert(offered[0], dict[str, object])["names"] == names(bodies[0])
    # The tool that went is told of at its call, and the call beside it is carried out.
    results = {
        event.payload["call_id"]: event.payload for event in await of_kind(on, run_id, "tool.completed")
    }
    vanished, echoed = results["call_2_0"], results["call_2_1"]
    assert (vanished["ok"], "no host offers it" in str(vanished["output"])) == (False, True)
    assert (echoed["ok"], echoed["output"]) == (True, "x")
    (first,) = asked(on, "[later]")
    assert ("tides" in names(first), "weather" in names(first)) == (True, False)
