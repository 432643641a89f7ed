"""What the tests of the logs write: records of one message each, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from libs.bus.ports import Bus, Draft, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.events import LogEvent, MessageReceived, RunStartRequested
from libs.contracts.ids import random_run_id

AT = "2026-01-31T12:00:00.000Z"


def fresh_key(shard: int = 0) -> LogKey:
    """The key of a log that nobody has written."""
    return LogKey("acme", random_run_id(SystemClock(), shard))


def draft(key: LogKey, expected: int, text: str = "x", *, first: int = 1, life: bool = False) -> Draft:
    """A record of one event behind stream sequence `expected`."""
    body: LogEvent = RunStartRequested(by=text) if life else MessageReceived(text=text, by="me")
    return Draft(key, expected, [Event(first, key.log_id, AT, body)], 1, "RUNNING")


async def write(bus: Bus, key: LogKey, count: int, *, after: int = 0, first: int = 1) -> list[Record]:
    """Append `count` records one after the other."""
    records: list[Record] = []
    for number in range(first, first + count):
        record = await bus.log.append(draft(key, after, f"text {number}", first=number))
        records.append(record)
        after = record.header.stream_sequence
    return records


async def take(source: AsyncIterator[Record], count: int) -> list[Record]:
    return [await anext(source) for _ in range(count)]


def texts(records: Sequence[Record]) -> list[str]:
    """What the messages of these records say, all of it."""
    return [
        event.body.text
        for record in records
        for event in decode_events(record)
        if isinstance(event.body, MessageReceived)
    ]


def expect_unbroken(records: Sequence[Record]) -> None:
    """Each record names the one before it, and the events are numbered from 1 without a gap."""
    assert [record.header.previous for record in records] == [
        0,
        *(record.header.stream_sequence for record in records[:-1]),
    ]
    assert [record.header.first for record in records] == list(range(1, len(records) + 1))
