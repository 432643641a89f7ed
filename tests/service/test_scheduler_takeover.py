"""Take-over: a death is written before anything is taken, and what the dead held goes to others."""

from __future__ import annotations

import json

import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, LogKey, Message
from libs.contracts import events as e
from libs.contracts.ids import new_boot_id
from libs.contracts.leases import LeaseValue
from libs.contracts.run import RunStatus
from libs.contracts.subjects import catalog_key, replica_key
from libs.contracts.tools import ControlReply
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, Deployment, executor, scheduler


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def last_sign_of_life(place: Deployment, service: str, *, slots: int = 0) -> str:
    """The boot of a process that has renewed its lease for the last time; it ends in a second."""
    boot = new_boot_id(CLOCK)
    value = LeaseValue(
        boot=boot,
        service=service,
        replica=f"{service}-gone",
        host="elsewhere",
        pid=1,
        process_start=1,
        slots=slots,
        free=slots,
        model_configured=True,
    )
    await place.bus.bucket("leases").put(replica_key(boot), msgspec.json.encode(value), ttl_s=1.0)
    return boot


async def claimed_by(place: Deployment, boot: str) -> LogKey:
    """A run that this boot owns."""
    run = await place.create(start=False)
    claim = e.RunClaimed(owner="gone", boot=boot, epoch=1, attempt=1)
    # In one record, so that nobody else can have claimed it in between.
    await place.command(run, e.RunStartRequested(by="test"), claim)
    return run


async def is_dead(place: Deployment, boot: str) -> bool:
    entry = await place.bus.bucket("leases").get(replica_key(boot))
    return entry is not None and msgspec.json.decode(entry.value, type=LeaseValue).dead


async def test_the_runs_of_a_killed_executor_go_to_another(place: Deployment) -> None:
    boot = await last_sign_of_life(place, "executor", slots=64)
    runs = [await claimed_by(place, boot) for _ in range(5)]
    async with executor(place) as peer, scheduler(place):
        await until(lambda: peer.held.keys() >= {run.log_id for run in runs}, "all are claimed")
        for run in runs:
            state = await place.state(run)
            assert (state.epoch, state.owner and state.owner.boot) == (2, peer.boot)
            assert peer.tickets_of(run) == 1
        assert await is_dead(place, boot)


async def test_the_runs_of_an_owner_that_died_while_nobody_looked_are_found(place: Deployment) -> None:
    run = await claimed_by(place, new_boot_id(CLOCK))
    async with executor(place) as peer, scheduler(place):
        await until(lambda: run.log_id in peer.held, "it is claimed")


@pytest.mark.parametrize("asked", ["before the death is known", "while no scheduler runs"])
async def test_a_run_that_is_to_end_ends_although_no_executor_lives(place: Deployment, asked: str) -> None:
    boot = await last_sign_of_life(place, "executor")
    run = await claimed_by(place, boot)
    if asked == "while no scheduler runs":
        await place.command(run, e.RunCancelRequested(by="test"))
        # The latest record of the run does not tell of it.
        await place.command(run, e.RunPauseRequested(by="test"))
    async with scheduler(place) as process:
        if asked == "before the death is known":
            await until(lambda: process.scheduler.rows.get(run.log_id) is not None, "the run is known")
            await place.command(run, e.RunCancelRequested(by="test"))
        await place.until_status(run, RunStatus.CANCELLED)
        assert await is_dead(place, boot)


async def test_a_standby_that_becomes_leader_knows_the_orphans(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as one:
        await until(lambda: one.leads, "the first leads")
        async with scheduler(place) as two:
            run = await claimed_by(place, await last_sign_of_life(place, "executor"))
            await until(lambda: two.scheduler.rows.get(run.log_id) is not None, "the second knows the run")
            await one.kill()
            await until(lambda: run.log_id in peer.held, "it is claimed")


async def test_an_owner_that_answers_keeps_its_runs_although_its_lease_lapsed(place: Deployment) -> None:
    boot = await last_sign_of_life(place, "executor", slots=64)
    run = await claimed_by(place, boot)
    asked: list[Message] = []

    async def answer(message: Message) -> bytes:
        asked.append(message)
        return msgspec.json.encode(ControlReply(boot=boot))

    answering = place.bus.wire.respond(place.bus.subjects.control(boot), answer)
    async with answering, executor(place) as peer, scheduler(place):
        await until(lambda: len(asked) >= 3, "it is asked again and again")
        other = await place.create()
        await until(lambda: other.log_id in peer.held, "another run is claimed meanwhile")
        assert peer.tickets_of(run) == 0
        assert not await is_dead(place, boot)


async def test_a_drained_executor_hands_its_runs_over_without_a_death(place: Deployment) -> None:
    async with executor(place) as other, scheduler(place), executor(place) as first:
        run = await claimed_by(place, first.boot)
        first.held[run.log_id] = await first.runs.load(*run)
        await first.release(run.log_id)
        await until(lambda: run.log_id in other.held or run.log_id in first.held, "it is claimed again")
        assert not await is_dead(place, first.boot)


async def test_what_the_bus_kept_for_a_dead_tool_host_is_removed(place: Deployment) -> None:
    boot = await last_sign_of_life(place, "toolhost")
    catalog, tools = place.bus.bucket("catalog"), place.bus.subjects.stream("tools")
    await catalog.put(catalog_key(boot), b"{}")
    await place.bus.queue.publish(place.bus.subjects.tool_host(boot), b"a call that nobody will take")

    async def cleared() -> bool:
        info = json.loads(await place.bus.wire.request(f"$JS.API.STREAM.INFO.{tools}", b"", timeout_s=5))
        return info["state"]["messages"] == 0 and await catalog.get(catalog_key(boot)) is None

    async with scheduler(place):
        await eventually(cleared, "neither calls nor a catalog are left")
        assert await is_dead(place, boot)


async def test_a_tool_host_that_died_while_nobody_looked_is_cleared_too(place: Deployment) -> None:
    boot, catalog = new_boot_id(CLOCK), place.bus.bucket("catalog")
    await catalog.put(catalog_key(boot), b"{}")

    async def cleared() -> bool:
        return await catalog.get(catalog_key(boot)) is None

    async with scheduler(place):
        await eventually(cleared, "no catalog is left")


async def test_leases_that_vanish_with_their_bucket_take_nothing_from_the_living(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as process:
        run = await place.create()
        await place.until_status(run, RunStatus.RUNNING)
        leases = f"KV_{place.bus.subjects.stream('leases')}"
        await place.bus.wire.request(f"$JS.API.STREAM.DELETE.{leases}", b"", timeout_s=5)

        async def restored() -> bool:
            info = json.loads(await place.bus.wire.request(f"$JS.API.STREAM.INFO.{leases}", b"", timeout_s=5))
            # The leader, the scheduler and the executor.
            return "state" in info and info["state"].get("num_subjects", 0) >= 3

        await eventually(restored, "all of them hold a lease again")
        later = await place.create()
        await until(lambda: process.leads and later.log_id in peer.held, "a new run is claimed")
        assert (peer.tickets_of(run), (await place.state(run)).epoch) == (1, 1)
