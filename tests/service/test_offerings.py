"""What a run offers its model, on a real bus: kept by digest, found again by whoever owns it next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from libs.bus.history import blob_name
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.run import RunState
from libs.contracts.subjects import catalog_key
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import HostCatalog, Semantics, ToolSpec
from services.executor.tools.hosts import Hosts
from services.executor.tools.offering import Offerings, RunOffer
from services.executor.tools.runtime import offered_to
from tests.fakes.histories import created
from tests.fakes.waiting import until

CLOCK = SystemClock()


def spec(name: str, description: str = "") -> ToolSpec:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"b": {"type": "string"}, "a": {"type": "string"}},
    }
    return ToolSpec(name=name, description=description, parameters=schema, semantics=Semantics.READ_ONLY)


@asynccontextmanager
async def hosting(bus: Bus, hosts: Hosts, *tools: ToolSpec, workspaces: bool = True) -> AsyncGenerator[None]:
    """A (workspace) host with these tools, as `hosts` sees it, while the context lasts."""
    registration = Registration("toolhost", "r", 1, False, 3.0, {})
    async with register(bus, CLOCK, registration, on_death=lambda: None) as lease:
        catalog = HostCatalog(
            boot=lease.boot, replica="r", host="h", workspaces=workspaces, tools=list(tools)
        )
        key, bucket = catalog_key(lease.boot), bus.bucket("catalog")
        await bucket.put(key, msgspec.json.encode(catalog))
        await until(lambda: hosts.tools("acme").keys() >= {tool.name for tool in tools}, "it is seen")
        yield
        await bucket.delete(key)
    await until(lambda: not hosts.ready(), "it is gone")


@asynccontextmanager
async def watched(bus: Bus) -> AsyncGenerator[tuple[Hosts, Offerings]]:
    """What a process knows of hosts and offers."""
    hosts = Hosts(bus)
    watching = asyncio.create_task(hosts.watch())
    try:
        yield hosts, Offerings(hosts, bus.store("blobs"), CLOCK)
    finally:
        watching.cancel()


def run(**changes: object) -> RunState:
    state = created(Limits(), TaskSpec(goal="x"))
    return msgspec.structs.replace(state, tenant="acme", **changes)


async def begun(offerings: Offerings, state: RunState) -> RunOffer:
    offer = RunOffer(offerings)
    await offer.recall(state)
    return offer


async def test_what_was_offered_is_found_again_byte_for_byte_whatever_is_offered_now(bus: Bus) -> None:
    async with watched(bus) as (hosts, offerings):
        async with hosting(bus, hosts, spec("read_file", "as it was"), spec("weather")):
            first = await begun(offerings, run())
            assert first.wanted(run())
            assert first.made(run()) is None
            await first.make(run())
            offered = first.made(run())
            assert offered is not None
            assert offered.names == sorted([*offered_to(run()), "read_file", "weather"])
            before = msgspec.json.encode(list(first.specs(run()).values()))
        state = run(offered=offered)
        assert not first.wanted(state)
        async with hosting(bus, hosts, spec("read_file", "otherwise"), spec("tides")):
            # Another process, which has never seen those tools.
            second = await begun(Offerings(hosts, bus.store("blobs"), CLOCK), state)
            assert not second.wanted(state)
            assert msgspec.json.encode(list(second.specs(state).values())) == before


async def test_no_other_host_takes_the_place_of_a_tool_of_the_workspace(bus: Bus) -> None:
    async with watched(bus) as (hosts, _), AsyncExitStack() as others:
        for number in range(4):
            foreign = (spec("read_file", f"of others {number}"), spec(f"other_{number}"))
            await others.enter_async_context(hosting(bus, hosts, *foreign, workspaces=False))
        async with hosting(bus, hosts, spec("read_file", "ours"), spec("weather")):
            assert hosts.tools("acme")["read_file"].description == "ours"


async def test_a_second_run_of_a_process_needs_nothing_stored(bus: Bus) -> None:
    async with watched(bus) as (hosts, offerings), hosting(bus, hosts, spec("read_file")):
        first = await begun(offerings, run())
        await first.make(run())
        second = await begun(offerings, run())
        assert second.made(run()) == first.made(run())
        narrowed = run(task=TaskSpec(goal="x", tools=["read_file"]))
        third = await begun(offerings, narrowed)
        assert third.made(narrowed) is None
        assert list(third.specs(narrowed)) == ["read_file"]


async def test_what_a_task_names_and_nobody_offers_is_missing_until_a_host_has_it(bus: Bus) -> None:
    wanted = run(task=TaskSpec(goal="x", tools=["read_file", "tides", "ask_user"]))
    async with watched(bus) as (hosts, offerings):
        async with hosting(bus, hosts, spec("read_file")):
            # The same set was stored for another run; this one may not begin with it.
            other = run(task=TaskSpec(goal="x", tools=["read_file", "ask_user"]))
            await (await begun(offerings, other)).make(other)
            offer = await begun(offerings, wanted)
            assert offer.missing(wanted) == ["tides"]
            assert offer.made(wanted) is None
        async with hosting(bus, hosts, spec("read_file"), spec("tides")):
            assert offer.missing(wanted) == []
            await offer.make(wanted)
            assert offer.made(wanted) is not None
        # What goes later is told to the model call by call.
        assert offer.missing(msgspec.structs.replace(wanted, offered=offer.made(wanted))) == []


async def test_a_run_that_began_without_a_host_is_offered_its_tools_once_there_is_one(bus: Bus) -> None:
    async with watched(bus) as (hosts, offerings):
        offer = await begun(offerings, run())
        await offer.make(run())
        state = run(offered=offer.made(run()))
        assert not offer.wanted(state)
        async with hosting(bus, hosts, spec("read_file")):
            assert offer.wanted(state)
            assert offer.made(state) is None
            await offer.make(state)
            more = offer.made(state)
            assert more is not None
            assert "read_file" in more.names
            assert not offer.wanted(run(offered=more))


async def test_an_offer_whose_blob_is_lost_is_made_anew(bus: Bus) -> None:
    async with watched(bus) as (hosts, offerings):
        async with hosting(bus, hosts, spec("weather")):
            offer = await begun(offerings, run())
            await offer.make(run())
            offered = offer.made(run())
        assert offered is not None
        await bus.store("blobs").remove(blob_name("acme", offered.digest))
        state = run(offered=offered)
        async with hosting(bus, hosts, spec("tides")):
            later = await begun(Offerings(hosts, bus.store("blobs"), CLOCK), state)
            assert later.wanted(state)
            await later.make(state)
            found = later.made(state)
            assert found is not None
            assert "tides" in found.names
            assert not later.wanted(run(offered=found))
