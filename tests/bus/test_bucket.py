"""Buckets: compare-and-set with one winner, expiry that reads as absence, lists and watches that miss nothing."""

from __future__ import annotations

import itertools

import anyio
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bucket, Bus, Entry
from libs.bus.watch import Listing, Watch
from libs.chassis.clock import SystemClock
from libs.contracts.errors import AppendConflict
from tests.bus.conftest import PREFIX, Site
from tests.bus.test_topology import operator
from tests.fakes.bus import bus_settings
from tests.fakes.cluster import Deployment
from tests.fakes.proxy import proxied

_numbers = itertools.count(1)


@pytest.fixture
def place() -> str:
    """A key prefix that no other test has."""
    return f"p{next(_numbers)}."


@pytest.fixture
def bucket(bus: Bus) -> Bucket:
    return bus.bucket("leases")


async def test_a_value_is_created_updated_and_removed(bucket: Bucket, place: str) -> None:
    key = f"{place}a"
    assert await bucket.get(key) is None
    first = await bucket.create(key, b"1")
    assert await bucket.get(key) == Entry(key, b"1", first)
    second = await bucket.update(key, b"2", first)
    third = await bucket.put(key, b"3")
    assert first < second < third
    await bucket.delete(key)
    assert await bucket.get(key) is None
    assert await bucket.entries(place) == []
    assert await bucket.create(key, b"again") > third


async def test_create_and_update_refuse_what_they_did_not_expect(bucket: Bucket, place: str) -> None:
    key = f"{place}a"
    first = await bucket.create(key, b"1")
    with pytest.raises(AppendConflict) as conflict:
        await bucket.create(key, b"2")
    assert conflict.value.last == first
    second = await bucket.update(key, b"2", first)
    with pytest.raises(AppendConflict) as conflict:
        await bucket.update(key, b"3", first)
    assert conflict.value.last == second
    with pytest.raises(AppendConflict):
        await bucket.delete(key, revision=first)
    await bucket.delete(key, revision=second)
    assert await bucket.get(key) is None


async def test_of_many_creators_one_wins(site: Site, place: str) -> None:
    won: list[int] = []
    lost: list[int] = []

    async def create(number: int) -> None:
        async with site.connection() as bus:
            for key in range(10):
                try:
                    await bus.bucket("journal").create(f"{place}{key}", b"%d" % number)
                    won.append(key)
                except AppendConflict:
                    lost.append(key)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(create, number)
    assert sorted(won) == list(range(10))
    assert len(lost) == 30


async def test_an_expired_value_reads_as_absent_and_can_be_made_again(bucket: Bucket, place: str) -> None:
    key = f"{place}a"
    async with bucket.watch(place) as changes:
        revision = await bucket.create(key, b"1", ttl_s=1.0)
        with anyio.fail_after(10):
            assert [await anext(changes) for _ in range(3)] == [("", None), (key, b"1"), (key, None)]
    assert await bucket.get(key) is None
    assert await bucket.entries(place) == []
    with pytest.raises(AppendConflict):
        await bucket.update(key, b"late renewal", revision, ttl_s=1.0)
    assert await bucket.create(key, b"2", ttl_s=1.0) > revision


async def test_a_renewed_value_outlives_its_first_term(bucket: Bucket, place: str) -> None:
    key = f"{place}a"
    # Long enough for a busy machine to come to its renewal.
    revision = await bucket.create(key, b"0", ttl_s=3.0)
    clock = SystemClock()
    began = clock.monotonic()
    with anyio.fail_after(20):
        while clock.monotonic() - began < 3.3:
            revision = await bucket.update(key, b"renewed", revision, ttl_s=3.0)
            await anyio.sleep(0.2)
    assert await bucket.get(key) == Entry(key, b"renewed", revision)


