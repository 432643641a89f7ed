"""An owner's side of the call protocol on a real bus, against hosts that are dead, silent or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.bus.journal import Journal
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Liveness
from libs.chassis.clock import SystemClock
from libs.contracts.clock import rfc3339
from libs.contracts.tools import (
    HostCatalog,
    JournalEntry,
    JournalState,
    Semantics,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.executor.tools.calls import Calls
from services.executor.tools.hosts import Hosts
from services.executor.tools.recovery import NextAttempt, Uncertain
from tests.fakes.waiting import PATIENCE_S, until
from tests.service.hosting_owner import declare_dead, owned_run


@pytest.fixture
async def liveness(bus: Bus) -> AsyncIterator[Liveness]:
    registration = Registration(
        service="executor", replica="x", slots=1, model_configured=True, ttl_s=3.0, info={}
    )
    async with register(bus, SystemClock(), registration, on_death=lambda: None) as registered:
        yield registered


async def test_what_a_dead_host_did_is_known_although_no_other_host_offers_the_tool(
    bus: Bus, liveness: Liveness
) -> None:
    owner, calls = await owned_run(bus), Calls(bus, SystemClock(), liveness, Hosts(bus))
    await declare_dead(bus, "bdead")

    async def journaled(call_id: str, semantics: Semantics, result: ToolResult | None = None) -> ToolCall:
        call = owner.call("deploy", {}, call_id, semantics=semantics)
        state = JournalState.STARTED if result is None else JournalState.FINISHED
        at = rfc3339(SystemClock().now())
        entry = JournalEntry(state=state, boot="bdead", replica="gone", host="h", at=at, result=result)
        await Journal(bus.bucket("journal")).create(call, entry)
        return call

    done = ToolResult(call_id="call_1_2", attempt=1, ok=True, output="deployed")
    once = await calls.known(await journaled("call_1_0", Semantics.NON_IDEMPOTENT))
    again = await calls.known(await journaled("call_1_1", Semantics.IDEMPOTENT))
    adopted = await calls.known(await journaled("call_1_2", Semantics.NON_IDEMPOTENT, done))
    untouched = await calls.known(owner.call("deploy", {}, "call_1_3"))
    assert (type(once), type(again), adopted, untouched) == (Uncertain, NextAttempt, done, None)


async def test_a_model_is_asked_without_workspace_tools_only_where_there_never_was_a_workspace(
    bus: Bus,
) -> None:
    hosts, clock = Hosts(bus), SystemClock()
    host = Registration("toolhost", "late", 1, False, 3.0, {})
    watching = asyncio.create_task(hosts.watch())
    try:
        await hosts.wait_for_workspaces(needed=False, patience_s=0.05)
        assert not hosts.ready()
        waiting = asyncio.create_task(hosts.wait_for_workspaces(needed=True, patience_s=0.05))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        async with register(bus, clock, host, on_death=lambda: None) as late:
            catalog = HostCatalog(boot=late.boot, replica="late", host="h", workspaces=True, tools=[])
            await bus.bucket("catalog").put(late.boot, msgspec.json.encode(catalog))
            async with asyncio.timeout(PATIENCE_S):
                await waiting
            assert hosts.ready()
    finally:
        watching.cancel()


async def test_a_tool_of_some_tenants_is_offered_to_nobody_else(bus: Bus) -> None:
    hosts, clock = Hosts(bus), SystemClock()
    watching = asyncio.create_task(hosts.watch())
    try:
        async with (
            register(
                bus, clock, Registration("toolhost", "one", 1, False, 3.0, {}), on_death=lambda: None
            ) as one,
            register(
                bus, clock, Registration("toolhost", "two", 1, False, 3.0, {}), on_death=lambda: None
            ) as two,
        ):
            for lease, tools in ((one, [_tool("a"), _tool("b", "acme")]), (two, [_tool("b", "other")])):
                catalog = HostCatalog(boot=lease.boot, replica="r", host="h", tools=tools)
                await bus.bucket("catalog").put(lease.boot, msgspec.json.encode(catalog))
            await until(
                lambda: len(hosts.tools("acme")) == 2 and "b" in hosts.tools("other"), "both are seen"
            )
            assert set(hosts.tools("third")) == {"a"}
            assert [_boot(hosts.offering("b", tenant, "run")) for tenant in ("acme", "other", "third")] == [
                one.boot,
                two.boot,
                None,
            ]
    finally:
        watching.cancel()


def _tool(name: str, *tenants: str) -> ToolSpec:
    return ToolSpec(
        name=name, description="", parameters={}, semantics=Semantics.READ_ONLY, tenants=list(tenants)
    )


def _boot(catalog: HostCatalog | None) -> str | None:
    return catalog.boot if catalog is not None else None
