"""Secure mode, whole: two tenants who see nothing of each other, and secrets that are written down nowhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from deploy.dev.plan import SERVICES
from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from libs.client import PerdureClient
from libs.contracts.http import TaskCreate
from tests.e2e.stage import Stage, call, calls, says, stage

MODEL_KEY = "sk-model-0123456789abcdef"
ALPHA = ("alpha-first-secret-0123", "alpha-second-secret-0123")
BETA, OPERATOR = "beta-only-secret-01234", "operator-only-secret-01234"
SECRETS = (MODEL_KEY, *ALPHA, BETA, OPERATOR)
ENVIRONMENT = {
    "OPENAI_API_KEY": MODEL_KEY,
    "RUNTIME_API_KEYS_JSON": json.dumps({"alpha": list(ALPHA), "beta": BETA}),
    "PERDURE_OPERATOR_KEY": OPERATOR,
}
# The tests of a workspace look at everything that a command of a tool may see.
LOOK = "env\ncat /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'\n"
SCRIPT = {
    "[look]": [
        calls(call("write_file", path="a.txt", content="a\n"), call("run_tests")),
        says("I wrote `a.txt`."),
    ],
}


class Reply(NamedTuple):
    status: int
    text: str


@pytest.fixture
async def on(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path, SCRIPT, ENVIRONMENT, services=SERVICES) as ready:
        yield ready


def written(folder: Path) -> Iterator[Path]:
    """Every file that the deployment has left, but the one that is made to hold the bus's own password."""
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


async def told(client: httpx.AsyncClient, run_id: str) -> list[Reply]:
    """Everything that the API says of a run and of the deployment, and its refusals."""
    paths = [
        f"/api/runs/{run_id}{rest}"
        for rest in ("", "/events?limit=1000", "/questions", "/artifacts", "/diff")
    ]
    paths += ["/api/runs", "/api/health", "/api/nothing", "/openapi.json", f"/api/runs/{run_id}/events/x"]
    replies = [await client.get(path) for path in paths]
    replies.append(await client.post("/api/tasks", json={"goal": ""}))
    return [Reply(reply.status_code, f"{reply.headers}{reply.text}") for reply in replies]


async def test_tenants_see_nothing_of_each_other_and_no_secret_is_written_down(
    on: Stage, tmp_path: Path
) -> None:
    folder = on.data / "workspaces" / "alpha" / "shop"
    folder.mkdir(parents=True)
    (folder / "run_tests.sh").write_text(LOOK)
    task = TaskCreate(goal="[look]", workspace="shop", auto_start=True)
    async with PerdureClient(on.perdure.url, ALPHA[0]) as alpha, PerdureClient(on.perdure.url, BETA) as beta:
        run_id = (await alpha.create_task(task)).run_id
        async for _ in alpha.stream(run_id):
            pass
        run = await alpha.run(run_id)
        assert run.status == "COMPLETED", run.error
        events = (await alpha.events(run_id, limit=1000)).events
        looked = [event.payload["output"] for event in events if event.type == "tool.completed"]
        assert any("PATH=" in str(output) for output in looked), looked
        theirs = (await beta.create_task(TaskCreate(goal="Theirs.", workspace="shop"))).run_id
        assert [row.run_id for row in (await beta.runs()).runs] == [theirs]
        assert (await beta.artifacts(theirs)).artifacts == []
        assert "a.txt" in {file.path for file in (await alpha.artifacts(run_id)).artifacts}
    said: list[Reply] = []
    for secret in (ALPHA[1], BETA, OPERATOR, f"{BETA}x", ""):
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        async with httpx.AsyncClient(base_url=on.perdure.url, headers=headers) as client:
            replies = await told(client, run_id)
        said += replies
        if secret == BETA:
            assert {reply.status for reply in replies[:5]} == {404}
        if secret in (OPERATOR, f"{BETA}x", ""):
            assert {reply.status for reply in replies[:6]} == {401}
    held = await on_the_bus(on)
    # What is looked through is the right thing: the run's id is in all of it.
    assert any(run_id in reply.text for reply in said)
    assert {run_id, f"{run_id}.call_1_1.1"} <= {name for name, _ in held}
    assert any(run_id.encode() in path.read_bytes() for path in written(tmp_path))
    for secret in SECRETS:
        assert not [reply for reply in said if secret in reply.text], "the API tells a secret"
        assert not [name for name, value in held if secret.encode() in value], "the bus holds a secret"
        # The stream's files hold what the bus holds; the log of all services is among them.
        assert not [path for path in written(tmp_path) if secret.encode() in path.read_bytes()]


async def on_the_bus(on: Stage) -> list[tuple[str, bytes]]:
    """All logs of runs, and every bucket and store."""
    held: list[tuple[str, bytes]] = []
    async with connect(on.bus, SystemClock()) as bus:
        for key in await bus.runs():
            held += [(key.log_id, record.whole or record.body) for record in await bus.log.read(key)]
        for name in ("leases", "checkpoints", "journal", "catalog", "spending"):
            held += [(entry.key, entry.value) for entry in await bus.bucket(name).entries()]
        for name in ("blobs", "workspaces"):
            store = bus.store(name)
            held += [(one, await store.get(one) or b"") for one in await store.names()]
    return held
