"""What the client says again, and what it does not: against a real gateway behind a line that loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from libs.bus.ports import Bus
from libs.client import GatewayUnreachable, PerdureClient
from libs.client.wire import RETRIES_MAX
from libs.contracts.errors import QuotaExceeded
from libs.contracts.http import TaskCreate
from tests.fakes.proxy import Proxy, proxied
from tests.fakes.waiting import until
from tests.service.gateway_served import Owner, gateway


class Flaky(NamedTuple):
    """A client at the end of a line that can be cut, and what it waited."""

    client: PerdureClient
    waits: list[float]
    line: Proxy

    @asynccontextmanager
    async def losing_an_answer(self) -> AsyncGenerator[None]:
        """The next answer is lost on its way, with its connection; then the line is whole again."""

        async def lose() -> None:
            self.line.mute = True
            await until(lambda: self.line.lost, "an answer on the line")
            self.line.mute = False
            self.line.cut()

        losing = asyncio.create_task(lose())
        yield
        await losing


@asynccontextmanager
async def flaky(url: str) -> AsyncGenerator[Flaky]:
    waits: list[float] = []

    async def wait(delay_s: float) -> None:
        waits.append(delay_s)

    async with proxied(url) as line:
        http = line.url.replace("nats://", "http://")
        async with PerdureClient(http, sleep=wait) as client:
            await client.health()
            yield Flaky(client, waits, line)


@pytest.fixture
async def at(bus: Bus, tmp_path: Path) -> AsyncIterator[Flaky]:
    async with gateway(bus, tmp_path) as served, flaky(served.url) as made:
        yield made


async def test_a_creation_with_a_key_whose_answer_is_lost_is_said_again_and_made_once(at: Flaky) -> None:
    async with at.losing_an_answer():
        made = await at.client.create_task(TaskCreate(goal="once"), idempotency_key="k")
    assert len(at.waits) == 1
    assert [run.run_id for run in (await at.client.runs()).runs] == [made.run_id]


async def test_without_a_key_a_lost_answer_is_the_callers_to_think_about(at: Flaky) -> None:
    async with at.losing_an_answer():
        with pytest.raises(GatewayUnreachable):
            await at.client.create_task(TaskCreate(goal="perhaps"))
    assert at.waits == []
    assert len((await at.client.runs()).runs) == 1


async def test_a_reply_whose_answer_is_lost_is_one_reply(at: Flaky, bus: Bus) -> None:
    owner = await Owner.of(bus, (await at.client.create_task(TaskCreate(goal="ask"))).run_id)
    await owner.ask()
    async with at.losing_an_answer():
        await at.client.reply(owner.run_id, "left")
    assert len(at.waits) == 1
    events = (await at.client.events(owner.run_id)).events
    assert [event.payload["answer"] for event in events if event.type == "input.received"] == ["left"]


async def test_a_gateway_that_stays_away_is_waited_for_a_bounded_time(at: Flaky) -> None:
    await at.line.stop()
    with pytest.raises(GatewayUnreachable, match="perdure up"):
        await at.client.runs()
    # Nothing of it arrived, so that even a command without a key is tried again.
    with pytest.raises(GatewayUnreachable):
        await at.client.cancel("run_0_00000000000000000000000000")
    assert at.waits == [0.2 * 2**attempt for attempt in range(RETRIES_MAX)] * 2


async def test_a_quota_that_is_full_for_longer_is_said_at_once(bus: Bus, tmp_path: Path) -> None:
    environment = {"TENANT_REQUESTS_PER_MINUTE": "2"}
    async with gateway(bus, tmp_path, environment=environment) as served, flaky(served.url) as at:
        await at.client.runs()
        await at.client.runs()
        with pytest.raises(QuotaExceeded) as refused:
            await at.client.runs()
        assert refused.value.retry_after_s is not None
        assert len(at.waits) <= RETRIES_MAX
