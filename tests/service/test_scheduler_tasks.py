"""Tasks published on the bus: they become runs exactly once, or are reported with the reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from deploy.dev.nats_server import NatsServer
from libs.bus.consumer import REASON
from libs.bus.ports import Bus, LogKey
from libs.contracts.ids import derived_run_id
from libs.contracts.run import RunState, RunStatus
from services.scheduler.places import Held
from services.scheduler.tasks import unanswered_tasks
from tests.fakes.clock import QuickClock
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import DEADLINE_S, Deployment, executor, scheduler

TASK = {"goal": "Water the plants.", "priority": "high", "metadata": {"room": "7"}}


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


@pytest.fixture
async def publisher(nats_node: NatsServer) -> AsyncIterator[Client]:
    """Anybody's client: publishers need nothing of Perdure."""
    address = nats_node.address
    client = Client()
    await client.connect(address.url, user=address.user, password=address.password)
    yield client
    await client.close()


async def publish(
    client: Client, place: Deployment, body: object, *, tenant: str = "local", key: str | None = None
) -> tuple[int, str]:
    """Publish a task and wait for the PubAck; returns its sequence and the stream's creation time."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Idempotency-Key": key} if key is not None else None
    subject = place.bus.subjects.tasks(tenant)
    ack = json.loads((await client.request(subject, data, headers=headers, timeout=DEADLINE_S)).data)
    assert "error" not in ack, ack
    stream = f"$JS.API.STREAM.INFO.{place.bus.subjects.stream('tasks')}"
    info = json.loads((await client.request(stream, timeout=DEADLINE_S)).data)
    return ack["seq"], info["created"]


async def found(place: Deployment, tenant: str, run_id: str) -> RunState:
    """The run, once it is there."""
    states: list[RunState] = []

    async def look() -> bool:
        folded = await place.runs.find(tenant, run_id)
        states.extend([folded.state] if folded is not None else [])
        return bool(states)

    await eventually(look, f"{run_id} is in the log")
    return states[-1]


async def rejections(client: Client, place: Deployment, tenant: str, count: int) -> list[str]:
    """The reasons of all rejected tasks of a tenant, once there are so many."""
    subject = place.bus.subjects.rejected(tenant)
    reasons: list[str] = []
    stream = place.bus.subjects.stream("dead")

    async def look() -> bool:
        query = json.dumps({"seq": len(reasons) + 1, "next_by_subj": subject}).encode()
        answer = await client.request(f"$JS.API.DIRECT.GET.{stream}", query, timeout=DEADLINE_S)
        if answer.headers and REASON in answer.headers:
            reasons.append(answer.headers[REASON])
        return len(reasons) >= count

    await eventually(look, f"{count} tasks of {tenant} are rejected")
    return reasons


async def test_a_published_task_runs_like_one_posted(place: Deployment, publisher: Client) -> None:
    async with executor(place), scheduler(place):
        sequence, created = await publish(publisher, place, TASK, tenant="acme")
        run_id = derived_run_id(1, "acme", "message", created, str(sequence))
        await found(place, "acme", run_id)
        await place.until_status(LogKey("acme", run_id), RunStatus.RUNNING)
        state = await place.state(LogKey("acme", run_id))
    assert (state.task.goal, state.task.priority, state.task.metadata) == (
        "Water the plants.",
        "high",
        {"room": "7"},
    )
    assert (state.tenant, state.source) == ("acme", "bus")


async def test_tasks_published_while_no_scheduler_ran_are_not_lost(
    place: Deployment, publisher: Client
) -> None:
    published = [await publish(publisher, place, TASK) for _ in range(5)]
    async with scheduler(place):
        for sequence, created in published:
            state = await found(place, "local", derived_run_id(1, "local", "message", created, str(sequence)))
            assert state.status is RunStatus.QUEUED


async def test_one_key_makes_one_run_however_often_and_through_whom_it_is_published(
    place: Deployment, publisher: Client
) -> None:
    async with scheduler(place), scheduler(place):
        for _ in range(10):
            await publish(publisher, place, TASK, key="k1")
        last, created = await publish(publisher, place, TASK)
        await found(place, "local", derived_run_id(1, "local", "message", created, str(last)))
        state = await found(place, "local", derived_run_id(1, "local", "key", "k1"))
        assert state.sequence == 2
        async with place.bus.log.wakeups() as wakeups:
            seen = {(await anext(wakeups)).key.log_id for _ in range(2)}
        assert len(seen) == 2


async def test_a_key_belongs_to_its_tenant(place: Deployment, publisher: Client) -> None:
    async with scheduler(place):
        for tenant in ("a", "b"):
            await publish(publisher, place, TASK, tenant=tenant, key="k1")
            await found(place, tenant, derived_run_id(1, tenant, "key", "k1"))


@pytest.mark.parametrize(
    "body, reason",
    [
        (b"", "VALIDATION_ERROR"),
        (b"\xff{", "VALIDATION_ERROR"),
        (b"[]", "VALIDATION_ERROR"),
        ({}, "goal"),
        ({"goal": " "}, "goal"),
        ({"goal": "x", "colour": "red"}, "colour"),
        ({"goal": "x", "priority": "urgent"}, "priority"),
        ({"goal": "x", "limits": {"max_iterations": 10**6}}, "max_iterations"),
        ({"goal": "x", "acceptance": [{"kind": "prayer"}]}, "acceptance"),
    ],
)
async def test_a_malformed_task_is_rejected_with_its_reason(
    place: Deployment, publisher: Client, body: object, reason: str
) -> None:
    async with scheduler(place):
        await publish(publisher, place, body)
        sequence, created = await publish(publisher, place, TASK)
        assert reason in (await rejections(publisher, place, "local", 1))[0]
        await found(place, "local", derived_run_id(1, "local", "message", created, str(sequence)))


async def test_another_task_under_a_used_key_is_rejected(place: Deployment, publisher: Client) -> None:
    async with scheduler(place):
        await publish(publisher, place, TASK, key="k1")
        await found(place, "local", derived_run_id(1, "local", "key", "k1"))
        await publish(publisher, place, TASK | {"goal": "Burn the plants."}, key="k1")
        assert "IDEMPOTENCY_CONFLICT" in (await rejections(publisher, place, "local", 1))[0]
        assert (await found(place, "local", derived_run_id(1, "local", "key", "k1"))).task.goal == TASK[
            "goal"
        ]


async def test_a_tenant_that_is_no_token_is_rejected(place: Deployment, publisher: Client) -> None:
    async with scheduler(place):
        await publish(publisher, place, TASK, tenant="Acme!")
        assert "tenant" in (await rejections(publisher, place, "Acme!", 1))[0]


async def test_what_is_published_beyond_the_queue_waits_on_the_bus_and_in_nobody_elses_way(
    place: Deployment, publisher: Client
) -> None:
    async with executor(place) as peer, scheduler(place, tenant_runs_max=1, tenant_queued_max=1):
        published = [await publish(publisher, place, TASK, tenant="poor") for _ in range(5)]
        ids = {derived_run_id(1, "poor", "message", made, str(at)) for at, made in published}
        await publish(publisher, place, TASK, tenant="rich", key="k1")
        rich = derived_run_id(1, "rich", "key", "k1")
        await until(lambda: rich in peer.held and len(peer.held) == 2, "one of each is claimed")

        async def three_wait() -> bool:
            return await unanswered_tasks(place.bus) == 3

        await eventually(three_wait, "the others are known to wait, to any scheduler")
        for done in range(5):
            known = [run_id for run_id in ids if await place.runs.find("poor", run_id) is not None]
            assert len(known) <= done + 2, "one under way and one queued, behind those that have ended"
            await until(lambda: ids & peer.held.keys(), "the next is claimed")
            (run_id,) = ids & peer.held.keys()
            await peer.complete(run_id)
        assert len(peer.tickets) == len({ticket.run_id for ticket in peer.tickets}) == 6
        letters = await place.bus.dead_letters.newest(kind="rejected", tenant="poor")
        assert not letters.letters


class Waiting:
    """`Held` by a clock that a test moves, and what all schedulers have unanswered."""

    def __init__(self) -> None:
        self.clock = QuickClock()
        self.unanswered = 0
        self.held = Held(self.clock, self.count, tenant_max=2, most=3, queue_max=10)

    async def count(self) -> int:
        return self.unanswered

    async def may(self, tenant: str, *messages: int, new: bool = True) -> list[bool]:
        return [await self.held.hold(tenant, each, new=new) is not None for each in messages]


async def test_what_waits_on_the_bus_is_bounded_for_each_tenant_and_in_all() -> None:
    waiting = Waiting()
    assert await waiting.may("a", 1, 2, 3) == [True, True, False]
    assert await waiting.may("b", 4, 5) == [True, False]
    waiting.held.release("a", 1)
    assert await waiting.may("b", 5) == [True]
    waiting.clock.slept.append(2.1)
    assert await waiting.may("a", 6, 7) == [True, True], "what went away holds nothing"


async def test_what_waits_already_is_never_turned_away_by_another_scheduler() -> None:
    first, second = Waiting(), Waiting()
    assert await first.may("a", 1, 2) == await second.may("a", 3, 4) == [True, True]
    assert await second.may("a", 1, 2, new=False) == [True, True]
    assert await second.may("a", 5) == [False]


async def test_however_many_schedulers_there_are_the_queue_keeps_room() -> None:
    waiting = Waiting()
    waiting.unanswered = 10
    assert await waiting.may("a", 1) == [False]
    waiting.unanswered = 5
    waiting.clock.slept.append(2.1)
    assert await waiting.may("a", 1) == [True]


async def test_who_has_just_come_to_wait_comes_again_no_sooner_than_who_waits_long() -> None:
    clock = QuickClock()

    async def none() -> int:
        return 0

    held = Held(clock, none, tenant_max=2_000, most=2_000, queue_max=2_000)
    assert not held.has_any("a")
    few = await held.hold("a", 0, new=True)
    assert held.has_any("a")
    for message in range(1, 1_000):
        await held.hold("a", message, new=True)
    new, old = await held.hold("a", 1_000, new=True), await held.hold("a", 0, new=False)
    assert few is not None
    assert new is not None
    assert new == old
    assert new > few
