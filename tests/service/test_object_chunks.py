"""What writers of object stores leave that were killed, on a real server: it goes, and never what a name points to."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from io import BytesIO
from pathlib import PosixPath
from typing import Any, cast

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.blobs import CHUNK_BYTES, UPLOADS_MAX
from libs.bus.connection import ServerBus, connect
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable
from services.scheduler.blobs import OldBlobs, Pace
from tests.fakes.bus import bus_settings
from tests.fakes.proxy import proxied

CLOCK = SystemClock()
DATA = bytes(range(251)) * 4_000
CHUNKS = -(-len(DATA) // CHUNK_BYTES)
DAY = timedelta(days=1)
DEADLINE_S = 30.0


async def leave(bus: ServerBus, store: str, nuid: str, chunks: int = 3) -> None:
    """What a writer has stored that is killed before its last chunk."""
    for _ in range(chunks):
        subject = f"$O.{bus.subjects.stream(store)}.C.{nuid}"
        ack = json.loads(await bus.wire.request(subject, b"x" * 100_000, timeout_s=5))
        assert "seq" in ack


async def chunks(bus: ServerBus, store: str) -> dict[str, int]:
    """How many chunks each writer's bytes have."""
    known = f"$O.{bus.subjects.stream(store)}.C."
    asked = json.dumps({"subjects_filter": f"{known}>"}).encode()
    name = f"$JS.API.STREAM.INFO.OBJ_{bus.subjects.stream(store)}"
    answer = json.loads(await bus.wire.request(name, asked, timeout_s=5))
    found = cast("dict[str, int]", answer["state"].get("subjects") or {})
    return {subject.removeprefix(known): count for subject, count in found.items()}


async def test_chunks_that_no_name_points_to_go_when_they_are_old(bus: ServerBus) -> None:
    store = bus.store("workspaces")
    await store.put("kept", DATA)
    (kept,) = await chunks(bus, "workspaces")
    for number in range(3):
        await leave(bus, "workspaces", f"killed{number}")
    assert await store.remove_unnamed(CLOCK.now() - DAY, 10) == 0, "it may still go on"
    assert len(await chunks(bus, "workspaces")) == 4
    assert await store.remove_unnamed(CLOCK.now() + DAY, 2) == 2, "no more than is allowed at once"
    assert await store.remove_unnamed(CLOCK.now() + DAY, 10) == 1
    assert await store.remove_unnamed(CLOCK.now() + DAY, 10) == 0
    assert list(await chunks(bus, "workspaces")) == [kept]
    assert await store.get("kept") == DATA


class _Halting(BytesIO):
    """A file of a process that stands still at its `at`-th read, as a suspended machine does."""

    def __init__(self, at: int) -> None:
        super().__init__(DATA)
        self._left = at
        self.stands, self.goes_on = threading.Event(), threading.Event()

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left == 0:
            self.stands.set()
            assert self.goes_on.wait(DEADLINE_S)
        return super().read(size)


class _Place(PosixPath):
    """Where that file is."""

    file: _Halting

    def open(self, *_: object, **__: object) -> Any:
        return self.file


# The whole is read once before, for its digest, up to its end.
@pytest.mark.parametrize("stored", range(CHUNKS))
async def test_a_writer_that_stood_still_for_longer_stores_all_anew(bus: ServerBus, stored: int) -> None:
    store, place = bus.store("workspaces"), _Place("file")
    place.file = _Halting(CHUNKS + 1 + stored + 1)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(store.put_file("late", place))
        assert await asyncio.to_thread(place.file.stands.wait, DEADLINE_S)
        assert await store.remove_unnamed(CLOCK.now() + DAY, 10) == (1 if stored else 0)
        assert await chunks(bus, "workspaces") == {}
        place.file.goes_on.set()
        await writer
    assert await store.get("late") == DATA


async def test_of_a_name_and_a_sweep_at_once_one_wins(bus: ServerBus, nats_node: NatsServer) -> None:
    """The writer stands still before the name, the sweep before it takes the bytes; then the writer goes on first."""
    settings = bus_settings(nats_node.address, prefix=bus.subjects.prefix)
    stream = bus.subjects.stream("workspaces")
    async with (
        proxied(nats_node.address.url) as slow,
        proxied(nats_node.address.url) as slower,
        connect(settings._replace(url=slow.url), CLOCK) as writing,
        connect(settings._replace(url=slower.url), CLOCK) as sweeping,
        asyncio.TaskGroup() as group,
    ):
        slow.held, slower.held = f"HPUB $O.{stream}.M.".encode(), b"STREAM.PURGE"
        writer = group.create_task(writing.store("workspaces").put("late", DATA))
        await asyncio.wait_for(slow.holds.wait(), DEADLINE_S)
        sweep = group.create_task(sweeping.store("workspaces").remove_unnamed(CLOCK.now() + DAY, 10))
        await asyncio.wait_for(slower.holds.wait(), DEADLINE_S)
        slow.goes_on.set()
        await writer
        slower.goes_on.set()
        assert await sweep == 1
    assert await bus.store("workspaces").get("late") == DATA


async def test_a_sweep_in_the_middle_of_uploads_leaves_each_whole_or_not_there(bus: ServerBus) -> None:
    """One to which everything is old, also what was stored this moment."""
    store, ended = bus.store("workspaces"), asyncio.Event()
    swept, lost = 0, 0

    async def sweep() -> None:
        nonlocal swept
        while not ended.is_set():
            swept += await store.remove_unnamed(CLOCK.now() + DAY, 10)

    async with asyncio.TaskGroup() as group:
        group.create_task(sweep())
        for number in range(20):
            data = DATA + bytes([number])
            try:
                await store.put("object", data)
            except BusUnavailable:
                lost += 1
            else:
                assert await store.get("object") == data
        ended.set()
    assert swept >= lost * UPLOADS_MAX, "only what the sweep took was stored anew"
    await store.put("object", DATA)
    assert await store.get("object") == DATA
    await store.remove_unnamed(CLOCK.now() + DAY, 100)
    assert len(await chunks(bus, "workspaces")) == 1


async def test_a_description_that_nobody_can_read_makes_nothing_go(bus: ServerBus) -> None:
    await leave(bus, "workspaces", "killed")
    await bus.wire.request(f"$O.{bus.subjects.stream('workspaces')}.M.eA==", b"{", timeout_s=5)
    with pytest.raises(BusUnavailable):
        await bus.store("workspaces").remove_unnamed(CLOCK.now() + DAY, 10)
    assert await chunks(bus, "workspaces") == {"killed": 3}


async def test_the_daily_pass_of_the_scheduler_looks_at_all_stores(bus: ServerBus) -> None:
    for store in ("blobs", "workspaces"):
        await leave(bus, store, "killed")
    pace, others = Pace(kept_s=0.0, page_s=0.0), (bus.store("workspaces"),)
    young = OldBlobs(bus.log, bus.store("blobs"), CLOCK, shards=1, pace=Pace(page_s=0.0), others=others)
    old = OldBlobs(bus.log, bus.store("blobs"), CLOCK, shards=1, pace=pace, others=others)
    assert await young.clear(lambda: True)
    assert [await chunks(bus, store) for store in ("blobs", "workspaces")] == [{"killed": 3}] * 2
    assert await old.clear(lambda: True)
    assert [await chunks(bus, store) for store in ("blobs", "workspaces")] == [{}] * 2
