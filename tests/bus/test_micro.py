"""Discovery: `nats micro ls|info|stats` shows what a process answers and how often it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import ServerBus, connect
from libs.bus.ports import Message
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable, PerdureError
from tests.fakes.bus import bus_settings

Answer = dict[str, Any]


@pytest.fixture
async def announced(nats_node: NatsServer) -> AsyncIterator[ServerBus]:
    """A process that is called `<prefix>-sampler`."""
    async with (
        connect(bus_settings(nats_node.address), SystemClock()) as bus,
        bus.announced("sampler", "1.2.3", "Samples."),
    ):
        yield bus


async def _asked(bus: ServerBus, subject: str) -> Answer:
    return msgspec.json.decode(await bus.wire.request(subject, b"", timeout_s=5))


async def test_a_process_answers_by_name_and_by_id(announced: ServerBus) -> None:
    name = f"{announced.subjects.prefix}-sampler"
    pinged = await _asked(announced, f"$SRV.PING.{name}")
    assert pinged["type"] == "io.nats.micro.v1.ping_response"
    assert (pinged["name"], pinged["version"]) == (name, "1.2.3")
    assert pinged["metadata"]["boot"] == "unregistered"
    assert await _asked(announced, f"$SRV.PING.{name}.{pinged['id']}") == pinged


async def test_info_names_what_is_answered_now_and_stats_count_it(announced: ServerBus) -> None:
    async def responder(message: Message) -> bytes:
        if message.body == b"bad":
            raise PerdureError("no")
        return b"yes"

    prefix = announced.subjects.prefix
    name = f"{prefix}-sampler"
    async with announced.wire.respond(f"{prefix}.ctl.b1", responder):
        info = await _asked(announced, f"$SRV.INFO.{name}")
        assert info["description"] == "Samples."
        (endpoint,) = info["endpoints"]
        assert (endpoint["name"], endpoint["subject"]) == ("ctl", f"{prefix}.ctl.b1")
        for _ in range(3):
            assert await announced.wire.request(f"{prefix}.ctl.b1", b"", timeout_s=5) == b"yes"
        with pytest.raises(BusUnavailable):
            await announced.wire.request(f"{prefix}.ctl.b1", b"bad", timeout_s=0.2)
        stats = await _asked(announced, f"$SRV.STATS.{name}")
    (counted,) = stats["endpoints"]
    assert (counted["num_requests"], counted["num_errors"], counted["last_error"]) == (
        4,
        1,
        PerdureError.code,
    )
    assert counted["processing_time"] >= counted["average_processing_time"] > 0
    assert stats["started"].endswith("Z")
    assert (await _asked(announced, f"$SRV.INFO.{name}"))["endpoints"] == []


async def test_who_has_ended_is_not_found_any_more(nats_node: NatsServer) -> None:
    async with connect(bus_settings(nats_node.address), SystemClock()) as bus:
        name = f"{bus.subjects.prefix}-sampler"
        async with bus.announced("sampler", "1.2.3", "Samples."):
            await _asked(bus, f"$SRV.PING.{name}")
        with pytest.raises(BusUnavailable):
            await _asked(bus, f"$SRV.PING.{name}")
