"""A run that a newer version wrote: lists pass over it, its events are passed on, nothing is appended to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.jetstream import JetStream
from libs.bus.link import Credentials, Link
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts import envelope
from libs.contracts.envelope import RecordClass
from tests.service.gateway_served import (
    DEADLINE_S,
    Owner,
    created,
    frames,
    gateway,
    http_client,
    sequences,
)


class Later:
    """A writer of a later version, straight on the stream."""

    def __init__(self, js: JetStream, bus: Bus, owner: Owner) -> None:
        self._js, self._bus, self._owner = js, bus, owner
        self._last, self._sequence = owner.folded.last, owner.folded.state.sequence

    async def write(self, kind: str, *, schema: int = 1, state: str = "RUNNING", life: bool = True) -> None:
        self._sequence += 1
        run_id = self._owner.run_id
        record_class: RecordClass = "life" if life else "work"
        headers = envelope.record_headers(
            message_id=f"{run_id}.{self._sequence}",
            epoch=1,
            boot="blater",
            version="9",
            first=self._sequence,
            count=1,
            state=state,
        )
        headers[envelope.SCHEMA_HEADER] = str(schema)
        headers[envelope.EXPECTED_LAST] = str(self._last)
        headers[envelope.EXPECTED_LAST_FILTER] = self._bus.subjects.log_filter("local", run_id)
        event = {
            "sequence": self._sequence,
            "type": kind,
            "run_id": run_id,
            "at": "2026-11-29T12:00:00.000Z",
            "payload": {"what": "ever"},
        }
        body = msgspec.json.encode({"events": [event]})
        subject = self._bus.subjects.log("local", run_id, record_class)
        self._last = (await self._js.publish(subject, body, headers)).sequence


@asynccontextmanager
async def later(node: NatsServer, bus: Bus, owner: Owner) -> AsyncGenerator[Later]:
    address = node.address
    link = Link(Credentials(address.url, address.user, address.password, None, "later"), SystemClock())
    await link.open()
    try:
        yield Later(JetStream(link, SystemClock()), bus, owner)
    finally:
        await link.close()


async def refused(client: httpx.AsyncClient, run_id: str, method: str, suffix: str = "") -> None:
    """The one answer: somebody has to upgrade, and asking again does not help."""
    body = {"text": "t"} if suffix == "/message" else None
    response = await client.request(method, f"/api/runs/{run_id}{suffix}", json=body)
    assert (response.status_code, response.json()["error_code"]) == (503, "CONFIGURATION_ERROR"), suffix
    assert "newer version" in response.json()["message"]
    assert "upgrade" in response.json()["message"]
    assert "Retry-After" not in response.headers


async def row(client: httpx.AsyncClient, run_id: str, status: str) -> None:
    """Until the list shows the run in this state."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = (await client.get("/api/runs")).json()
            shown = {run["run_id"]: run["status"] for run in page["runs"]}
            if shown.get(run_id) == status:
                return
            await asyncio.sleep(0.02)


async def test_an_unknown_kind_of_event_parks_the_fold_and_passes_through_observers(
    client: httpx.AsyncClient, bus: Bus, nats_node: NatsServer
) -> None:
    owner = await Owner.of(bus, await created(client))
    async with later(nats_node, bus, owner) as writer:
        await writer.write("run.pondered", life=False)
        await writer.write("run.dreamt", state="PAUSED")
        await row(client, owner.run_id, "PAUSED")
        await refused(client, owner.run_id, "GET")
        for command in ("cancel", "pause", "resume", "message"):
            await refused(client, owner.run_id, "POST", f"/{command}")
        await refused(client, owner.run_id, "DELETE")
        page = (await client.get(f"/api/runs/{owner.run_id}/events")).json()
        assert [event["type"] for event in page["events"]][-2:] == ["run.pondered", "run.dreamt"]
        assert page["events"][-1]["payload"] == {"what": "ever"}
        event = await client.get(f"/api/runs/{owner.run_id}/events/{page['next_after_sequence']}")
        assert event.json()["type"] == "run.dreamt"
        async with client.stream("GET", f"/api/runs/{owner.run_id}/stream") as response:
            assert response.status_code == 200
            text, chunks = "", response.aiter_text()
            async with asyncio.timeout(DEADLINE_S):
                while "run.dreamt" not in text:
                    text += await anext(chunks)
                await writer.write("run.completed", state="COMPLETED")
                async for chunk in chunks:
                    text += chunk
        assert sequences(frames(text)) == list(range(1, len(page["events"]) + 2))


async def test_a_newer_schema_or_state_of_one_run_leaves_all_others_as_they_were(
    client: httpx.AsyncClient, bus: Bus, nats_node: NatsServer
) -> None:
    newer, strange, plain = [await Owner.of(bus, await created(client)) for _ in range(3)]
    async with later(nats_node, bus, newer) as writer:
        for _ in range(3):
            await writer.write("run.completed", schema=2, state="COMPLETED")
    async with later(nats_node, bus, strange) as writer:
        await writer.write("run.dreamt", state="DREAMING")
    await plain.complete()
    await row(client, plain.run_id, "COMPLETED")
    for owner in (newer, strange):
        await row(client, owner.run_id, "RUNNING")
        for suffix in ("", "/events", "/events/1", "/stream", "/questions"):
            await refused(client, owner.run_id, "GET", suffix)
        await refused(client, owner.run_id, "POST", "/cancel")
    assert (await client.get("/api/health/ready")).status_code == 200


async def test_a_stream_that_meets_a_newer_record_ends_and_says_so_when_its_client_returns(
    client: httpx.AsyncClient, bus: Bus, nats_node: NatsServer
) -> None:
    owner = await Owner.of(bus, await created(client))
    async with (
        later(nats_node, bus, owner) as writer,
        client.stream("GET", f"/api/runs/{owner.run_id}/stream") as response,
    ):
        text, chunks = "", response.aiter_text()
        async with asyncio.timeout(DEADLINE_S):
            while "run.claimed" not in text:
                text += await anext(chunks)
            await writer.write("run.completed", schema=2, state="COMPLETED")
            async for chunk in chunks:
                text += chunk
    assert frames(text)[-1].event == "run.claimed"
    await refused(client, owner.run_id, "GET", "/stream")


async def test_an_index_that_is_rebuilt_passes_over_them_again(
    bus: Bus, nats_node: NatsServer, tmp_path: Path
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        owner = await Owner.of(bus, await created(client))
        async with later(nats_node, bus, owner) as writer:
            await writer.write("run.completed", schema=2, state="COMPLETED")
        last = await created(client)
        await row(client, last, "PENDING")
    for folder in (tmp_path, tmp_path / "fresh"):
        async with gateway(bus, folder) as served, http_client(served) as client:
            await row(client, last, "PENDING")
            await row(client, owner.run_id, "RUNNING")
