"""Parents and children: each end reaches the relatives, once, whoever was there to see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, LogKey
from libs.contracts import events as e
from libs.contracts.ids import child_run_id, new_boot_id
from libs.contracts.run import RunStatus
from services.scheduler.family import LOST
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, NO_SWEEP, Deployment, Executor, executor, scheduler

S = RunStatus


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


@pytest.fixture
async def peer(place: Deployment) -> AsyncGenerator[Executor]:
    async with executor(place) as peer:
        yield peer


async def held(peer: Executor, run: LogKey) -> None:
    await until(lambda: run.log_id in peer.held, f"{run.log_id} is claimed")


async def parent_of(place: Deployment, peer: Executor, *call_ids: str) -> tuple[LogKey, list[LogKey]]:
    """A claimed parent and its children, claimed too."""
    parent = await place.create()
    await held(peer, parent)
    children = await peer.delegate(place, parent, *call_ids)
    for child in children:
        await held(peer, child)
    return parent, children


async def test_a_childs_answer_wakes_the_parent_that_waits_for_it(place: Deployment, peer: Executor) -> None:
    async with scheduler(place, timing=NO_SWEEP):
        parent, (child,) = await parent_of(place, peer, "c1")
        await peer.wait_for_children(parent.log_id)
        await peer.complete(child.log_id, "forty-two", tokens=7)
        await held(peer, parent)
        state = await place.state(parent)
        result = state.child_results["c1"]
        assert (result.child_run_id, result.status, result.answer) == (child.log_id, "COMPLETED", "forty-two")
        assert (state.usage.output_tokens, state.epoch) == (7, 2)


async def test_every_end_of_a_child_is_reported_in_every_state_of_its_parent(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place, timing=NO_SWEEP), scheduler(place, timing=NO_SWEEP):
        parent, children = await parent_of(place, peer, "done", "failed", "cancelled")
        done, failed, cancelled = children
        # The parent is owned all the while.
        await peer.complete(done.log_id, "yes")
        await until_results(place, parent, 1)
        await peer.fail(failed.log_id, "the model is away")
        await until_results(place, parent, 2)
        # And now it waits for something else.
        await peer.ask(parent.log_id, "q")
        await place.cancel(cancelled)
        await until_results(place, parent, 3)
        state = await place.state(parent)
        assert state.status is S.WAITING_FOR_INPUT
        assert {call: (result.status, result.answer) for call, result in state.child_results.items()} == {
            "done": ("COMPLETED", "yes"),
            "failed": ("FAILED", "MODEL_ERROR: the model is away"),
            "cancelled": ("CANCELLED", "it was cancelled by test"),
        }
        assert len(await place.events(parent, e.ChildFinished)) == 3


async def test_what_ended_while_no_scheduler_ran_is_reported_once_by_the_next(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place):
        parent, children = await parent_of(place, peer, "c1", "c2")
        await peer.wait_for_children(parent.log_id)
    for child in children:
        await peer.complete(child.log_id, "late")
    async with scheduler(place), scheduler(place):
        await until_results(place, parent, 2)
        await held(peer, parent)
        assert len(await place.events(parent, e.ChildFinished)) == 2


async def test_a_parent_is_not_left_waiting_for_a_child_that_is_gone(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place):
        parent, (child,) = await parent_of(place, peer, "c1")
        await peer.wait_for_children(parent.log_id)
    # Only an operator removes a child that its parent has not heard of.
    last = (await place.runs.load(*child)).last
    await place.bus.log.purge(child, last + 1)
    async with scheduler(place):
        await until_results(place, parent, 1)
        result = (await place.state(parent)).child_results["c1"]
        assert (result.status, result.answer) == ("FAILED", LOST)


async def test_a_cancelled_parent_takes_its_descendants_with_it(place: Deployment, peer: Executor) -> None:
    async with scheduler(place, timing=NO_SWEEP):
        parent, (owned, middle) = await parent_of(place, peer, "owned", "middle")
        (grandchild,) = await peer.delegate(place, middle, "deep")
        await held(peer, grandchild)
        await peer.ask(grandchild.log_id, "q")
        await peer.wait_for_children(middle.log_id)
        await peer.wait_for_children(parent.log_id)
        await place.cancel(parent)
        for run in (middle, grandchild):
            state = await place.until_status(run, S.CANCELLED)
            assert state.cancel_requested_by in (parent.log_id, middle.log_id)
        await eventually(lambda: is_asked_to_end(place, owned), "the owner of the other child is asked")
        # Its owner lives and ends it by itself; nobody else does.
        assert (await place.state(owned)).status is S.RUNNING


async def test_a_failed_parent_ends_the_child_of_a_dead_owner(place: Deployment, peer: Executor) -> None:
    boot = new_boot_id(CLOCK)
    async with scheduler(place):
        parent = await place.create()
        await held(peer, parent)
        peer.claims = False
        (child,) = await peer.delegate(place, parent, "c1")
        await place.command(child, e.RunClaimed(owner="gone", boot=boot, epoch=1, attempt=1))
        await peer.fail(parent.log_id, "no more money")
        await place.until_status(child, S.CANCELLED)


async def test_a_child_of_a_parent_that_has_ended_is_never_executed(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place, timing=NO_SWEEP):
        parent, _ = await parent_of(place, peer)
        await peer.complete(parent.log_id)
        # A frozen owner that thaws makes it all the same.
        late = await place.create_child(parent, "late")
        await place.until_status(late, S.CANCELLED)
        nobodys = await place.create_child(LogKey("local", child_run_id(parent.log_id, "never")), "c")
        await place.until_status(nobodys, S.CANCELLED)
        assert peer.tickets_of(late) == peer.tickets_of(nobodys) == 0


async def test_a_copy_of_a_child_is_nobodys_child(place: Deployment, peer: Executor) -> None:
    async with scheduler(place):
        parent, _ = await parent_of(place, peer)
        await peer.complete(parent.log_id)
        copy = await place.create_child(parent, "c1", copy=True)
        await held(peer, copy)
        await peer.complete(copy.log_id)
        after = await place.create()
        await held(peer, after)
        assert await place.events(parent, e.ChildFinished) == []


async def test_children_whose_parent_ended_while_no_scheduler_ran_are_ended_by_the_next(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place):
        parent, (child,) = await parent_of(place, peer, "c1")
        await peer.wait_for_children(parent.log_id)
        await peer.ask(child.log_id, "q")
    await place.cancel(parent)
    async with scheduler(place):
        await place.until_status(child, S.CANCELLED)


async def test_waiting_runs_and_children_need_no_place_below_the_cap(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place, tenant_runs_max=1):
        first, second = await place.create(), None
        await held(peer, first)
        second = await place.create()
        children = await peer.delegate(place, first, "c1", "c2")
        for child in children:
            await held(peer, child)
        assert peer.tickets_of(second) == 0
        await peer.wait_for_children(first.log_id)
        await held(peer, second)
        # The parent comes back into the line of those below the cap.
        await peer.complete(children[0].log_id)
        await until_results(place, first, 1)
        assert (await place.state(first)).status is S.QUEUED
        await peer.complete(second.log_id)
        await held(peer, first)


async def test_a_run_without_a_parent_of_its_own_is_reported_to_nobody(
    place: Deployment, peer: Executor
) -> None:
    async with scheduler(place, timing=NO_SWEEP):
        parent, _ = await parent_of(place, peer)
        # Nothing in the parent's log asked for this child.
        uncalled = await place.create_child(parent, "uncalled")
        await held(peer, uncalled)
        await peer.complete(uncalled.log_id)
        after = await place.create()
        await held(peer, after)
        assert await place.events(parent, e.ChildFinished) == []


async def until_results(place: Deployment, parent: LogKey, count: int) -> None:
    async def look() -> bool:
        return len((await place.state(parent)).child_results) == count

    await eventually(look, f"{parent.log_id} has heard of {count} children")


async def is_asked_to_end(place: Deployment, run: LogKey) -> bool:
    return (await place.state(run)).cancel_requested_by is not None
