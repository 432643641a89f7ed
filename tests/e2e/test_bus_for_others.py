"""Services of other people, as they stand in `examples/`: a publisher and tool hosts that know nothing but the pages.

They run as their own processes beside five real services, and nothing of Perdure is imported into them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.bus.connection import connect
from libs.chassis.clock import SystemClock
from libs.contracts.http import Reconciliation
from libs.contracts.views import EventView
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.fakes.waiting import PATIENCE_S, eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVICES = ("gateway", "scheduler", "executor", "toolhost", "verifier")
SCRIPT = {
    "[rate]": [
        calls(call("exchange_rate", currency="USD"), call("exchange_rate", currency="XXX")),
        says("One euro is 1.08 dollars."),
    ],
    "[post]": [calls(call("post_entry", account="rent", cents=70000)), says("Posted.")],
    "[slow post]": [calls(call("post_entry", account="slow", cents=1, seconds=600)), says("Posted.")],
    "[slug]": [calls(call("slugify", title="Ein schöner Tag!")), says("ein-schoner-tag")],
    "[published]": [says("Done.")],
}


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with stage(tmp_path_factory.mktemp("others"), SCRIPT) as ready:
        yield ready


@asynccontextmanager
async def hosting(on: Stage, tool: str, *argv: str, folder: Path, ttl_s: int = 10) -> AsyncGenerator[Process]:
    """A host as a process of its own, once the deployment offers its tool."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "NATS_JSON": str(on.data / "nats.json"),
        "LEASE_TTL_S": str(ttl_s),
    }
    process = await asyncio.create_subprocess_exec(*argv, cwd=folder, env=environment, stdin=DEVNULL)
    try:

        async def offered() -> bool:
            assert process.returncode is None, f"{argv} ended"
            return tool in {one.name for one in (await on.client.health()).tools}

        await eventually(offered, f"{tool} among the tools", every_s=0.1)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _python(name: str, *arguments: str) -> tuple[str, ...]:
    return sys.executable, str(EXAMPLES / name), *arguments


async def _results(on: Stage, run_id: str) -> list[EventView]:
    return [event for event in await on.events(run_id) if event.type == "tool.completed"]


async def test_a_task_that_is_published_twice_under_a_key_runs_once(on: Stage, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "NATS_JSON": str(on.data / "nats.json")}
    for _ in range(2):
        argv = _python("publish_task.py", "[published]", "order-7")
        process = await asyncio.create_subprocess_exec(*argv, cwd=tmp_path, env=environment, stdout=PIPE)
        said, _ = await process.communicate()
        assert said.startswith(b"stored as perdure-tasks "), said

    async def ended() -> list[str]:
        runs = (await on.client.runs(q="[published]")).runs
        return [run.status for run in runs]

    assert await eventually(ended, "the published run's end", fits=lambda found: "COMPLETED" in found) == [
        "COMPLETED"
    ]


async def test_a_reading_host_of_thirty_lines_serves_a_run(on: Stage, tmp_path: Path) -> None:
    async with hosting(on, "exchange_rate", *_python("read_only_host.py"), folder=tmp_path):
        run_id = await on.submit("[rate]")
        assert (await on.ended(run_id)).status == "COMPLETED"
        results = await _results(on, run_id)
    assert [(event.payload["ok"], event.payload["output"]) for event in results] == [
        (True, "1.08"),
        (False, "known: EUR, USD, JPY"),
    ]