async def test_a_write_without_a_term_stays_and_every_other_lasts_a_second_at_least(
    bucket: Bucket, place: str
) -> None:
    clock = SystemClock()
    async with bucket.watch(place) as changes:
        began = clock.monotonic()
        await bucket.put(f"{place}short", b"1", ttl_s=0.1)
        found = await bucket.get(f"{place}short")
        assert found is not None or clock.monotonic() - began >= 1.0
        kept = await bucket.update(f"{place}kept", b"2", await bucket.create(f"{place}kept", b"1", ttl_s=3.0))
        # Written behind the one that stays, and gone at the time at which that one would be.
        await bucket.put(f"{place}put", b"1", ttl_s=3.0)
        gone: set[str] = set()
        with anyio.fail_after(20):
            while len(gone) < 2:
                key, value = await anext(changes)
                gone |= {key} if key and value is None else set()
    assert gone == {f"{place}short", f"{place}put"}
    assert await bucket.get(f"{place}kept") == Entry(f"{place}kept", b"2", kept)


async def test_what_is_removed_in_one_go_is_as_if_it_had_never_been(bus: Bus, place: str) -> None:
    bucket = bus.bucket("journal")
    first = await bucket.create(f"{place}run.a", b"1")
    await bucket.put(f"{place}run.b", b"1", ttl_s=60.0)
    await bucket.put(f"{place}runner.a", b"1")
    assert sorted(await bucket.keys(f"{place}run.")) == [f"{place}run.a", f"{place}run.b"]
    async with bucket.watch(place) as changes:
        await bucket.remove(f"{place}run.")
        await bucket.remove(f"{place}run.")
        assert await bucket.keys(f"{place}run.") == []
        assert [entry.key for entry in await bucket.entries(place)] == [f"{place}runner.a"]
        # A host that finishes a call of a run that was deleted must not bring its key back.
        with pytest.raises(AppendConflict) as conflict:
            await bucket.update(f"{place}run.a", b"late", first)
        assert conflict.value.last == 0
        again = await bucket.create(f"{place}run.a", b"2")
        assert again > first
        with anyio.fail_after(10):
            seen = [await anext(changes)]
            while seen[-1] != (f"{place}run.a", b"2"):
                seen.append(await anext(changes))
    assert (f"{place}run.a", None) not in seen


async def test_deleting_what_is_not_there_is_quiet(bucket: Bucket, place: str) -> None:
    await bucket.delete(f"{place}never")
    await bucket.delete(f"{place}never")
    assert await bucket.get(f"{place}never") is None
    with pytest.raises(AppendConflict):
        await bucket.delete(f"{place}other", revision=1)


