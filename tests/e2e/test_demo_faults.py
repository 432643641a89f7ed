"""The repair of the demo under fire: whichever service or server dies in the middle, the project ends the same."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.dev import demo_repair
from tests.e2e.stage import Stage, stage
from tests.fakes.waiting import PATIENCE_S

SCRIPT = {demo_repair.MARKER: demo_repair.turns()}
TESTS = {"RUN_TESTS_COMMAND": json.dumps(demo_repair.TESTS_COMMAND)}


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.*")}


def repaired() -> dict[str, bytes]:
    """The project as an undisturbed run leaves it."""
    wrong, right = demo_repair.EDIT
    files = tree(demo_repair.PROJECT)
    return files | {"split.py": files["split.py"].replace(wrong.encode(), right.encode())}


async def types_under_fire(on: Stage, run_id: str, kills: dict[str, str]) -> list[str]:
    """The types of all events; the first event of a type kills the process that is named for it."""
    remaining, types, sequences = dict(kills), list[str](), list[int]()
    async with asyncio.timeout(PATIENCE_S):
        async for event in on.client.stream(run_id, deltas=False):
            types.append(event.type)
            sequences.append(event.sequence)
            if (victim := remaining.pop(event.type, None)) is not None:
                on.perdure.kill(victim)
    assert sequences == list(range(1, len(sequences) + 1))
    return types


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("faults"), SCRIPT, TESTS) as ready:
        yield ready


@pytest.mark.parametrize(
    "kills",
    [
        {"verification.requested": "verifier"},
        {"workspace.attached": "gateway"},
        {"model.requested": "scheduler", "workspace.attached": "nats"},
    ],
    ids=lambda kills: "_then_".join(kills.values()),
)
async def test_the_repair_ends_the_same_whoever_is_killed(on: Stage, kills: dict[str, str]) -> None:
    name = "-".join(kills.values())
    project = on.data / "workspaces" / name
    shutil.copytree(demo_repair.PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    run_id = await on.submit(demo_repair.GOAL, workspace=name, acceptance=demo_repair.ACCEPTANCE)
    types = await types_under_fire(on, run_id, kills)
    run = await on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert run.verification is not None
    assert run.verification["status"] == "PASSED"
    assert types.count("run.completed") == 1
    assert tree(project) == repaired()
