"""`perdure log`: runs leave one deployment and arrive in another, whole; what does not hold together is found."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from deploy.cli import log
from deploy.cli.__main__ import parser
from deploy.cli.outcome import Exit
from deploy.cli.terminal import Screen
from deploy.dev.nats_server import NatsServer
from libs.bus.connection import BusSettings, ServerBus, connect
from libs.bus.history import blob_name
from libs.bus.logfile import BadFile
from libs.bus.ports import Draft, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts import events as e
from libs.contracts.envelope import Event
from libs.contracts.errors import ConfigurationError, NotFound
from libs.contracts.exchange import Exchange
from libs.contracts.subjects import is_taken
from libs.contracts.values import Usage, WireRecording
from tests.service.gateway_served import Owner, created, gateway, http_client, runs_of
from tests.service.test_gateway_copies import LONG, events_of, finished


@pytest.fixture
async def other(nats_node: NatsServer, bus: ServerBus) -> AsyncIterator[ServerBus]:
    """A deployment that was just set up, on the same server."""
    address = nats_node.address
    settings = BusSettings(
        address.url,
        address.user,
        address.password,
        None,
        prefix=f"{bus.subjects.prefix}-b",
        monitor_url=address.monitor_url,
    )
    async with connect(settings, SystemClock()) as made:
        await made.ensure_topology()
        yield made


async def perdure(bus: ServerBus, *words: str) -> Exit:
    """The command on a bus."""
    args = parser().parse_args(["log", *words])
    actions = {"export": log.export, "import": log.bring_in, "verify": log.verify, "replay": log.replay}
    return await actions[args.action](bus, Screen(), args)


async def recorded(bus: ServerBus, owner: Owner) -> None:
    """A turn whose traffic was recorded."""
    await owner.write(e.ModelRequested(iteration=9, model="m", message_count=1, estimated_tokens=1))
    exchange = Exchange(
        format="perdure-wire/1",
        run_id=owner.run_id,
        iteration=9,
        number=1,
        at="2026-11-30T00:00:00Z",
        request="{}",
    )
    data = exchange.model_dump_json().encode()
    digest = hashlib.sha256(data).hexdigest()
    await bus.store("blobs").put(blob_name("local", digest), data)
    failed = e.ModelFailed(
        iteration=9,
        error_code="MODEL_ERROR",
        message="gone",
        attempt=1,
        wire=WireRecording(blob=digest, bytes=len(data)),
    )
    await owner.write(failed)


async def test_an_export_is_imported_into_an_empty_deployment_and_both_are_sound(
    bus: ServerBus, other: ServerBus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "export.jsonl")
    async with gateway(bus, tmp_path / "a") as here, http_client(here) as client:
        ended = await finished(client, bus)
        live = await Owner.of(bus, await created(client))
        await live.turn(1)
        await recorded(bus, live)
        asking = await Owner.of(bus, await created(client))
        await asking.ask()
        deleted = await Owner.of(bus, await created(client))
        await deleted.complete()
        assert (await client.delete(f"/api/runs/{deleted.run_id}")).status_code == 204
        before = {owner.run_id: await events_of(client, owner.run_id) for owner in (ended, live, asking)}
        rows = {row["run_id"]: row for row in (await client.get("/api/runs")).json()["runs"]}
    assert await perdure(bus, "export", "-o", file) is Exit.DONE
    assert await perdure(other, "import", file) is Exit.DONE
    capsys.readouterr()
    assert await perdure(other, "import", file, "--json") is Exit.DONE
    assert json.loads(capsys.readouterr().out) == {"imported": 0, "present": 3}
    for each in (bus, other):
        assert await perdure(each, "verify") is Exit.DONE
        assert "3 runs" in capsys.readouterr().out
    async with gateway(other, tmp_path / "b") as there, http_client(there) as client:
        for run_id, events in before.items():
            found = await events_of(client, run_id)
            assert found[: len(events)] == events
            marker = found[len(events)]
            assert (marker["type"], marker["payload"]["from"]) == ("run.imported", run_id)
        listed = {row["run_id"]: row for row in (await client.get("/api/runs")).json()["runs"]}
        assert set(listed) == set(before)
        changed = {"last_sequence", "last_event_at"}
        assert {name: value for name, value in listed[ended.run_id].items() if name not in changed} == {
            name: value for name, value in rows[ended.run_id].items() if name not in changed
        }
        assert {listed[owner.run_id]["status"] for owner in (live, asking)} == {"PAUSED"}
        output = (await client.get(f"/api/runs/{ended.run_id}/events/{len(before[ended.run_id]) - 1}")).json()
        assert output["payload"]["output"] == LONG
        failure = len(before[live.run_id])
        assert (await client.get(f"/api/runs/{live.run_id}/wire/{failure}")).status_code == 200
        assert (await client.post(f"/api/runs/{asking.run_id}/resume")).json()["status"] == "QUEUED"


async def test_a_file_that_is_cut_off_or_garbled_is_refused_behind_what_is_whole(
    bus: ServerBus, other: ServerBus, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await created(client)
    await created(client)
    file = tmp_path / "export.jsonl"
    await perdure(bus, "export", "-o", str(file))
    lines = file.read_text().splitlines(keepends=True)
    for kept in ("", "".join(lines[:-1]), "".join(lines[:2]) + lines[-1], "not json\n", "".join(lines * 2)):
        broken = tmp_path / "broken.jsonl"
        broken.write_text(kept)
        with pytest.raises(BadFile):
            await perdure(other, "import", str(broken))
    assert len(await other.runs()) == 2
    with pytest.raises(ConfigurationError, match="cannot read"):
        await perdure(other, "import", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="cannot write"):
        await perdure(other, "export", "-o", str(tmp_path / "no" / "where"))


async def test_a_log_that_does_not_fold_is_named(
    bus: ServerBus, client: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = await created(client)
    run_id = await created(client)
    folded = await runs_of(bus).load("local", run_id)
    ending = Event(
        2, run_id, "2026-11-29T12:00:00.000Z", e.RunClaimed(owner="x", boot="b", epoch=1, attempt=1)
    )
    await bus.log.append(Draft(LogKey("local", run_id), folded.last, [ending], 1, "RUNNING"))
    assert await perdure(bus, "verify") is Exit.FAILED
    told = capsys.readouterr().out
    assert run_id in told
    assert "not legal in PENDING" in told
    assert sound not in told
    assert await perdure(bus, "verify", sound) is Exit.DONE
    with pytest.raises(NotFound):
        await perdure(bus, "verify", "run_0_00000000000000000000000000")


async def test_a_replay_goes_to_a_subject_of_the_operators_own_only(
    bus: ServerBus, client: httpx.AsyncClient
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.turn(1)
    await owner.write(e.RunCancelled(by="x", usage=Usage()))
    async with bus.wire.listen("audit.runs") as messages:
        await perdure(bus, "replay", owner.run_id, "--to", "audit.runs", "--after", "2", "--up-to", "5")
        async with asyncio.timeout(10):
            found = [json.loads((await anext(messages)).body) for _ in range(3)]
    assert found == (await events_of(client, owner.run_id))[2:5]
    with pytest.raises(ConfigurationError, match="consumes"):
        await perdure(bus, "replay", owner.run_id, "--to", bus.subjects.tasks("local"))


@pytest.mark.parametrize(
    "subject",
    [
        "p.tasks.local",
        "p",
        "p.anything",
        "q.log.0.local.run.life",
        "$KV.p-leases.x",
        "_INBOX.x",
        "a..b",
        "a.*",
        ">",
        "",
        "a b",
    ],
)
def test_what_perdure_or_the_server_consumes_is_no_target(subject: str) -> None:
    assert is_taken(subject, "p")
    assert not is_taken("audit.replay", "p")


def test_the_arguments_name_the_runs_or_mean_all() -> None:
    args: argparse.Namespace = parser().parse_args(["log", "export", "run_a", "run_b"])
    assert (args.runs, args.output) == (["run_a", "run_b"], None)
