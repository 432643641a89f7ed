"""What snapshots leave behind: of each workspace its newest chain stays, of a deleted run's own one nothing."""

from __future__ import annotations

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, Draft, LogKey
from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event, decode_events
from libs.contracts.ids import SHARDS, session_run_id, workspace_id
from libs.contracts.project_events import ProjectCancelled, ProjectCreated, ProjectPaused
from libs.contracts.projects import ProjectSpec
from libs.contracts.sessions import Stage
from libs.contracts.workspaces import Saved, branch_object, lane_workspace, objects_of
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, QUICK, Deployment, scheduler

TIMING = QUICK._replace(journals_s=0.1, snapshot_kept_s=0.3)


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def keep(bus: Bus, name: str, chain: list[str], by: str = "run") -> LogKey:
    """What an owner appends once a host has stored a snapshot, and its object."""
    key = LogKey("local", workspace_id(SHARDS, "local", name))
    for each in objects_of(key.log_id, chain):
        await bus.store("workspaces").put(each, each.encode())
    tail = await bus.log.tail(key)
    saved = Saved(snapshot=chain[-1], commit="c", chain=chain, run_id=by, at_sequence=1)
    body = e.WorkspaceAttached(workspace_id=key.log_id, host="b", replica="r", saved=saved)
    sequence, expected = (tail.header.last + 1, tail.header.stream_sequence) if tail is not None else (1, 0)
    event = Event(sequence, key.log_id, rfc3339(CLOCK.now()), body)
    await bus.log.append(Draft(key, expected, [event], 0, "ATTACHED"))
    return key


async def project(bus: Bus, number: int, ended: bool, removed: list[int] | None = None) -> str:
    """A project with a branch that travels between its workspaces; the name of that object. `removed`: its lanes that
    are to go."""
    key = LogKey("local", f"project_0_{number:026d}")
    body = ProjectCreated(
        tenant="local", spec=ProjectSpec(name="p", brief="b"), workspace="w", body_hash="", by=""
    )
    end = ProjectCancelled(by="me", removed=removed or []) if ended else ProjectPaused(by="me")
    at = rfc3339(CLOCK.now())
    events = [Event(1, key.log_id, at, body), Event(2, key.log_id, at, end)]
    await bus.log.append(Draft(key, 0, events, 0, "CANCELLED" if ended else "PAUSED"))
    await bus.store("workspaces").put(branch_object(key.log_id), b"bundle")
    return branch_object(key.log_id)


async def test_only_the_newest_chain_of_a_workspace_stays(place: Deployment) -> None:
    bus, store = place.bus, place.bus.store("workspaces")
    other = await keep(bus, "other", ["x", "y"])
    await keep(bus, "project", ["a", "b"])
    key = await keep(bus, "project", ["c", "d"])
    await store.put(f"{key.log_id}/never-said", b"of a host that died")
    goes_on, _ = [await project(bus, number, ended) for number, ended in ((1, False), (2, True))]
    chains = [*objects_of(key.log_id, ["c", "d"]), *objects_of(other.log_id, ["x", "y"])]
    wanted = sorted([*chains, goes_on])

    async def only_those() -> bool:
        return await store.names() == wanted

    async with scheduler(place, timing=TIMING):
        await eventually(only_those, "what is outdated is gone")

        async def one_record() -> bool:
            return len(await bus.log.read(key)) == 1

        await eventually(one_record, "so are the records")
    (record,) = await bus.log.read(key)
    newest = decode_events(record)[-1].body
    assert isinstance(newest, e.WorkspaceAttached)
    assert newest.saved is not None
    assert newest.saved.chain == ["c", "d"]
    # The log goes on behind what was removed.
    assert (await keep(bus, "project", ["c", "d", "e"])) == key


async def test_of_a_deleted_runs_own_workspace_nothing_stays(place: Deployment) -> None:
    run, store = await place.create(start=False), place.bus.store("workspaces")
    key = await keep(place.bus, run.log_id, ["a"], by=run.log_id)
    await keep(place.bus, "shared", ["s"])
    await place.cancel(run)
    await place.command(run, e.RunDeleted(body_hash="0", by="test"))

    async def gone() -> bool:
        return not [name for name in await store.names() if name.startswith(key.log_id)]

    async with scheduler(place, timing=TIMING):
        await eventually(gone, "its snapshots are gone")
    assert await place.bus.log.tail(key) is None
    assert len(await store.names()) == 1


async def test_the_workspace_of_a_deleted_run_stays_where_another_one_works_or_has_worked_in_it(
    place: Deployment,
) -> None:
    """By its name it is the deleted run's own; a later task may have named it, too."""
    lived_in, kept_since, its_own = [await place.create(start=False) for _ in range(3)]
    await place.create(start=False, workspace=lived_in.log_id)
    later = await place.create(start=False, workspace=kept_since.log_id)
    await place.cancel(later)
    keys = [
        await keep(place.bus, run.log_id, ["a"], by=by.log_id)
        for run, by in ((lived_in, lived_in), (kept_since, later), (its_own, its_own))
    ]
    async with scheduler(place, timing=TIMING):
        for run in (lived_in, kept_since, its_own):
            await place.cancel(run)
            await place.command(run, e.RunDeleted(body_hash="0", by="test"))

            async def only_a_tombstone(run: LogKey = run) -> bool:
                return len(await place.bus.log.read(run)) == 1

            await eventually(only_a_tombstone, "the run is purged")
    left = [await place.bus.log.tail(key) is not None for key in keys]
    assert left == [True, True, False]


async def test_of_the_lanes_that_a_project_names_at_its_end_nothing_stays(place: Deployment) -> None:
    """Those of the first one ended while nobody was there."""
    bus, store = place.bus, place.bus.store("workspaces")
    identifiers = [f"project_0_{number:026d}" for number in (1, 2)]
    lanes = [
        [
            await keep(
                bus, lane_workspace(identifier, lane), ["a"], by=session_run_id(identifier, 9, Stage.LEAVE)
            )
            for lane in range(3)
        ]
        for identifier in identifiers
    ]
    # A task that somebody else made has worked there, and what it left is nobody's to remove.
    guest = await place.create(start=False, workspace=lane_workspace(identifiers[0], 2))
    await place.cancel(guest)
    await keep(bus, lane_workspace(identifiers[0], 2), ["b"], by=guest.log_id)
    await project(bus, 1, ended=True, removed=[0, 2])
    kept = [lanes[0][1], lanes[0][2], lanes[1][1]]

    async def only_those() -> bool:
        stored = {name.partition("/")[0] for name in await store.names()}
        return stored == {key.log_id for key in kept}

    async with scheduler(place, timing=TIMING) as process:
        await until(lambda: process.leads, "it leads")
        await project(bus, 2, ended=True, removed=[0, 2])
        await eventually(only_those, "what nobody needs is gone, with what is stored of it")
    for key in [*lanes[0], *lanes[1]]:
        assert (await bus.log.tail(key) is not None) == (key in kept)
