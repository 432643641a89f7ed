"""The stream: every event once and in order for every client, whatever its pace, and a clean end."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path

import httpx

from libs.bus.checkpoints import Checkpoints
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from tests.fakes.waiting import PATIENCE_S
from tests.service.gateway_served import (
    Frame,
    Owner,
    Served,
    created,
    frames,
    gateway,
    http_client,
    sequences,
)

CLIENTS = 200


async def read(client: httpx.AsyncClient, run_id: str, query: str = "", **headers: str) -> list[Frame]:
    """A whole stream, to its end."""
    async with asyncio.timeout(PATIENCE_S):
        response = await client.get(f"/api/runs/{run_id}/stream{query}", headers=headers)
    assert response.status_code == 200, response.text
    return frames(response.text)


class Live:
    """An open stream that is read as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.aiter_text()
        self.text = ""

    async def until(self, event: str, count: int = 1) -> list[Frame]:
        async with asyncio.timeout(PATIENCE_S):
            while sum(frame.event == event for frame in self.frames()) < count:
                self.text += await anext(self._chunks)
        return self.frames()

    async def rest(self) -> list[Frame]:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in self._chunks:
                self.text += chunk
        return self.frames()

    def frames(self) -> list[Frame]:
        return frames(self.text[: self.text.rfind("\n\n") + 2])


async def finished(bus: Bus, client: httpx.AsyncClient, turns: int = 3) -> Owner:
    owner = await Owner.of(bus, await created(client))
    for turn in range(1, turns + 1):
        await owner.turn(turn)
    await owner.complete()
    return owner


async def test_a_finished_run_is_replayed_and_the_stream_ends(bus: Bus, client: httpx.AsyncClient) -> None:
    owner = await finished(bus, client)
    response = await client.get(f"/api/runs/{owner.run_id}/stream")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert response.headers["x-request-id"]
    assert response.text.startswith("retry: ")
    found = frames(response.text)
    last = owner.folded.state.sequence
    assert sequences(found) == list(range(1, last + 1))
    assert (found[0].event, found[-1].event) == ("run.created", "run.completed")
    page = (await client.get(f"/api/runs/{owner.run_id}/events?limit=1000")).json()
    assert [json.loads(frame.data) for frame in found] == page["events"]