async def test_a_host_in_javascript_serves_a_run(on: Stage, tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no node or no npm: apt-get install nodejs npm")
    for file in (EXAMPLES / "node").iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    install = ("install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts")
    installing = await asyncio.create_subprocess_exec(npm, *install, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    said = b"".join(await installing.communicate())
    assert installing.returncode == 0, said.decode(errors="replace")
    async with hosting(on, "slugify", node, "host.mjs", folder=tmp_path):
        run_id = await on.submit("[slug]")
        assert (await on.ended(run_id)).status == "COMPLETED"
        (result,) = await _results(on, run_id)
    assert (result.payload["ok"], result.payload["output"]) == (True, "ein-scho-ner-tag")


async def test_a_host_with_effects_keeps_the_journal(on: Stage, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    async with hosting(on, "post_entry", *_python("effects_host.py", str(ledger)), folder=tmp_path) as host:
        run_id = await on.submit("[post]")
        assert (await on.ended(run_id)).status == "COMPLETED"
        (result,) = await _results(on, run_id)
        assert result.payload["output"] == "posted 70000 to rent"
        async with connect(on.bus, SystemClock()) as bus:
            keys = {entry.key: entry for entry in await bus.bucket("journal").entries(f"{run_id}.")}
        entry = keys[f"{run_id}.{result.payload['call_id']}.1"]
        assert json.loads(entry.value)["result"]["output"] == "posted 70000 to rent"

        # An effect that is cancelled ends at once, and what it did until then happened once.
        cancelled = await on.submit("[slow post]")
        await eventually(lambda: _lines(ledger, cancelled), "the entry of the slow call")
        await on.client.cancel(cancelled)
        assert (await on.ended(cancelled)).status == "CANCELLED"

        # A host that is told to end says so itself: nobody has to suspect it.
        host.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(host.wait(), PATIENCE_S) == 0
    assert len(ledger.read_text().splitlines()) == 2


async def test_an_effect_whose_host_is_killed_in_it_is_a_persons_to_decide_and_never_repeated(
    on: Stage, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    argv = _python("effects_host.py", str(ledger))
    async with hosting(on, "post_entry", *argv, folder=tmp_path, ttl_s=3) as host:
        accepted, failed = await on.submit("[slow post]"), await on.submit("[slow post]")
        for run_id in (accepted, failed):
            await eventually(lambda run_id=run_id: _lines(ledger, run_id), "the entry of the slow call")
        host.kill()
        for run_id in (accepted, failed):
            await on.until(run_id, lambda run: run.status == "RECONCILIATION_REQUIRED")
    for run_id, fields in (
        (accepted, {"decision": "accept", "observation": "it is posted"}),
        (failed, {"decision": "fail"}),
    ):
        waiting = (await on.client.run(run_id)).pending_reconciliation
        assert waiting is not None
        decision = Reconciliation.model_validate({"call_id": waiting.call_id, **fields})
        await on.client.reconcile(run_id, decision)
    assert (await on.ended(accepted)).status == "COMPLETED"
    given_up = await on.ended(failed)
    assert given_up.error is not None
    assert (given_up.status, given_up.error.error_code) == ("FAILED", "RECONCILIATION_FAILED")
    assert len(ledger.read_text().splitlines()) == 2


async def _lines(ledger: Path, run_id: str) -> list[str]:
    if not ledger.exists():
        return []
    return [line for line in ledger.read_text().splitlines() if line.startswith(run_id)]


async def test_nothing_that_others_write_onto_the_bus_ends_a_process_or_holds_up_a_run(on: Stage) -> None:
    deep = b"[" * 5_000 + b"]" * 5_000
    before = dict(on.perdure.pids)
    async with connect(on.bus, SystemClock()) as bus:
        leases, subjects = bus.bucket("leases"), bus.subjects
        boots = [
            lease["boot"]
            for lease in map(json.loads, [one.value for one in await leases.entries("replica.")])
        ]
        for body in (deep, b"hello", b"{}", b'{"boot":"x","info":' + deep + b"}"):
            # What a host of somebody else may write, and where a mistake of it may end.
            await leases.put("replica.bodd", body, ttl_s=60)
            await bus.bucket("catalog").put("bodd", body, ttl_s=60)
            for boot in boots:
                for subject in (subjects.control(boot), subjects.call_host(boot), subjects.call_look(boot)):
                    await bus.wire.publish(subject, body)
                await bus.queue.publish(subjects.tool_host(boot), body)
            await bus.queue.publish(subjects.tool_any("verify"), body)
            await bus.queue.publish(subjects.tasks("local"), body)
            await bus.queue.publish(subjects.work("normal"), body)
        for ticket in ({"tenant": "local", "run_id": "run_0_no"}, {"tenant": "..", "run_id": "run_0_no"}):
            body = json.dumps({**ticket, "sequence": 1}).encode()
            await bus.queue.publish(subjects.work("normal"), body)
        try:
            for _ in range(3):
                assert (await on.ended(await on.submit("[published]"))).status == "COMPLETED"
        finally:
            await leases.delete("replica.bodd")
            await bus.bucket("catalog").delete("bodd")
    assert dict(on.perdure.pids) == before


async def test_every_service_is_found_by_nats_micro(on: Stage) -> None:
    async with connect(on.bus, SystemClock()) as bus:

        async def asked(verb: str, service: str) -> dict[str, Any]:
            return json.loads(await bus.wire.request(f"$SRV.{verb}.perdure-{service}", b"", timeout_s=5))

        for service in SERVICES:
            info = await asked("INFO", service)
            assert info["metadata"]["connection"] == f"{service}.{service}-1"
            assert f"perdure.ctl.{info['metadata']['boot']}" in {one["subject"] for one in info["endpoints"]}
            assert (await asked("STATS", service))["id"] == (await asked("PING", service))["id"] == info["id"]
