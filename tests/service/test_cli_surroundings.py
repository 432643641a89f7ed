"""The command line in its surroundings: readers that leave, and workspaces of a deployment with tenants."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from deploy.cli.workspaces import choose
from libs.bus.ports import Bus
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError
from services.toolhost.workspace import place_of
from tests.service.gateway_served import DEADLINE_S, Served, created, gateway, http_client

SECRET = "alpha-secret-0123456789"
KEYS = {"RUNTIME_API_KEYS_JSON": f'{{"alpha": "{SECRET}"}}'}


async def unread(served: Served, *words: str) -> int:
    """The exit code of a command whose reader has left already."""
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", *words),
        env={"PATH": os.environ["PATH"], "PERDURE_URL": served.url},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=writing,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(writing)
    async with asyncio.timeout(DEADLINE_S):
        return await process.wait()


async def test_a_watch_that_nobody_reads_does_not_end_as_if_the_run_had_completed(
    bus: Bus, tmp_path: Path
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        run_id = await created(client)
        assert await unread(served, "runs", "tail", run_id) == 141
        assert await unread(served, "run", "Go.") == 141
        assert await unread(served, "runs", "show", run_id) == 0


async def test_a_directory_of_a_tenant_is_the_workspace_that_its_tool_host_opens(
    bus: Bus, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "data").mkdir()
    known = {**KEYS, "PERDURE_DATA": str(tmp_path / "data"), "PERDURE_TOKEN": SECRET}
    async with (
        gateway(bus, tmp_path, environment=KEYS) as served,
        PerdureClient(served.url, SECRET) as client,
    ):
        chosen = await choose(client, str(project), known, here=True)
        with pytest.raises(ConfigurationError, match="which is yours"):
            await choose(client, str(project), {**known, "PERDURE_TOKEN": ""}, here=True)
    place = place_of(tmp_path / "data" / "workspaces", chosen.name, tenant="alpha")
    assert place.directory.resolve() == project
    assert chosen.note == f"the agent edits {project} itself"


async def test_a_name_that_is_new_is_said_to_be_new(bus: Bus, tmp_path: Path) -> None:
    root = tmp_path / "workspaces"
    (root / "shop").mkdir(parents=True)
    known = {"PERDURE_DATA": str(tmp_path)}
    async with gateway(bus, tmp_path) as served, PerdureClient(served.url) as client:
        assert await choose(client, "shop", known, here=True) == ("shop", "")
        name, note = await choose(client, "shpo", known, here=True)
        assert (name, "new empty workspace 'shpo'" in note) == ("shpo", True)
        _, note = await choose(client, "shop", known, here=False)
        assert "if it is new" in note
        with pytest.raises(ConfigurationError, match="only for a server on this machine"):
            await choose(client, str(tmp_path), known, here=False)