async def test_every_resume_of_a_finished_run_gives_exactly_the_rest(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await finished(bus, client)
    last = owner.folded.state.sequence
    for after in range(last):
        expected = list(range(after + 1, last + 1))
        by_header = await read(client, owner.run_id, "?replay=false&after_sequence=1", **resume(after))
        assert sequences(by_header) == expected
        assert sequences(await read(client, owner.run_id, f"?after_sequence={after}")) == expected
    path = f"/api/runs/{owner.run_id}/stream"
    for query in (
        f"?after_sequence={last}",
        "?replay=false",
        f"?after_sequence={last}&follow_suspended=true",
    ):
        assert (await client.get(path + query)).status_code == 204
    for bad in (last + 1, "x", "-1", "1.0", ""):
        for response in (
            await client.get(path, headers=resume(bad)),
            await client.get(f"{path}?after_sequence={bad}"),
        ):
            assert (response.status_code, response.json()["error_code"]) == (400, "INVALID_CURSOR")


def resume(after: int | str) -> dict[str, str]:
    return {"Last-Event-ID": str(after)}


async def test_every_resume_of_a_running_run_gives_exactly_the_rest(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.turn(1)
    known = owner.folded.state.sequence
    async with asyncio.TaskGroup() as group:
        streams = [
            group.create_task(read(client, owner.run_id, **resume(after))) for after in range(known + 1)
        ]
        for turn in range(2, 12):
            await owner.turn(turn)
        await owner.complete()
    for after, stream in enumerate(streams):
        assert sequences(stream.result()) == list(range(after + 1, owner.folded.state.sequence + 1))


async def test_two_hundred_clients_on_one_run_all_get_the_identical_list(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))

    async def write() -> None:
        for turn in range(1, 31):
            await owner.turn(turn, content="x" * 200)
            await owner.delta(turn + 1, "abc")
        await owner.complete()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        early = [group.create_task(read(client, owner.run_id, "?deltas=false")) for _ in range(CLIENTS // 2)]
        writing = group.create_task(write())
        late = [group.create_task(read(client, owner.run_id, "?deltas=false")) for _ in range(CLIENTS // 2)]
        await writing
    expected = await read(client, owner.run_id)
    assert sequences(expected) == list(range(1, owner.folded.state.sequence + 1))
    for stream in early + late:
        assert stream.result() == expected


async def test_deltas_come_live_without_an_id_and_only_to_those_who_want_them(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}/stream"
    async with (
        client.stream("GET", path) as with_deltas,
        client.stream("GET", f"{path}?deltas=false") as without,
    ):
        live, plain = Live(with_deltas), Live(without)
        await live.until("run.claimed")
        await plain.until("run.claimed")
        async with asyncio.timeout(PATIENCE_S):
            # The subscription is there once a delta gets through; deltas before that are lost, as they may be.
            while not any(frame.event == "model.delta" for frame in live.frames()):
                await owner.delta(1, "Loo")
                try:
                    async with asyncio.timeout(0.2):
                        await live.until("model.delta")
                except TimeoutError:
                    live = Live(with_deltas)
        await owner.turn(1)
        # Late deltas of a turn that is over would only confuse.
        await owner.delta(1, "late")
        await owner.complete()
        found, other = await live.rest(), await plain.rest()
    deltas = [frame for frame in found if frame.event == "model.delta"]
    assert all(frame.id is None for frame in deltas)
    first = json.loads(deltas[0].data)
    assert (first["sequence"], first["transient"], first["run_id"]) == (0, True, owner.run_id)
    assert first["payload"] == {"iteration": 1, "attempt": 1, "content": "Loo", "reasoning": ""}
    assert [frame for frame in found if frame.event != "model.delta"][-4:] == other[-4:]
    assert all(frame.event != "model.delta" for frame in other)
    assert found[-1].event == "run.completed"


async def test_a_stream_ends_at_the_question_that_is_pending_and_passes_over_answered_ones(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.ask("q1")
    asked = owner.folded.state.sequence
    path = f"/api/runs/{owner.run_id}"
    assert (await read(client, owner.run_id))[-1].event == "input.requested"
    assert (await client.get(f"{path}/stream", headers=resume(asked))).status_code == 204
    assert (await client.get(f"{path}/stream?replay=false")).status_code == 204
    async with client.stream("GET", f"{path}/stream?follow_suspended=true") as patient:
        live = Live(patient)
        await live.until("input.requested")
        await client.post(f"{path}/reply", json={"answer": "a"})
        await live.until("input.received")
        await owner.refresh()
        await owner.claim()
        await owner.ask("q2")
        await live.until("input.requested", count=2)
        replayed = await read(client, owner.run_id)
        assert [frame.event for frame in replayed].count("input.requested") == 2
        await client.post(f"{path}/cancel")
        assert (await live.rest())[-1].event == "run.cancelled"


class Backwards:
    """A clock that is put back by a minute whenever it is read."""

    def __init__(self) -> None:
        self._at = SystemClock().now()

    def now(self) -> datetime:
        self._at -= timedelta(minutes=1)
        return self._at

    monotonic, sleep, entropy = SystemClock().monotonic, SystemClock().sleep, SystemClock().entropy


async def test_times_that_go_back_change_neither_the_order_nor_where_a_client_goes_on(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    run_id = await created(client)
    checkpoints = Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log)
    runs = Runs(bus.log, checkpoints, Backwards())
    owner = Owner(bus, runs, await runs.load("local", run_id))
    await owner.write(e.RunStartRequested(by="test"))
    await owner.claim()
    for turn in range(1, 4):
        await owner.turn(turn)
    await owner.complete()
    last = owner.folded.state.sequence
    whole = await read(client, run_id)
    times = [json.loads(frame.data)["at"] for frame in whole]
    assert times != sorted(times)
    assert len(set(times)) < len(times), "some stand in one record"
    assert sequences(whole) == list(range(1, last + 1))
    for after in range(last):
        assert await read(client, run_id, **resume(after)) == whole[after:]


async def test_following_from_now_leaves_history_out(bus: Bus, client: httpx.AsyncClient) -> None:
    owner = await Owner.of(bus, await created(client))
    before = owner.folded.state.sequence
    async with client.stream("GET", f"/api/runs/{owner.run_id}/stream?replay=false") as response:
        live = Live(response)
        await owner.turn(1)
        await owner.complete()
        assert sequences(await live.rest()) == list(range(before + 1, owner.folded.state.sequence + 1))


async def test_a_slow_client_loses_deltas_but_no_event_and_holds_up_nobody(
    bus: Bus, client: httpx.AsyncClient, served: Served
) -> None:
    owner = await Owner.of(bus, await created(client))
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=2**16)
    writer.write(f"GET /api/runs/{owner.run_id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"run.claimed")

    async def write() -> None:
        # Far more than the window and all buffers on the way hold together.
        for turn in range(1, 151):
            for _ in range(20):
                await owner.delta(turn, "d" * 2000)
            await owner.turn(turn, content="x" * 14_000)
        await owner.complete()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        quick = group.create_task(read(client, owner.run_id, "?deltas=false"))
        group.create_task(write())
    last = owner.folded.state.sequence
    assert sequences(quick.result()) == list(range(1, last + 1))
    body = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while b"event: run.completed" not in body:
            body += await reader.read(2**16)
    ids = [int(line[4:]) for line in bytes(body).split(b"\n") if line.startswith(b"id: ")]
    assert ids == list(range(ids[0], last + 1))
    assert ids[0] <= 4
    assert body.count(b"event: model.delta") < 150 * 20
    writer.close()


async def test_a_client_that_leaves_frees_its_watch_and_changes_nothing(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    async with client.stream("GET", f"/api/runs/{owner.run_id}/stream") as response:
        await Live(response).until("run.claimed")
    await owner.turn(1)
    assert (await client.get(f"/api/runs/{owner.run_id}")).json()["status"] == "RUNNING"
    await owner.complete()
    assert sequences(await read(client, owner.run_id)) == list(range(1, owner.folded.state.sequence + 1))


async def test_on_drain_streams_end_cleanly_and_go_on_elsewhere(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path) as first, http_client(first) as client:
        owner = await Owner.of(bus, await created(client))
        async with client.stream("GET", f"/api/runs/{owner.run_id}/stream") as response:
            live = Live(response)
            await live.until("run.claimed")
            first.stop.set()
            seen = sequences(await live.rest())
    await owner.complete()
    async with gateway(bus, tmp_path, replica="gateway-2") as second, http_client(second) as client:
        rest = sequences(await read(client, owner.run_id, **resume(seen[-1])))
    assert seen + rest == list(range(1, owner.folded.state.sequence + 1))


async def test_head_tells_what_get_would_say_without_a_stream(bus: Bus, client: httpx.AsyncClient) -> None:
    owner = await Owner.of(bus, await created(client))
    path = f"/api/runs/{owner.run_id}/stream"
    response = await client.head(path)
    assert (response.status_code, response.text) == (200, "")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (await client.head(path, headers=resume(99))).status_code == 400
    assert (await client.post(path)).status_code == 405


async def test_the_stream_of_a_run_that_was_deleted_is_not_found(bus: Bus, client: httpx.AsyncClient) -> None:
    owner = await finished(bus, client)
    whole = await read(client, owner.run_id)
    await owner.write(e.RunDeleted(body_hash=owner.folded.state.body_hash, by="local"))
    assert (await client.get(f"/api/runs/{owner.run_id}/stream")).status_code == 404
    assert whole[-1].event == "run.completed"


async def test_a_long_run_is_resumed_from_the_middle_by_its_checkpoint(
    bus: Bus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    for turn in range(1, 151):
        await owner.turn(turn, content="x" * 3000)
    await owner.complete()
    assert owner.folded.places
    await Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log).save(owner.folded)
    last = owner.folded.state.sequence
    for after in (0, 254, 255, 256, 257, 300, 511, last - 1):
        assert sequences(await read(client, owner.run_id, **resume(after))) == list(
            range(after + 1, last + 1)
        )
        page = (await client.get(f"/api/runs/{owner.run_id}/events?after_sequence={after}&limit=50")).json()
        found = [event["sequence"] for event in page["events"]]
        assert found == list(range(after + 1, min(after + 50, last) + 1))
        event = (await client.get(f"/api/runs/{owner.run_id}/events/{after + 1}")).json()
        assert event["sequence"] == after + 1