async def test_a_write_whose_answer_was_lost_is_recognised(
    deployment: Deployment, bucket: Bucket, place: str
) -> None:
    key = f"{place}a"
    revisions: list[int] = []
    async with (
        proxied(deployment.address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as cut_off,
    ):

        async def create() -> None:
            revisions.append(await cut_off.bucket("leases").create(key, b"mine"))

        proxy.mute = True
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(create)
                while await bucket.get(key) is None or proxy.lost == 0:
                    await anyio.sleep(0.01)
                proxy.mute = False
                proxy.cut()
    entry = await bucket.get(key)
    assert entry is not None
    assert revisions == [entry.revision]


async def test_entries_are_listed_by_whole_tokens(bucket: Bucket, place: str) -> None:
    for key in ("a.1", "a.2", "ab.1"):
        await bucket.put(place + key, key.encode())
    await bucket.put(f"{place}a.3", b"gone")
    await bucket.delete(f"{place}a.3")
    listed = await bucket.entries(f"{place}a.")
    assert sorted(entry.key for entry in listed) == [f"{place}a.1", f"{place}a.2"]
    everything = {entry.key: entry.value for entry in await bucket.entries()}
    assert everything[f"{place}ab.1"] == b"ab.1"


async def test_more_entries_than_one_answer_holds_are_all_listed(bus: Bus, place: str) -> None:
    bucket = bus.bucket("catalog")
    keys = [f"{place}{number}" for number in range(1_100)]
    async with anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(bucket.put, key, key.encode())
    assert sorted(entry.key for entry in await bucket.entries(place)) == sorted(keys)


async def test_a_watch_goes_on_through_a_restart(deployment: Deployment, bucket: Bucket, place: str) -> None:
    await bucket.put(f"{place}a", b"1")
    async with bucket.watch(place) as changes:
        with anyio.fail_after(30):
            assert [await anext(changes) for _ in range(2)] == [(f"{place}a", b"1"), ("", None)]
            await deployment.restart()
            await bucket.put(f"{place}b", b"2")
            await bucket.delete(f"{place}a")
            seen: dict[str, bytes | None] = {}
            while seen != {f"{place}a": None, f"{place}b": b"2"}:
                key, value = await anext(changes)
                seen[key] = value


async def test_a_watch_outlives_its_bucket(nats_node: NatsServer) -> None:
    settings = bus_settings(nats_node.address)
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await bus.ensure_topology()
        bucket = bus.bucket("catalog")
        await bucket.put("a", b"1")
        async with bucket.watch() as changes:
            with anyio.fail_after(20):
                assert [await anext(changes) for _ in range(2)] == [("a", b"1"), ("", None)]
                await js.api(f"STREAM.DELETE.KV_{settings.prefix}-catalog")
                # Nobody writes to it again, and nobody but the bucket knew of the key.
                assert await anext(changes) == ("a", None)
                await bucket.put("b", b"2")
                assert await anext(changes) == ("b", b"2")


async def test_a_watch_whose_bucket_was_made_anew_right_behind_its_first_list_misses_nothing(
    nats_node: NatsServer,
) -> None:
    settings = bus_settings(nats_node.address)
    async with connect(settings, SystemClock()) as bus, operator(nats_node) as js:
        await bus.ensure_topology()
        bucket = bus.bucket("catalog")
        revision = await bucket.put("a", b"new")
        # The first is of a bucket that had gone far, and had a value under the same key and revision.
        created = "2020-01-01T00:00:00Z"
        first = Listing([Entry("a", b"old", revision), Entry("z", b"1", 900)], 1_000, created)
        listings = iter([first, Listing([Entry("a", b"new", revision)], revision, "")])

        async def listing() -> Listing:
            return next(listings)

        name = f"{settings.prefix}-catalog"
        watch = Watch(js, f"KV_{name}", f"$KV.{name}.", "", listing)
        await watch.open()
        try:
            with anyio.fail_after(20):
                told = [await anext(watch) for _ in range(5)]
                assert told == [("a", b"old"), ("z", b"1"), ("", None), ("z", None), ("a", b"new")]
                await bucket.put("b", b"2")
                assert await anext(watch) == ("b", b"2")
        finally:
            await watch.close()


async def test_a_watch_that_was_cut_off_tells_what_went_without_a_trace_meanwhile(
    deployment: Deployment, bus: Bus, place: str
) -> None:
    bucket = bus.bucket("catalog")
    for key in ("stays", "goes.away"):
        await bucket.put(f"{place}{key}", b"1")
    async with (
        proxied(deployment.address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as cut_off,
        cut_off.bucket("catalog").watch(place) as changes,
    ):
        seen: dict[str, bytes | None] = {}

        async def until(wanted: dict[str, bytes | None]) -> None:
            with anyio.fail_after(30):
                while seen != wanted:
                    key, value = await anext(changes)
                    # Of three nodes one may lag, and tell late of what it holds.
                    seen.update({key: value} if key else {})

        await until({f"{place}stays": b"1", f"{place}goes.away": b"1"})
        proxy.mute = True
        # As an expiry whose marker has expired by the time that the reader is back.
        await bucket.remove(f"{place}goes.")
        proxy.mute = False
        proxy.cut()
        await until({f"{place}stays": b"1", f"{place}goes.away": None})


async def test_a_watch_of_nothing_says_so_and_waits(bucket: Bucket, place: str) -> None:
    async with bucket.watch(place) as changes:
        with anyio.fail_after(10):
            assert await anext(changes) == ("", None)
            await bucket.put(f"{place}a", b"1")
            assert await anext(changes) == (f"{place}a", b"1")
