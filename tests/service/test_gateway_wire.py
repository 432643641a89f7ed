"""Recordings of model calls over HTTP and as lines: of the run's own tenant, whole, and nothing where nothing was kept."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import httpx
import pytest

from deploy.cli.export import events, exchanges, export
from deploy.cli.outcome import Exit
from deploy.cli.terminal import Screen
from libs.bus.history import blob_name
from libs.bus.ports import Bus
from libs.client import PerdureClient
from libs.contracts import events as e
from libs.contracts.errors import NotFound
from libs.contracts.values import Usage, WireRecording
from tests.service.gateway_served import Owner, created, gateway, http_client

LINES = [
    {"format": "perdure-wire/1", "run_id": "r", "iteration": 1, "number": n, "at": "t", "request": "{}"}
    for n in (1, 2)
]
LONG = "long " * 10_000


async def recorded(bus: Bus, run_id: str, digest: str = "d" * 64) -> None:
    """One model call of the run, whose recording has two lines."""
    owner = await Owner.of(bus, run_id)
    data = "".join(json.dumps(line) + "\n" for line in LINES).encode()
    await bus.store("blobs").put(blob_name("local", "d" * 64), data)
    await owner.write(
        e.ModelRequested(iteration=1, model="m", message_count=2, estimated_tokens=9),
        e.ModelCompleted(
            iteration=1,
            content=LONG,
            tool_calls=[],
            finish_reason="stop",
            usage=Usage(requests=1),
            latency_ms=1,
            wire=WireRecording(blob=digest, bytes=len(data)),
        ),
    )


def asked(run_id: str, output: Path | None, *, wire: bool) -> argparse.Namespace:
    return argparse.Namespace(
        run_id=run_id, wire=wire, output=None if output is None else str(output), json=True
    )


async def test_a_recording_is_given_with_its_event_and_nothing_with_the_others(
    bus: Bus, tmp_path: Path
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        run_id = await created(client)
        await recorded(bus, run_id)
        shown = (await client.get(f"/api/runs/{run_id}/wire/5")).json()
        assert shown == {"run_id": run_id, "sequence": 5, "exchanges": LINES}
        for missing in (1, 4, 6, 0, "x"):
            assert (await client.get(f"/api/runs/{run_id}/wire/{missing}")).status_code == 404
        lost = await created(client)
        await recorded(bus, lost, digest="e" * 64)
        gone = await client.get(f"/api/runs/{lost}/wire/5")
        assert (gone.status_code, gone.json()["error_code"]) == (404, "NOT_FOUND")


async def test_another_tenants_recording_is_not_there(bus: Bus, tmp_path: Path) -> None:
    keys = {"RUNTIME_API_KEYS_JSON": '{"alpha": "alpha-secret-0123456789", "beta": "beta-secret-0123456789"}'}
    async with (
        gateway(bus, tmp_path, environment=keys) as served,
        httpx.AsyncClient(base_url=served.url) as client,
    ):
        alpha = {"Authorization": "Bearer alpha-secret-0123456789"}
        made = await client.post("/api/tasks", json={"goal": "x"}, headers=alpha)
        path = f"/api/runs/{made.json()['run_id']}/wire/1"
        beta = {"Authorization": "Bearer beta-secret-0123456789"}
        assert (await client.get(path, headers=beta)).status_code == 404
        assert (await client.get(path)).status_code == 401


async def test_an_export_holds_every_line_whole(bus: Bus, tmp_path: Path) -> None:
    async with gateway(bus, tmp_path) as served, PerdureClient(served.url) as client:
        async with http_client(served) as http:
            run_id = await created(http)
        await recorded(bus, run_id)
        assert [json.loads(line) async for line in exchanges(client, run_id)] == LINES
        told = [json.loads(line) async for line in events(client, run_id)]
        assert [event["sequence"] for event in told] == [1, 2, 3, 4, 5]
        assert told[-1]["payload"]["content"] == LONG
        file, screen = tmp_path / "run.jsonl", io.StringIO()
        assert await export(client, Screen(screen), asked(run_id, file, wire=False)) is Exit.DONE
        assert len(file.read_text().splitlines()) == json.loads(screen.getvalue())["lines"] == 5
        assert file.stat().st_mode & 0o077 == 0
        nowhere = asked(run_id, tmp_path / "no" / "folder", wire=False)
        assert await export(client, Screen(io.StringIO()), nowhere) is Exit.USAGE


async def test_a_run_without_recordings_exports_none_and_says_so(
    bus: Bus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(bus, tmp_path) as served, PerdureClient(served.url) as client:
        async with http_client(served) as http:
            run_id = await created(http)
        assert await export(client, Screen(), asked(run_id, None, wire=True)) is Exit.FAILED
        assert "PERDURE_RECORD_WIRE" in capsys.readouterr().err
        with pytest.raises(NotFound):
            await export(client, Screen(), asked("run_0_none", tmp_path / "none", wire=False))
        assert not list(tmp_path.glob("none*"))
