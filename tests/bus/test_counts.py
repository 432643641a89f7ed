"""What is counted of the bus: how far a shard goes, all of its records, what waits, and what a process did."""

from __future__ import annotations

import asyncio

import pytest

from libs.bus.ports import Bus, Delivery, Outcome, nak
from libs.contracts.envelope import Record
from libs.contracts.errors import AppendConflict
from libs.contracts.streams import host_consumer
from tests.bus.writing import draft, fresh_key, write
from tests.fakes.waiting import eventually, until


async def test_a_shard_is_read_across_its_logs_in_order_up_to_where_its_leader_says_it_ends(bus: Bus) -> None:
    start = (await bus.log.extent(0)).last
    first, second = fresh_key(), fresh_key()
    written = [*await write(bus, first, 20), *await write(bus, second, 5)]
    extent = await bus.log.extent(0)
    assert extent.last == written[-1].header.stream_sequence
    assert extent.made_at == (await bus.log.extent(0)).made_at != ""

    async def across() -> list[Record]:
        found: list[Record] = []
        after = start
        while records := await bus.log.across(0, after):
            found += records
            after = records[-1].header.stream_sequence
        return found

    # A replica may lag behind the leader.
    found = await eventually(across, "all records", fits=lambda seen: len(seen) >= len(written))
    assert [record.header.message_id for record in found] == [record.header.message_id for record in written]
    assert {record.log_id for record in found} == {first.log_id, second.log_id}


async def test_appends_and_those_that_another_record_forestalled_are_counted(bus: Bus) -> None:
    key, before = fresh_key(), bus.counts.copy()
    await write(bus, key, 3)
    with pytest.raises(AppendConflict):
        await bus.log.append(draft(key, 0))
    assert bus.counts["appends"] - before["appends"] == 3
    assert bus.counts["append_conflicts"] - before["append_conflicts"] == 1


async def test_what_waits_what_comes_again_and_what_is_given_up_is_counted(bus: Bus) -> None:
    boot = fresh_key().log_id
    spec, subject = host_consumer(bus.subjects, boot), bus.subjects.tool_host(boot)
    before, tries = bus.counts.copy(), list[int]()
    for number in range(3):
        await bus.queue.publish(subject, b"%d" % number)

    async def handle(delivery: Delivery) -> Outcome:
        tries.append(delivery.delivered)
        return nak(0.01) if delivery.delivered < 2 else nak(60.0)

    consuming = asyncio.create_task(bus.queue.consume(spec, handle, concurrency=1))
    await until(lambda: len(tries) >= 6, "each message twice")
    (mine,) = [one for one in await bus.backlogs() if one.consumer == spec.name]
    assert (mine.stream, mine.pending) == (spec.stream, 0)
    assert mine.unanswered == mine.again == 3
    consuming.cancel()
    await asyncio.wait({consuming})
    assert bus.counts["redeliveries"] - before["redeliveries"] == 3
    letter = Delivery(subject, {}, b"?", 1, 1, boot)
    await bus.queue.dead_letter(bus.subjects.dead("counted"), letter, "nobody knows it")
    assert bus.counts["dead_letters"] - before["dead_letters"] == 1
    assert (await bus.letters_kept())[bus.subjects.dead("counted")] >= 1
    await bus.queue.remove_consumer(spec)
