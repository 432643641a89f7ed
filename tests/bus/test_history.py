"""Reading logs: complete up to the leader's tail, from any place on."""

from __future__ import annotations

from libs.bus.history import History
from libs.bus.jetstream import PAGE_MESSAGES, JetStream, Page
from libs.bus.link import Credentials, Link
from libs.bus.ports import Bus, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Record
from libs.contracts.subjects import ANY_TENANT
from tests.bus.conftest import PREFIX
from tests.bus.writing import draft, expect_unbroken, fresh_key, write
from tests.fakes.cluster import Deployment


async def test_what_was_just_appended_is_always_read(bus: Bus) -> None:
    key = fresh_key()
    last = 0
    for number in range(1, 61):
        last = (await bus.log.append(draft(key, last, first=number))).header.stream_sequence
        assert [record.header.first for record in await bus.log.read(key)] == list(range(1, number + 1))


async def test_a_long_log_is_read_whole_and_from_every_place(bus: Bus) -> None:
    key, other = fresh_key(), fresh_key()
    written = await write(bus, key, 300)
    await write(bus, other, 5)
    written += await write(bus, key, 300, after=written[-1].header.stream_sequence, first=301)
    assert await bus.log.read(key) == written
    expect_unbroken(written)
    for place in (0, 1, 298, 299, 300, 301, 598, 599):
        assert await bus.log.read(key, written[place].header.stream_sequence) == written[place + 1 :]
    # A place between two records is as good as a record's.
    assert await bus.log.read(key, written[300].header.stream_sequence - 1) == written[300:]


async def test_pages_are_the_whole_log_in_bounded_steps(bus: Bus) -> None:
    key = fresh_key()
    written = await write(bus, key, 300)
    read: list[Record] = []
    while page := await bus.log.page(key, read[-1].header.stream_sequence if read else 0):
        read += page
    assert read == written
    assert await bus.log.page(fresh_key(), 0) == []


async def test_an_unknown_log_is_empty_for_certain(bus: Bus) -> None:
    key = fresh_key()
    assert await bus.log.tail(key) is None
    assert await bus.log.read(key) == []
    assert await bus.log.tails([key]) == {}


async def test_a_log_is_found_without_knowing_whose_it_is(bus: Bus) -> None:
    key = fresh_key()
    (record,) = await write(bus, key, 1)
    assert await bus.log.tail(LogKey(ANY_TENANT, key.log_id)) == record
    assert await bus.log.tail(LogKey(ANY_TENANT, fresh_key().log_id)) is None


async def test_the_tails_of_many_logs_come_at_once(bus: Bus) -> None:
    keys = [fresh_key() for _ in range(30)]
    expected: dict[LogKey, int] = {}
    for number, key in enumerate(keys):
        first = await bus.log.append(draft(key, 0, life=True))
        expected[key] = first.header.stream_sequence
        if number % 2:
            second = await bus.log.append(draft(key, first.header.stream_sequence, first=2))
            expected[key] = second.header.stream_sequence
    seen = await bus.log.tails([*keys, fresh_key()])
    # Any replica may answer, so the very last ones may be missing; none may be ahead.
    assert all(seen.get(key, 0) <= expected[key] for key in keys)
    assert [seen[key] for key in keys[:20]] == [expected[key] for key in keys[:20]]


async def test_tails_with_large_bodies_come_in_several_pages(bus: Bus) -> None:
    keys = [fresh_key() for _ in range(14)]
    for key in keys:
        await bus.log.append(draft(key, 0, "b" * 400_000))
    assert set(await bus.log.tails(keys)) >= set(keys[:10])


class Gappy(JetStream):
    """Its replicas have lost every other record."""

    async def page(
        self, stream: str, subject_filter: str, sequence: int, messages_max: int = PAGE_MESSAGES
    ) -> Page:
        page = await super().page(stream, subject_filter, sequence, messages_max)
        return page._replace(messages=page.messages[1::2])


async def test_no_body_is_missed_where_a_replica_has_gaps(deployment: Deployment, bus: Bus) -> None:
    extent = await bus.log.extent(0)
    written = await write(bus, fresh_key(), 5)
    expected = [(record.header.stream_sequence, record.body) for record in written]
    settings = deployment.settings(PREFIX)
    link = Link(Credentials(settings.url, settings.user, settings.password, None, "gappy"), SystemClock())
    await link.open()
    try:
        history = History(Gappy(link, SystemClock()), bus.subjects, bus.store("blobs"))
        assert await history.bodies(0, extent.last) == expected
        assert await history.bodies(0, expected[-1][0]) == []
    finally:
        await link.close()
