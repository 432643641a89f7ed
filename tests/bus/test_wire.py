"""What is not stored: answers in time or an error, bounded listeners, a connection that always comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from libs.bus.connection import BusSettings, connect
from libs.bus.link import RECONNECT_WAIT_S
from libs.bus.ports import Bus, Message
from libs.chassis.clock import SystemClock
from libs.contracts.errors import BusUnavailable, ConfigurationError, NobodyThere, NotFound
from tests.bus.conftest import PREFIX, Site
from tests.bus.writing import draft, fresh_key, take, write
from tests.fakes.cluster import Deployment
from tests.fakes.proxy import proxied


async def echo(message: Message) -> bytes:
    return b"re: " + message.body


async def test_requests_are_answered_side_by_side(bus: Bus) -> None:
    both = anyio.Event()
    waiting = 0

    async def together(message: Message) -> bytes:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        return message.body

    answers: list[bytes] = []

    async def ask(body: bytes) -> None:
        answers.append(await bus.wire.request("wire.together", body, timeout_s=5))

    async with bus.wire.respond("wire.together", together), anyio.create_task_group() as group:
        group.start_soon(ask, b"1")
        group.start_soon(ask, b"2")
    assert sorted(answers) == [b"1", b"2"]


async def test_nobody_there_is_told_from_no_answer(bus: Bus) -> None:
    async def never(_: Message) -> bytes:
        await anyio.sleep_forever()
        return b""

    async def refuses(_: Message) -> bytes:
        raise NotFound("not here")

    with pytest.raises(NobodyThere):
        await bus.wire.request("wire.nobody", b"", timeout_s=5)
    for responder in (never, refuses):
        async with bus.wire.respond("wire.silent", responder):
            with pytest.raises(BusUnavailable) as error:
                await bus.wire.request("wire.silent", b"", timeout_s=0.1)
            assert not isinstance(error.value, NobodyThere)
    with pytest.raises(NobodyThere):
        await bus.wire.request("wire.silent", b"", timeout_s=5)


async def test_a_listener_hears_all_that_its_pattern_takes(site: Site, bus: Bus) -> None:
    await bus.wire.publish("heard.before.anybody", b"nobody listens")
    async with (
        site.connection() as other,
        other.wire.listen("heard.*.here") as narrow,
        other.wire.listen("heard.>") as wide,
    ):
        await until_heard(bus, "heard.first.here", narrow, wide)
        for subject in ("heard.a.there", "heard.b.here", "heard.c", "heard.d.here"):
            await bus.wire.publish(subject, subject.encode())
        with anyio.fail_after(10):
            assert [(await anext(narrow)).subject for _ in range(2)] == ["heard.b.here", "heard.d.here"]
            assert [(await anext(wide)).body for _ in range(4)] == [
                b"heard.a.there",
                b"heard.b.here",
                b"heard.c",
                b"heard.d.here",
            ]


async def until_heard(bus: Bus, subject: str, *listeners: AsyncIterator[Message]) -> None:
    """An interest of another connection takes a moment to be known at every node: publish until all have heard one, and
    until nothing more is on its way."""
    body = 0
    for listener in listeners:
        with anyio.fail_after(10):
            while True:
                body += 1
                await bus.wire.publish(subject, b"%d" % body)
                with anyio.move_on_after(0.1):
                    while (await anext(listener)).body != b"%d" % body:
                        pass
                    break
    for listener in listeners[:-1]:
        with anyio.fail_after(10):
            while (await anext(listener)).body != b"%d" % body:
                pass


async def test_a_slow_listener_loses_the_oldest(bus: Bus) -> None:
    async with bus.wire.listen("wire.live") as heard, bus.wire.respond("wire.flush", echo):
        for number in range(5_000):
            await bus.wire.publish("wire.live", b"%d" % number)
        # An answer to what was sent behind them says that all of them have come.
        await bus.wire.request("wire.flush", b"", timeout_s=10)
        with anyio.fail_after(10):
            bodies = [(await anext(heard)).body for _ in range(4_096)]
    assert bodies == [b"%d" % number for number in range(5_000 - 4_096, 5_000)]


async def test_a_request_in_flight_ends_with_the_connection(deployment: Deployment) -> None:
    async def never(_: Message) -> bytes:
        await anyio.sleep_forever()
        return b""

    async with (
        proxied(deployment.address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as bus,
        bus.wire.respond("wire.hangs", never),
    ):

        async def ask() -> None:
            with pytest.raises(BusUnavailable, match="lost"):
                await bus.wire.request("wire.hangs", b"", timeout_s=60)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.wait_all_tasks_blocked()
                proxy.cut()


@pytest.mark.parametrize("end", ["cut", "closed for good"])
async def test_everything_works_again_on_a_new_connection(deployment: Deployment, end: str) -> None:
    key = fresh_key()
    async with (
        proxied(deployment.servers[0].address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as bus,
        bus.wire.respond("wire.echo", echo),
        bus.log.follow(key, 0) as follow,
    ):
        assert bus.connected()
        assert await bus.usable()
        connections = proxy.connections
        if end == "cut":
            proxy.cut()
        else:
            # An error that makes the client library give up for ever.
            proxy.inject(b"-ERR 'User Authentication Expired'\r\n")
        with anyio.fail_after(20):
            while deployment.replicas == 1 and proxy.connections == connections:
                await anyio.sleep(0.01)
            record = await bus.log.append(draft(key, 0))
            assert await take(follow, 1) == [record]
            assert await bus.wire.request("wire.echo", b"x", timeout_s=5) == b"re: x"


class Publisher:
    """Publishes for as long as it is not told that there is no connection."""

    def __init__(self, bus: Bus) -> None:
        self._bus, self.sent = bus, 0
        self.task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        with suppress(BusUnavailable):
            while True:
                await self._bus.wire.publish("wire.full", b"x" * 500_000)
                self.sent += 1


@asynccontextmanager
async def deafened(deployment: Deployment) -> AsyncGenerator[tuple[Bus, Publisher]]:
    """A bus whose server reads nothing any more, and who publishes until nothing goes out."""
    async with (
        proxied(deployment.servers[0].address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as bus,
    ):
        proxy.deafen()
        publisher, before = Publisher(bus), -1
        try:
            while publisher.sent > before:
                before = publisher.sent
                await anyio.sleep(0.1)
            yield bus, publisher
        finally:
            publisher.task.cancel()
            await asyncio.wait({publisher.task})


async def test_who_waits_for_a_server_that_reads_nothing_ends_when_cancelled(deployment: Deployment) -> None:
    async with deafened(deployment) as (bus, publisher):
        assert bus.connected()
        publisher.task.cancel()
        with anyio.fail_after(20):
            await asyncio.wait({publisher.task})
        assert publisher.task.cancelled()


async def test_a_server_that_reads_nothing_is_left_for_one_that_does(deployment: Deployment) -> None:
    async with deafened(deployment) as (bus, publisher):
        with anyio.fail_after(30):
            while not await bus.usable():
                await anyio.sleep(0.01)
            # Who waited was told, or goes on over the other connection, whichever was first.
            before = publisher.sent
            while not publisher.task.done() and publisher.sent == before:
                await anyio.sleep(0.01)


async def test_a_connection_to_a_server_that_reads_nothing_is_closed(deployment: Deployment) -> None:
    with anyio.fail_after(20):
        async with deafened(deployment) as (bus, _):
            pass
    assert not bus.connected()


async def test_a_process_without_a_server_is_not_usable(deployment: Deployment) -> None:
    async with (
        proxied(deployment.servers[0].address.url) as proxy,
        connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()) as bus,
    ):
        assert await bus.usable()
        proxy.mute = True
        assert not await bus.usable()
        proxy.mute = False


async def test_nothing_of_a_connection_is_left_whenever_it_is_closed(deployment: Deployment) -> None:
    before = asyncio.all_tasks()
    connected, cut = asyncio.Barrier(101), asyncio.Event()

    async def close_while_it_looks_for_its_server(moment: int) -> None:
        async with connect(deployment.settings(PREFIX, url=proxy.url), SystemClock()):
            await connected.wait()
            await cut.wait()
            # Around the refusal of its first try: what cancels that at the same time is lost on the client.
            now = asyncio.Event()
            asyncio.get_running_loop().call_later(RECONNECT_WAIT_S + moment / 5000, now.set)
            await now.wait()

    async with proxied(deployment.servers[0].address.url) as proxy, asyncio.TaskGroup() as group:
        for moment in range(100):
            group.create_task(close_while_it_looks_for_its_server(moment))
        await connected.wait()
        await proxy.stop()
        cut.set()
    left = asyncio.all_tasks() - before
    assert not [task for task in left if "Client" in repr(task.get_coro())]


async def test_wrong_credentials_are_a_configuration_error(deployment: Deployment) -> None:
    url = deployment.servers[0].address.url.replace("//", "//somebody:secret@")
    with pytest.raises(ConfigurationError) as error:
        async with connect(BusSettings(url, None, None, None, prefix=PREFIX), SystemClock()):
            pass
    assert "secret" not in str(error.value)


async def test_hundreds_of_appends_and_requests_share_one_connection(bus: Bus) -> None:
    async with bus.wire.respond("wire.many", echo), anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(write, bus, fresh_key(), 3)
            group.start_soon(ask_echo, bus, b"%d" % number)


async def ask_echo(bus: Bus, body: bytes) -> None:
    assert await bus.wire.request("wire.many", body, timeout_s=10) == b"re: " + body
