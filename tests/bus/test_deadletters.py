"""Dead letters: listed newest first, and sent back to where they came from."""

from __future__ import annotations

import itertools

import anyio
import pytest

from libs.bus.deadletters import WINDOW
from libs.bus.ports import ACK, Bus, DeadLetter, Delivery, Outcome
from libs.contracts.clock import parse_rfc3339
from libs.contracts.errors import InvalidState, NotFound
from libs.contracts.streams import ConsumerSpec, host_consumer
from tests.bus.test_queue import call_api
from tests.fakes.cluster import Deployment

_numbers = itertools.count(1)


@pytest.fixture
def kind() -> str:
    """A kind of letters that no other test has."""
    return f"kind{next(_numbers)}"


async def keep(
    bus: Bus, kind: str, body: bytes, *, origin: str = "", headers: dict[str, str] | None = None
) -> None:
    """Have a message kept that nobody could handle."""
    delivery = Delivery(
        subject=origin or bus.subjects.tool_host("nowhere"),
        headers=headers or {},
        body=body,
        stream_sequence=next(_numbers),
        delivered=3,
        stream_created=kind,
    )
    await bus.queue.dead_letter(bus.subjects.dead(kind), delivery, "nobody can read it")


async def listed(bus: Bus, kind: str, count: int, *, limit: int = 50) -> list[DeadLetter]:
    """All letters of a kind, page by page, once there are `count` (a replica may lag)."""
    with anyio.fail_after(20):
        while True:
            found: list[DeadLetter] = []
            before: int | None = None
            while True:
                page = await bus.dead_letters.newest(before=before, limit=limit, kind=kind)
                assert len(page.letters) <= limit
                found += page.letters
                before = page.next_before
                if before is None:
                    break
            if len(found) >= count:
                return found
            await anyio.sleep(0.01)


async def test_letters_are_listed_newest_first_page_by_page(bus: Bus, kind: str) -> None:
    for number in range(7):
        await keep(bus, kind, b"%d" % number)
        await keep(bus, f"{kind}-other", b"x")
    letters = await listed(bus, kind, 7, limit=3)
    assert [letter.body for letter in letters] == [b"%d" % number for number in reversed(range(7))]
    assert len({letter.sequence for letter in letters}) == 7
    newest = letters[0]
    assert (newest.kind, newest.reason) == (kind, "nobody can read it")
    assert newest.origin == bus.subjects.tool_host("nowhere")
    assert parse_rfc3339(newest.at).year > 2000


async def test_a_rare_kind_is_found_behind_many_others(bus: Bus, kind: str) -> None:
    await keep(bus, kind, b"rare")
    for number in range(2 * WINDOW):
        await keep(bus, f"{kind}-other", b"%d" % number)
    assert [letter.body for letter in await listed(bus, kind, 1)] == [b"rare"]
    assert len(await listed(bus, f"{kind}-other", 2 * WINDOW)) == 2 * WINDOW


async def test_a_rejected_task_is_listed_for_its_tenant(bus: Bus, kind: str) -> None:
    delivery = Delivery(bus.subjects.tasks(kind), {}, b"{}", next(_numbers), 1, kind)
    await bus.queue.dead_letter(bus.subjects.rejected(kind), delivery, "no goal")
    with anyio.fail_after(20):
        while not (page := await bus.dead_letters.newest(tenant=kind)).letters:
            await anyio.sleep(0.01)
    letter = page.letters[0]
    assert (letter.kind, letter.origin, letter.reason) == ("rejected", bus.subjects.tasks(kind), "no goal")
    with anyio.fail_after(20):
        # Another replica may answer, and lag.
        while letter not in (await bus.dead_letters.newest(kind="rejected")).letters:
            await anyio.sleep(0.01)


async def test_a_replayed_letter_goes_where_it_came_from_and_leaves_the_list(bus: Bus, kind: str) -> None:
    spec = host_consumer(bus.subjects, kind)
    await keep(bus, kind, b"again", origin=spec.filter_subject, headers={"Idempotency-Key": "k1"})
    letter = (await listed(bus, kind, 1))[0]
    assert await bus.dead_letters.get(letter.sequence) == letter
    replayed = await bus.dead_letters.replay(letter.sequence)
    assert replayed.body == b"again"
    delivery = await handled(bus, spec)
    assert (delivery.subject, delivery.body) == (spec.filter_subject, b"again")
    assert delivery.headers["Idempotency-Key"] == "k1"
    assert not any(name.startswith("Perdure-") for name in delivery.headers)
    assert delivery.headers["Nats-Msg-Id"] != ""
    with pytest.raises(NotFound):
        await bus.dead_letters.replay(letter.sequence)


async def test_a_letter_that_does_not_say_where_it_came_from_stays(bus: Bus, kind: str) -> None:
    await keep(bus, kind, b"?", origin="elsewhere.than.here")
    letter = (await listed(bus, kind, 1))[0]
    with pytest.raises(InvalidState):
        await bus.dead_letters.replay(letter.sequence)
    assert await bus.dead_letters.get(letter.sequence) == letter


@pytest.mark.parametrize("sequence", [0, -1, 10**12])
async def test_a_letter_that_never_was_is_not_found(bus: Bus, sequence: int) -> None:
    with pytest.raises(NotFound):
        await bus.dead_letters.get(sequence)


async def test_without_their_stream_there_are_none_and_it_comes_back(
    deployment: Deployment, bus: Bus, kind: str
) -> None:
    await call_api(deployment, f"STREAM.DELETE.{bus.subjects.stream('dead')}")
    assert (await bus.dead_letters.newest()).letters == []
    await keep(bus, kind, b"first")
    assert [letter.body for letter in await listed(bus, kind, 1)] == [b"first"]


async def handled(bus: Bus, spec: ConsumerSpec) -> Delivery:
    """The first message of a consumer."""
    came = anyio.Event()
    deliveries: list[Delivery] = []

    async def take(delivery: Delivery) -> Outcome:
        deliveries.append(delivery)
        came.set()
        return ACK

    async def consume() -> None:
        await bus.queue.consume(spec, take, concurrency=1)

    async with anyio.create_task_group() as group:
        group.start_soon(consume)
        with anyio.fail_after(20):
            await came.wait()
        group.cancel_scope.cancel()
    return deliveries[0]
