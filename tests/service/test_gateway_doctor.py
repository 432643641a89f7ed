"""`perdure doctor` on real servers: a healthy bus passes, each ailment is named, and nothing is left behind."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.cli.doctor import Finding, Place, examined, found_place
from deploy.cli.experiments import ROUNDS, Experiments
from deploy.dev.datafolder import Credentials, save_credentials
from deploy.dev.nats_server import NatsServer, ServerSettings, nats_server
from libs.bus.connection import BusSettings, ServerBus, connect
from libs.bus.ports import Draft
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import Event, Record
from libs.contracts.errors import AppendConflict, ConfigurationError
from tests.fakes.bus import bus_settings
from tests.service.gateway_served import DEADLINE_S, created, gateway, http_client

COMMAND_S = 60.0
SOUND = [
    "connection",
    "version",
    "limits",
    "streams",
    "clock",
    "durability",
    "claimants",
    "fencing",
    "clean-up",
]


def settings_of(node: NatsServer, bus: ServerBus) -> BusSettings:
    return bus_settings(node.address, prefix=bus.subjects.prefix)


async def verdicts(settings: BusSettings) -> dict[str, Finding]:
    findings = [finding async for finding in examined(Place(settings, "a test"), SystemClock())]
    return {finding.name: finding for finding in findings}


async def stored(bus: ServerBus) -> int:
    facts = await bus.facts()
    return sum(stream.messages for stream in facts.streams if "-log-" in stream.name)


async def test_a_sound_bus_passes_and_keeps_nothing_of_the_experiments(
    bus: ServerBus, nats_node: NatsServer, tmp_path: Path
) -> None:
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        run_id = await created(client)
        before = await stored(bus)
        found = await verdicts(settings_of(nats_node, bus))
        assert {name: one.verdict for name, one in found.items()} == dict.fromkeys(SOUND, "pass")
        assert await stored(bus) == before
        # The experiments went past the gateway, which follows the same log.
        newest = await created(client)
        page = (await client.get("/api/runs")).json()
        assert {run["run_id"] for run in page["runs"]} == {run_id, newest}


async def test_a_deployment_that_was_never_started_is_told_so(nats_node: NatsServer) -> None:
    found = await verdicts(bus_settings(nats_node.address))
    assert found["streams"].verdict == "fail"
    assert "missing" in found["streams"].message
    assert {found[name].verdict for name in ("claimants", "fencing", "clock")} == {"skip"}


async def test_fewer_replicas_than_wanted_fail_and_more_warn(bus: ServerBus, nats_node: NatsServer) -> None:
    settings = settings_of(nats_node, bus)
    fewer = (await verdicts(settings._replace(replicas=3)))["streams"]
    assert (fewer.verdict, "fewer than 3" in fewer.message) == ("fail", True)


async def test_a_server_that_acknowledges_too_early_fails_unless_that_is_accepted(tmp_path: Path) -> None:
    async with nats_server(ServerSettings(tmp_path / "nats", lazy_sync=True)) as server:
        lazy = bus_settings(server.address)._replace(allow_lazy_sync=True)
        async with connect(lazy, SystemClock()) as bus:
            await bus.ensure_topology()
        found = await verdicts(lazy._replace(allow_lazy_sync=False))
        assert (found["durability"].verdict, found["fencing"].verdict) == ("fail", "pass")
        assert "sync_interval: always" in found["durability"].message
        assert (await verdicts(lazy))["durability"].verdict == "warn"
        unknown = (await verdicts(lazy._replace(monitor_url=None)))["durability"]
        assert (unknown.verdict, "NATS_MONITOR_URL" in unknown.message) == ("warn", True)
        silent = (await verdicts(lazy._replace(monitor_url="http://127.0.0.1:1")))["durability"]
        assert (silent.verdict, "does not answer" in silent.message) == ("warn", True)


async def test_a_server_that_lets_nobody_in_is_one_failed_finding(nats_node: NatsServer) -> None:
    barred = bus_settings(nats_node.address)._replace(password="wrong")
    found = await verdicts(barred)
    assert list(found) == ["connection"]
    assert (found["connection"].verdict, "does not let" in found["connection"].message) == ("fail", True)


class Unfenced:
    """A log without a fence: it appends to whatever is there."""

    def __init__(self, bus: ServerBus) -> None:
        self._log = bus.log

    async def append(self, draft: Draft) -> Record:
        while True:
            tail = await self._log.tail(draft.key)
            last = tail.header.stream_sequence if tail is not None else 0
            first = tail.header.last + 1 if tail is not None else 1
            events = [Event(first, event.run_id, event.at, event.body) for event in draft.events]
            try:
                return await self._log.append(draft._replace(expected=last, events=events))
            except AppendConflict:
                continue

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


async def test_a_bus_that_does_not_fence_is_found_out(bus: ServerBus, nats_node: NatsServer) -> None:
    async with connect(settings_of(nats_node, bus), SystemClock()) as other:
        for broken in (bus, other):
            broken.log = Unfenced(broken)  # pyright: ignore[reportAttributeAccessIssue] a log that breaks its promise
        for experiment in (Experiments.two_claimants, Experiments.stale_writer):
            experiments = Experiments(bus, other, SystemClock())
            outcome = await experiment(experiments)
            assert (outcome.held, "do not run" in outcome.message) == (False, True)
            assert (await experiments.clean_up()).held


async def test_the_experiments_are_repeated_on_one_log_that_is_purged(
    bus: ServerBus, nats_node: NatsServer
) -> None:
    async with connect(settings_of(nats_node, bus), SystemClock()) as other:
        experiments = Experiments(bus, other, SystemClock())
        before = await stored(bus)
        assert (await experiments.two_claimants()).held
        assert await stored(bus) == before + ROUNDS
        assert (await experiments.clean_up()).held
        assert (await experiments.clean_up()).held
        assert await stored(bus) == before


async def test_the_command_finds_the_embedded_server_and_exits_by_what_it_found(
    bus: ServerBus, nats_node: NatsServer, tmp_path: Path
) -> None:
    address = nats_node.address
    save_credentials(tmp_path, Credentials(url=address.url, user=address.user, password=address.password))
    environment = {"PERDURE_PREFIX": bus.subjects.prefix, "NATS_URL": "nats://127.0.0.1:1"}
    code, output = await command(["--data", str(tmp_path), "--json"], environment)
    told = json.loads(output)
    assert (code, told["ok"]) == (0, True)
    assert [finding["name"] for finding in told["findings"]] == SOUND
    code, output = await command(["--data", str(tmp_path)], {"PERDURE_PREFIX": "nobody"})
    assert code == 1
    assert "FAIL  streams" in output
    assert address.password not in output


async def command(words: list[str], environment: Mapping[str, str]) -> tuple[int | None, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "doctor", *words),
        env={**inherited, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(COMMAND_S):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


def test_where_the_bus_is_looked_for(tmp_path: Path) -> None:
    save_credentials(tmp_path, Credentials(url="nats://127.0.0.1:7", user="u", password="p"))
    here = {"PERDURE_DATA": str(tmp_path)}

    def place(environment: dict[str, str], **flags: str) -> Place:
        args = argparse.Namespace(**{"data": None, "nats_url": None, "json": False, **flags})
        return found_place(args, environment)

    assert place({"PERDURE_DATA": str(tmp_path / "x")}).settings.url == "nats://127.0.0.1:4222"
    assert place(here).settings.user == "u"
    assert place({**here, "NATS_URL": "nats://a:1"}).settings.url == "nats://a:1"
    assert place({**here, "NATS_URL": "nats://a:1"}, nats_url="nats://b:2").settings.url == "nats://b:2"
    assert place({"NATS_URL": "nats://a:1"}, data=str(tmp_path)).settings.url == "nats://127.0.0.1:7"
    with pytest.raises(ConfigurationError, match="PERDURE_REPLICAS"):
        place({"PERDURE_REPLICAS": "many"})


async def test_the_throw_away_log_is_none_of_a_tenants(bus: ServerBus, tmp_path: Path) -> None:
    """Left behind by a doctor that was killed, it is on no list and wakes nobody."""
    async with gateway(bus, tmp_path) as served, http_client(served) as client:
        experiments = Experiments(bus, bus, SystemClock())
        assert (await experiments.stale_writer()).held
        await created(client)
        assert len((await client.get("/api/runs")).json()["runs"]) == 1
        async with bus.log.wakeups() as wakeups, asyncio.timeout(DEADLINE_S):
            states = [(await anext(wakeups)) for _ in range(2)]
        assert {wakeup.header_state for wakeup in states} == {"EXPERIMENT", "PENDING"}
        (left,) = [wakeup.key for wakeup in states if wakeup.header_state == "EXPERIMENT"]
        assert (await client.get(f"/api/runs/{left.log_id}")).status_code == 404
