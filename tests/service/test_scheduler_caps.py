"""A project's cap with several of its runs at once, on a real server: each is made with its share, and the sum holds."""

from __future__ import annotations

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import projects_of
from libs.contracts.ids import random_project_id
from libs.contracts.items import ItemMap
from libs.contracts.project_events import ProjectCreated
from libs.contracts.projects import ProjectLimits, ProjectSpec, ProjectStatus
from tests.fakes.waiting import eventually
from tests.service.scheduler_peers import CLOCK, Deployment, Executor, executor, scheduler


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def held(peer: Executor, count: int) -> dict[str, int | None]:
    """The runs that go on, once there are so many, each with the tokens that it may use."""

    async def look() -> bool:
        return len(peer.held) == count

    await eventually(look, f"{count} runs go on")
    return {run_id: run.state.limits.max_total_tokens for run_id, run in peer.held.items()}


async def test_runs_at_once_share_what_is_left_and_the_project_ends_blocked(place: Deployment) -> None:
    projects = projects_of(place.bus, CLOCK)
    project = LogKey("local", random_project_id(CLOCK, 0))
    spec = ProjectSpec(
        name="papers",
        brief="Read them.",
        map=ItemMap(items=[f"paper {number}" for number in range(6)], goal="Read {item}."),
        concurrency=3,
        limits=ProjectLimits(max_total_tokens=900),
    )
    created = ProjectCreated(
        tenant=project.tenant, spec=spec, workspace=project.log_id, body_hash="0", by="test"
    )
    async with scheduler(place), executor(place) as peer:
        await projects.create(*project, [created])
        first, second, third = (begun := await held(peer, 3))
        assert list(begun.values()) == [300, 300, 300]
        await peer.complete(first, tokens=300)
        await peer.complete(second, tokens=100)
        begun = await held(peer, 2)
        (fourth,) = set(begun) - {third}
        assert begun[fourth] == 200, "what was neither used nor given"
        await peer.complete(third, tokens=300)
        await peer.complete(fourth, tokens=200)

        async def blocked() -> bool:
            return (await projects.load(*project)).state.status is ProjectStatus.BLOCKED

        await eventually(blocked, "the project is blocked")
    state = (await projects.load(*project)).state
    assert state.block is not None
    assert state.block.cap == "tokens"
    assert "900 tokens were used, at most 900" in state.block.reason
    assert (state.usage.total_tokens, state.sessions) == (900, 4)
