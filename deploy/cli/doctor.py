"""`perdure doctor`: is the bus of this deployment what Perdure relies on?

Invariant: it changes nothing but the throw-away log of its experiments; every finding says what was seen and what to do
about it, and a failed one makes the exit code 1.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from deploy.cli.experiments import Experiments, Outcome
from deploy.cli.outcome import Exit, refused
from deploy.cli.terminal import Screen, Tone, printable
from deploy.dev.datafolder import load_credentials
from deploy.dev.nats_server import monitor_of
from libs.bus.connection import BusSettings, ServerBus, connect
from libs.bus.facts import ServerFacts
from libs.bus.monitor import Monitored, ailment, look
from libs.chassis import logs
from libs.chassis.clock import SystemClock
from libs.chassis.run import bus_settings
from libs.chassis.settings import ServiceSettings, read_environment
from libs.contracts.clock import Clock
from libs.contracts.errors import ConfigurationError, PerdureError
from libs.contracts.streams import MESSAGE_BYTES_MAX, SERVER_VERSION_MIN

# How long a server that is there may take to let somebody in.
CONNECT_S = 5.0
# Both experiments together: forty appends, each of which may wait 15 s for an election.
EXPERIMENTS_S = 60.0
# Times in the log and due times of retries are wall-clock times: half a second is not noticed, five are.
SKEW_WARN_S, SKEW_FAIL_S = 0.5, 5.0
# Above this part of the storage new runs are turned away.
STORAGE_WARN = 0.85

Verdict = Literal["pass", "warn", "fail", "skip"]
_TONES: dict[Verdict, Tone] = {"pass": "good", "warn": "warn", "fail": "bad", "skip": "dim"}


class Finding(NamedTuple):
    name: str
    verdict: Verdict
    message: str


class Place(NamedTuple):
    """The bus to examine, and how it was found."""

    settings: BusSettings
    source: str


def main(args: argparse.Namespace) -> Exit:
    """Examine and tell."""
    logs.configure(service="doctor", replica="doctor", as_json=False, level="error")
    try:
        place = found_place(args, read_environment())
    except ConfigurationError as error:
        return refused(error.message)
    screen = Screen()
    findings: list[Finding] = []

    async def examine() -> None:
        async for finding in examined(place, SystemClock()):
            findings.append(finding)
            if not args.json:
                verdict = screen.paint(f"{finding.verdict.upper():<5}", _TONES[finding.verdict])
                screen.line(f"{verdict} {finding.name:<12} {printable(finding.message)}")

    asyncio.run(examine())
    failed = [finding for finding in findings if finding.verdict == "fail"]
    if args.json:
        screen.line(json.dumps({"ok": not failed, "findings": [one._asdict() for one in findings]}))
    return Exit.FAILED if failed else Exit.DONE


def found_place(args: argparse.Namespace, environment: Mapping[str, str]) -> Place:
    """`--nats-url`, else `NATS_URL`, else the embedded server of the data folder. Raises `ConfigurationError`."""
    known = dict(environment)
    if args.data is not None:
        known["PERDURE_DATA"] = str(args.data)
    if args.nats_url is not None:
        known["NATS_URL"] = str(args.nats_url)
    # A folder that is named is meant, whatever the surroundings say.
    named = args.nats_url is not None or (args.data is None and bool(known.get("NATS_URL")))
    data = Path(known.get("PERDURE_DATA") or ".perdure")
    embedded = None if named else load_credentials(data)
    source = "--nats-url" if args.nats_url is not None else "NATS_URL" if named else "the default address"
    if embedded is not None:
        source = str(data / "nats.json")
        known |= {"NATS_URL": embedded.url, "NATS_USER": embedded.user, "NATS_PASSWORD": embedded.password}
        known |= {"NATS_CREDS": "", "NATS_MONITOR_URL": monitor_of(data / "nats") or ""}
    settings = ServiceSettings.load("doctor", known)
    return Place(bus_settings(settings, "doctor"), source)


async def examined(place: Place, clock: Clock) -> AsyncGenerator[Finding]:
    """All findings, one after the other."""
    settings = place.settings
    try:
        async with connected_to(settings, clock) as first, connected_to(settings, clock) as second:
            try:
                facts = await first.facts()
            except PerdureError as error:
                yield Finding("jetstream", "fail", f"{error.message}; is JetStream enabled for this account?")
                return
            seconds = f", answers in {facts.round_trip_s * 1000:.1f} ms" if facts.server_time else ""
            yield Finding("connection", "pass", f"{_address(settings)} ({place.source}){seconds}")
            servers, problem = await _monitored(settings)
            yield _version(facts)
            yield _limits(facts, servers)
            yield _topology(facts, settings)
            yield _clock(facts)
            yield _durability(settings, servers, problem)
            async for finding in _experiments(first, second, facts, clock):
                yield finding
    except (PerdureError, TimeoutError) as error:
        told = error.message if isinstance(error, PerdureError) else f"no answer within {CONNECT_S:.0f} s"
        hint = "start `perdure up`, or name the server with --nats-url or NATS_URL"
        yield Finding("connection", "fail", f"{_address(settings)} ({place.source}): {told}; {hint}")


@asynccontextmanager
async def connected_to(settings: BusSettings, clock: Clock) -> AsyncGenerator[ServerBus]:
    """A connection, made within `CONNECT_S`. Raises `TimeoutError`."""
    async with asyncio.timeout(CONNECT_S) as patience, connect(settings, clock) as bus:
        patience.reschedule(None)
        yield bus


def _address(settings: BusSettings) -> str:
    return ",".join(url.strip().rpartition("@")[2] for url in settings.url.split(","))


def _version(facts: ServerFacts) -> Finding:
    version, least = ".".join(map(str, facts.version)), ".".join(map(str, SERVER_VERSION_MIN))
    if facts.version < SERVER_VERSION_MIN:
        return Finding(
            "version", "fail", f"the server is {version}, Perdure needs {least} or later; upgrade it"
        )
    return Finding("version", "pass", f"the server is {version} ({least} or later is needed)")


def _limits(facts: ServerFacts, servers: Mapping[str, Monitored]) -> Finding:
    account, limits = facts.account, facts.account.limits
    if facts.message_bytes_max < MESSAGE_BYTES_MAX:
        told = (
            f"the server takes messages of {facts.message_bytes_max} bytes, records need {MESSAGE_BYTES_MAX}"
        )
        return Finding("limits", "fail", f"{told}; raise max_payload")
    room = limits.streams_max - account.streams
    if limits.streams_max >= 0 and room < len(facts.missing):
        told = f"the account may have {limits.streams_max} streams and has {account.streams}"
        return Finding("limits", "fail", f"{told}; {len(facts.missing)} more are needed")
    used = f"{account.storage_bytes / 1e6:.1f} MB stored"
    stores = [server.storage_bytes_max for server in servers.values() if server.storage_bytes_max > 0]
    most = limits.storage_bytes_max if limits.storage_bytes_max >= 0 else min(stores, default=-1)
    if most < 0:
        return Finding("limits", "pass", f"{used}, no limit for this account; {account.streams} streams")
    told = f"{used} of {most / 1e6:.0f} MB; {account.streams} streams"
    if account.storage_bytes > STORAGE_WARN * most:
        return Finding("limits", "warn", f"{told}: new runs are turned away soon; give it more room")
    return Finding("limits", "pass", told)


def _topology(facts: ServerFacts, settings: BusSettings) -> Finding:
    wanted = settings.replicas
    if facts.missing:
        told = f"{len(facts.missing)} of {len(facts.missing) + len(facts.streams)} are missing"
        names = ", ".join(facts.missing[:3])
        return Finding("streams", "fail", f"{told} ({names} …); the first service that starts creates them")
    fewer = [stream.name for stream in facts.streams if stream.replicas < wanted]
    if fewer:
        return Finding(
            "streams", "fail", f"{', '.join(fewer)} have fewer than {wanted} replicas; start a service"
        )
    more = [stream.name for stream in facts.streams if stream.replicas > wanted]
    if more:
        told = f"{len(more)} have more replicas than PERDURE_REPLICAS={wanted}"
        return Finding("streams", "warn", f"{told}; set it to what the services use")
    behind = sorted({peer for stream in facts.streams for peer in stream.behind})
    if behind:
        return Finding(
            "streams", "warn", f"not current or offline: {', '.join(behind)}; look after those servers"
        )
    return Finding("streams", "pass", f"all {len(facts.streams)} are there, {wanted} replica(s) each")


def _clock(facts: ServerFacts) -> Finding:
    if facts.server_time is None:
        return Finding("clock", "skip", "no stream to ask for the server's time")
    skew_s = (facts.server_time - facts.asked_at).total_seconds() - facts.round_trip_s / 2
    told = (
        f"the server's clock is {abs(skew_s):.3f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's"
    )
    if abs(skew_s) <= SKEW_WARN_S:
        return Finding("clock", "pass", told)
    return Finding(
        "clock", "fail" if abs(skew_s) > SKEW_FAIL_S else "warn", f"{told}; run a time service on both"
    )


async def _monitored(settings: BusSettings) -> tuple[dict[str, Monitored], str]:
    """What the servers say at their monitors, and why that is not all of it."""
    if not settings.monitor_url:
        return {}, "set NATS_MONITOR_URL to have it read from the server"
    servers: dict[str, Monitored] = {}
    try:
        for url in settings.monitor_url.split(","):
            server = await look(url.strip())
            servers[url.strip()] = msgspec.structs.replace(server, ailment=await ailment(url.strip()))
    except ConfigurationError as error:
        return servers, error.message
    return servers, ""


def _durability(settings: BusSettings, servers: Mapping[str, Monitored], problem: str) -> Finding:
    """Whether an acknowledgement means that it is on disk (docs/adr/0003)."""
    for url, server in servers.items():
        if server.ailment:
            told = f"the server behind {url} cannot store: {server.ailment}"
            return Finding("durability", "fail", f"{told}; make room on its disk, then start it again")
        if not server.sync_always:
            told = f"the server behind {url} acknowledges before it is on disk"
            if settings.allow_lazy_sync:
                return Finding("durability", "warn", f"{told}; PERDURE_ALLOW_LAZY_SYNC accepts that")
            return Finding(
                "durability", "fail", f"{told}; set `sync_interval: always` in its jetstream block"
            )
    if problem:
        return Finding("durability", "warn", f"unknown: {problem}")
    return Finding("durability", "pass", "an acknowledged record is on disk (sync_interval: always)")


async def _experiments(
    first: ServerBus, second: ServerBus, facts: ServerFacts, clock: Clock
) -> AsyncGenerator[Finding]:
    if first.subjects.log_stream(0) in facts.missing:
        yield Finding("claimants", "skip", "there is no log to experiment on")
        yield Finding("fencing", "skip", "there is no log to experiment on")
        return
    experiments = Experiments(first, second, clock)
    try:
        async with asyncio.timeout(EXPERIMENTS_S):
            yield _judged("claimants", await experiments.two_claimants())
            yield _judged("fencing", await experiments.stale_writer())
    except (PerdureError, TimeoutError) as error:
        told = error.message if isinstance(error, PerdureError) else f"not done within {EXPERIMENTS_S:.0f} s"
        yield Finding("experiments", "fail", told)
    finally:
        cleaned = await experiments.clean_up()
    yield _judged("clean-up", cleaned)


def _judged(name: str, outcome: Outcome) -> Finding:
    return Finding(name, "pass" if outcome.held else "fail", outcome.message)
