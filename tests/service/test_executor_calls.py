"""An owner's side of the call protocol on a real bus, against hosts that are dead, silent or gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.bus.journal import Journal, key_of
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Liveness, Message
from libs.chassis.clock import SystemClock
from libs.contracts.clock import rfc3339
from libs.contracts.run import CallState
from libs.contracts.tools import (
    HostCatalog,
    JournalEntry,
    JournalState,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.executor.runcalls import ATTEMPTS_MAX, REFUSALS_MAX, GivenUp, RunCalls
from services.executor.tools.calls import Calls
from services.executor.tools.hosts import Hosts
from services.executor.tools.recovery import NextAttempt, Uncertain
from tests.fakes.clock import QuickClock
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


UNUSABLE = [
    b"",
    b"hello",
    b"{}",
    b'{"call_id":"call_1_0","attempt":1,"ok":null,"output":""}',
    b'{"call_id":"call_1_0","attempt":1,"ok":true,"output":"\\ud800"}',
    b'{"call_id":"call_1_0","attempt":1,"ok":true,"output":"","metadata":{"x":'
    + b"[" * 9999
    + b"]" * 9999
    + b"}}",
    b'{"call_id":"call_1_1","attempt":1,"ok":true,"output":"the result of another call"}',
]


@pytest.mark.parametrize("said", UNUSABLE, ids=range(len(UNUSABLE)))
async def test_what_nobody_can_use_of_a_host_fails_the_call_and_not_its_run(
    bus: Bus, liveness: Liveness, said: bytes
) -> None:
    owner, calls = await owned_run(bus), Calls(bus, SystemClock(), liveness, Hosts(bus))
    call = owner.call("rate", {}, "call_1_0", semantics=Semantics.READ_ONLY)

    async def answer(_: Message) -> bytes:
        return said

    async with (
        bus.wire.respond(bus.subjects.call_host("bodd"), answer),
        bus.wire.respond(bus.subjects.control("bodd"), answer),
    ):
        result = await calls.ask(call, "bodd")
        # Who ends a run does not fail because a host cannot say how many calls that ended.
        await calls.kill(call.run_id, call.epoch, "bodd")
    assert isinstance(result, ToolResult)
    assert not result.ok
    assert result.output.startswith("rate failed: ")


@pytest.mark.parametrize("said", UNUSABLE, ids=range(len(UNUSABLE)))
async def test_an_account_of_a_call_that_nobody_can_use_is_that_of_a_call_that_broke_off(
    bus: Bus, liveness: Liveness, said: bytes
) -> None:
    owner, calls = await owned_run(bus), Calls(bus, SystemClock(), liveness, Hosts(bus))
    call = owner.call("post", {}, "call_1_0")
    head = b'{"state":"finished","boot":"b","replica":"r","host":"h","at":"2026-01-01T00:00:00Z"'
    await bus.bucket("journal").put(key_of(call), head + (b',"result":' + said if said else b"") + b"}")
    assert isinstance(await calls.known(call), NextAttempt)
    once = msgspec.structs.replace(call, semantics=Semantics.NON_IDEMPOTENT)
    assert isinstance(await calls.known(once), Uncertain)


def _call(name: str, semantics: Semantics, attempt: int = 1) -> CallState:
    """The call `call_1_0` of a run, to a host without workspaces."""
    return CallState(
        call_id="call_1_0",
        name=name,
        arguments={},
        semantics=semantics,
        idempotency_key="k",
        attempt=attempt,
        needs_workspace=False,
    )


async def test_a_host_that_turns_a_call_away_for_ever_is_given_up(bus: Bus, liveness: Liveness) -> None:
    owner, hosts, clock = await owned_run(bus), Hosts(bus), QuickClock()
    calls = RunCalls(Calls(bus, SystemClock(), liveness, hosts), hosts, clock)
    call = _call("rate", Semantics.READ_ONLY)
    asked = 0

    async def answer(_: Message) -> bytes:
        nonlocal asked
        asked += 1
        refused = Refusal.STALE_EPOCH if asked % 2 else Refusal.EXPIRED
        return msgspec.json.encode(
            ToolResult(call_id="call_1_0", attempt=1, ok=False, output="", refused=refused)
        )

    watching = asyncio.create_task(hosts.watch())
    host = Registration("toolhost", "odd", 1, False, 3.0, {})
    try:
        async with register(bus, SystemClock(), host, on_death=lambda: None) as lease:
            catalog = HostCatalog(boot=lease.boot, replica="odd", host="h", tools=[_tool("rate")])
            await bus.bucket("catalog").put(lease.boot, msgspec.json.encode(catalog))
            async with bus.wire.respond(bus.subjects.call_host(lease.boot), answer):
                outcome: object = None
                while not isinstance(outcome, GivenUp):
                    outcome = await asyncio.wait_for(
                        calls.outcome(owner.folded.state, call, fresh=True), PATIENCE_S
                    )
                    assert asked <= REFUSALS_MAX
    finally:
        watching.cancel()
    assert asked == REFUSALS_MAX


async def test_a_call_whose_every_attempt_breaks_off_is_given_up(bus: Bus, liveness: Liveness) -> None:
    owner, hosts = await owned_run(bus), Hosts(bus)
    calls = RunCalls(Calls(bus, SystemClock(), liveness, hosts), hosts, SystemClock())
    await declare_dead(bus, "bdead")
    ends: list[type] = []
    for attempt in (ATTEMPTS_MAX - 1, ATTEMPTS_MAX):
        message = owner.call("post", {}, "call_1_0", attempt=attempt)
        entry = JournalEntry(state=JournalState.STARTED, boot="bdead", replica="gone", host="h", at="")
        await Journal(bus.bucket("journal")).create(message, entry)
        call = _call("post", Semantics.IDEMPOTENT, attempt=attempt)
        ends.append(type(await calls.outcome(owner.folded.state, call, fresh=False)))
    assert ends == [NextAttempt, GivenUp]


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
