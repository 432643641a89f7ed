"""A whole Perdure for a test: embedded server, five processes, a scripted model, a client.

Invariant: everything is real but the model's words; what a test starts is gone when it ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from deploy.dev import model_script, model_server
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.model_script import load_script
from deploy.dev.model_server import ModelServer
from deploy.dev.plan import SERVICES, Plan, Service
from libs.bus.connection import BusSettings
from libs.client import PerdureClient
from libs.contracts.http import TaskCreate
from libs.contracts.views import EventView, RunView
from tests.fakes.waiting import eventually

# The test command of every workspace: a script in it says what testing means there.
TESTS_COMMAND = ["sh", "run_tests.sh"]

LOOK_S = 0.05

T = TypeVar("T")
Script = Mapping[str, list[dict[str, object]]]


class Stage(NamedTuple):
    """What a test works with."""

    perdure: Launcher
    client: PerdureClient
    model: ModelServer
    data: Path

    def workspace(self, name: str, files: Mapping[str, str] | None = None) -> Path:
        """The folder of a workspace, made with these files."""
        folder = self.data / "workspaces" / name
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    async def submit(self, goal: str, **fields: object) -> str:
        """Start a task; the run's id."""
        task = TaskCreate.model_validate({"goal": goal, "auto_start": True, **fields})
        return (await self.client.create_task(task)).run_id

    async def ended(self, run_id: str) -> RunView:
        """The run once it is terminal."""
        return await self.until(run_id, lambda run: run.status in ("COMPLETED", "FAILED", "CANCELLED"))

    async def until(self, run_id: str, condition: Callable[[RunView], bool]) -> RunView:
        """The run once it fulfils a condition."""

        async def look() -> RunView:
            return await self.client.run(run_id)

        return await eventually(look, f"run {run_id} as wanted", fits=condition, every_s=LOOK_S)

    async def events(self, run_id: str) -> list[EventView]:
        """All events of a run, page by page."""
        found: list[EventView] = []
        while True:
            page = await self.client.events(run_id, after_sequence=len(found), limit=100)
            found += page.events
            if not page.events:
                return found

    @property
    def bus(self) -> BusSettings:
        """How to get onto the bus as the services do."""
        access = self.perdure.credentials
        assert access is not None
        return BusSettings(access.url, access.user, access.password, None)

    async def event(self, run_id: str, kind: str) -> EventView:
        """The first event of a kind, once it is there."""

        async def look() -> EventView | None:
            return next((event for event in await self.events(run_id) if event.type == kind), None)

        return await eventually(look, f"{kind} of {run_id}", every_s=LOOK_S)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def calls(*made: dict[str, object], **fields: object) -> dict[str, object]:
    """A turn that calls tools."""
    return {"calls": list(made), **fields}


def says(text: str | list[str], **fields: object) -> dict[str, object]:
    """A turn that is a final answer."""
    return {"text": text, **fields}


@asynccontextmanager
async def stage(
    folder: Path,
    script: Script | Sequence[Mapping[str, object]],
    environment: Mapping[str, str] | None = None,
    *,
    services: tuple[Service, ...] = SERVICES,
    nats_url: str | None = None,
    rules: Mapping[str, list[str]] | None = None,
    dotenv: Mapping[str, str] | None = None,
    server: Callable[[model_script.Script], ModelServer] = ModelServer,
) -> AsyncGenerator[Stage]:
    """Start everything below `folder`. `script` maps a marker that a goal holds to the model's turns, or lists whole
    conversations (`model_script.py`); `server` answers by it.

    `rules` maps a marker to what its endpoint refuses beside what every strict one does. `dotenv` is what the services
    read from `.env` and from nowhere else. With a `nats_url` the server is somebody else's, and the environment says how
    to get in.
    """
    conversations = (
        [
            {"marker": marker, "turns": turns, "rules": (rules or {}).get(marker, [])}
            for marker, turns in script.items()
        ]
        if isinstance(script, Mapping)
        else script
    )
    if dotenv is not None:
        write_dotenv(folder, dotenv)
    model = server(load_script(json.dumps({"conversations": conversations}).encode()))
    with (folder / "perdure.log").open("a", encoding="utf-8") as lines:
        log = MergedLog(lines, readable=False)
        async with model_server.serve(model) as model_url:
            known = {
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "OPENAI_API_KEY": "any",
                "OPENAI_BASE_URL": model_url,
                "MODEL_ID": "scripted",
                "RUN_TESTS_COMMAND": json.dumps(TESTS_COMMAND),
                **(environment or {}),
            }
            plan = Plan(
                data=folder / "data",
                environment=known,
                port=0,
                nats_url=nats_url,
                services=services,
                directory=folder,
                left_to_dotenv=frozenset(dotenv or {}),
                # These tests kill on purpose.
                restart_s_max=0.5,
            )
            async with Launcher(plan, log) as perdure, PerdureClient(perdure.url) as client:
                yield Stage(perdure, client, model, folder / "data")
        log.close()


def write_dotenv(folder: Path, values: Mapping[str, str]) -> None:
    """Put a `.env` where the services run, at once and whole, as somebody who replaces a key does."""
    written = folder / ".env.new"
    written.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    written.rename(folder / ".env")


def living(marker: str) -> list[int]:
    """Pids of processes (not zombies) whose command line holds the marker."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in command and state != "Z":
            found.append(int(path.name))
    return found
