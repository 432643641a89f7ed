"""A project goes on where its workspace was brought back: the machine that held it is gone, the history is not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from deploy.dev.demo_long import history
from deploy.dev.plan import SERVICES
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projectviews import ProjectView
from libs.contracts.views import EventView
from tests.e2e.machines import machine
from tests.e2e.stage import Stage, stage
from tests.e2e.test_projects import SCRIPT, feature
from tests.fakes.waiting import PATIENCE_S, eventually

# The rest of the project takes some ten seconds, and a death that is noticed.
_END_S = 180.0
NAMES = ["one", "two", "three"]
# Between a commit and its snapshot is the worst moment; the other one is for `make soak`.
STAGES = ["close", *(["agent"] if os.environ.get("SOAK_PROJECTS") else [])]


def is_at(kind: str, event: EventView) -> bool:
    """Whether the second feature's session asks for its agent, or for the errand that commits."""
    return (
        event.type == "session.run_requested"
        and event.payload["session"] == 3
        and event.payload["stage"] == kind
    )


async def lose(on: Stage, project_id: str, stage_of_session: str, victim: str) -> None:
    """Take the machine away: while the agent works, or as soon as the errand's commit stands in its log."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in on.client.stream(project_id):
            if is_at(stage_of_session, event):
                run_id = str(event.payload["run_id"])
                break
        else:
            raise AssertionError("the project ended before")
        # A stage's run is made right behind its intent.
        await eventually(lambda: _exists(on, run_id), f"{run_id} is made")
        async for event in on.client.stream(run_id, deltas=False):
            if event.type in ("tool.completed", "run.completed"):
                break
    on.perdure.kill(victim)


async def _exists(on: Stage, run_id: str) -> bool:
    listed = await on.client.runs(limit=100)
    return any(run.run_id == run_id for run in listed.runs)


@pytest.mark.parametrize("stage_of_session", STAGES)
async def test_every_feature_has_its_one_commit_whenever_the_machine_is_lost(
    tmp_path: Path, stage_of_session: str
) -> None:
    others = tuple(service for service in SERVICES if service.name != "toolhost")
    hosts = (machine(tmp_path, "here", 1), machine(tmp_path, "there", 2))
    async with stage(tmp_path, SCRIPT, {"PERDURE_LEASE_TTL_S": "1"}, services=(*others, *hosts)) as on:
        body = {"name": "moved", "brief": "Build.", "features": [feature(name) for name in NAMES]}
        made = await on.client.create_project(ProjectCreate.model_validate(body))

        async def card() -> ProjectView:
            return await on.client.project(made.project_id)

        seen = await eventually(card, "its first feature", fits=lambda seen: seen.sessions >= 2)
        is_here = (tmp_path / "here" / seen.workspace).exists()
        there = tmp_path / ("there" if is_here else "here")
        await lose(on, made.project_id, stage_of_session, "toolhost" if is_here else "toolhost-2")
        async with asyncio.timeout(_END_S):
            async for event in on.client.stream(made.project_id):
                if event.type in ("project.completed", "project.blocked"):
                    break
        seen = await card()
        assert seen.status == "COMPLETED", seen
        commits = await asyncio.to_thread(history, there / seen.workspace)
        assert [commit.feature for commit in commits if commit.feature] == NAMES
        listed = (await on.client.features(made.project_id)).features
        told = [str(each.commit) for each in listed]
        named = [commit.name for commit in commits if commit.feature]
        assert [full.startswith(short) for full, short in zip(told, named, strict=True)] == [True] * 3, (
            told,
            named,
        )
