"""The long demo: a brief becomes verified, committed features, also when everything is killed on the way."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.dev import demo_brief
from deploy.dev.demo_brief import BROKEN, RED, SILENT
from deploy.dev.demo_long import history
from deploy.dev.plan import SERVER, SERVICES
from libs.client import GatewayUnreachable
from libs.contracts.errors import Unavailable
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projectviews import ProjectView
from tests.e2e.demos import demo, living
from tests.e2e.stage import Stage, stage
from tests.fakes.waiting import PATIENCE_S

# The whole of it takes a minute and a half, of which the suite has no more than the short form; `make soak` has.
SOAK = bool(os.environ.get("SOAK_PROJECTS"))
# The demo bounds itself at 240 s (600 s the whole) and its drain behind that; sessions between two kills take a part of it.
_DEADLINE_S = 640.0 if SOAK else 280.0
# Before these sessions every process dies: in the middle of the first features, of the retries, and near the end.
_KILLED_AT = (3, 7, 10)


@pytest.mark.parametrize(
    "words, planned",
    [
        (["--short"], [BROKEN]),
        pytest.param([], [RED, SILENT, BROKEN], marks=pytest.mark.skipif(not SOAK, reason="make soak")),
    ],
    ids=["short", "whole"],
)
async def test_the_demo_ends_with_every_feature_committed_and_leaves_nothing_behind(
    tmp_path: Path, words: list[str], planned: list[str]
) -> None:
    async with demo(tmp_path, *words, module="deploy.dev.demo_long") as process:
        async with asyncio.timeout(_DEADLINE_S):
            output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    count = 3 if words else 7
    assert f"COMPLETED: {count} of {count} features verified and committed" in text, text
    assert re.search(r"passed: http GET http://127.0.0.1:\d+/ranking.json", text), text
    assert all(what in text.splitlines()[-1] for what in planned), text
    assert "\x1b" not in text
    assert not list(tmp_path.iterdir())
    assert not living(tmp_path)


@pytest.mark.skipif(not SOAK, reason="make soak")
async def test_killing_everything_three_times_changes_nothing_in_the_outcome(tmp_path: Path) -> None:
    async with stage(tmp_path, demo_brief.conversations()) as on:
        made = await on.client.create_project(ProjectCreate.model_validate(demo_brief.whole().body))
        for session in _KILLED_AT:
            await _once(on, made.project_id, lambda card, least=session: card.sessions >= least)
            for name in (*(service.child for service in SERVICES), SERVER):
                on.perdure.kill(name)
            await on.perdure.healthy(PATIENCE_S)
        card = await _once(on, made.project_id, lambda card: card.status in ("COMPLETED", "BLOCKED"))
        assert card.status == "COMPLETED", card
        workspace = on.data / "workspaces" / card.workspace
    commits = await asyncio.to_thread(history, workspace)
    # The feature that broke was committed once more; nothing else was, whoever died between commit and record.
    expected = Counter(part.id for part in demo_brief.whole().parts) + Counter(["votes"])
    assert Counter(commit.feature for commit in commits if commit.feature) == expected, commits
    assert len({commit.session for commit in commits}) == len(commits), commits
    assert all(commit.evidence for commit in commits if commit.feature), commits
    left = {path.name: path.read_text() for path in workspace.iterdir() if path.is_file()}
    runtimes = ("features.json", "progress.md")
    assert {name: text for name, text in left.items() if name not in runtimes} == demo_brief.finished()


async def _once(on: Stage, project_id: str, fits: Callable[[ProjectView], bool]) -> ProjectView:
    """The card once it is as wanted, however often the gateway is away meanwhile."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            try:
                card = await on.client.project(project_id)
            except (GatewayUnreachable, Unavailable):
                card = None
            if card is not None and fits(card):
                return card
            await asyncio.sleep(0.1)
