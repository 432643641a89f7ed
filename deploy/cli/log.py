"""`perdure log …`: the logs of runs on the bus, for operators: export, import, verify, replay.

Invariant: nothing is appended but by `import`, which writes whole histories of runs that are not there yet; nothing is
published where Perdure would take it for its own.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from deploy.cli.doctor import connected_to, found_place
from deploy.cli.logcheck import check
from deploy.cli.outcome import Exit, failed, refused
from deploy.cli.terminal import Screen, printable
from libs.bus import logfile
from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import BusSettings, ServerBus
from libs.bus.copies import Copies, imported
from libs.bus.history import blob_name
from libs.bus.ports import LogKey
from libs.bus.runs import Runs
from libs.chassis import logs
from libs.chassis.clock import SystemClock
from libs.chassis.files import written_whole
from libs.chassis.run import VERSION
from libs.chassis.settings import read_environment
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import ConfigurationError, NotFound, PerdureError
from libs.contracts.ids import is_id
from libs.contracts.subjects import ANY_TENANT, is_taken

Action = Callable[[ServerBus, Screen, argparse.Namespace], Awaitable[Exit]]


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    logs.configure(service="log", replica="log", as_json=False, level="error")
    actions: dict[str, Action] = {"export": export, "import": bring_in, "verify": verify, "replay": replay}
    try:
        place = found_place(args, read_environment())
        return asyncio.run(_connected(actions[args.action], args, place.settings))
    except ConfigurationError as error:
        return refused(error.message)
    except PerdureError as error:
        return failed(error)
    except TimeoutError:
        return refused(
            "the server does not answer; start `perdure up`, or name it with --nats-url or NATS_URL"
        )


async def _connected(action: Action, args: argparse.Namespace, settings: BusSettings) -> Exit:
    async with connected_to(settings, SystemClock()) as bus:
        return await action(bus, Screen(), args)


async def export(bus: ServerBus, screen: Screen, args: argparse.Namespace) -> Exit:
    """All runs, or those that are named, into a file or to standard output."""
    runs = 0
    with ExitStack() as stack:
        target = _opened(stack, args.output)

        def put(line: logfile.Line) -> None:
            target.write(f"{logfile.encoded(line)}\n")

        put(logfile.FileStart(version=logfile.VERSION, at=rfc3339(SystemClock().now())))
        for key in await _chosen(bus, args):
            async for line in logfile.lines_of(bus, key):
                put(line)
                runs += isinstance(line, logfile.RunEnd)
        put(logfile.FileEnd(runs=runs))
    if args.output:
        told = json.dumps({"runs": runs, "file": args.output})
        screen.line(told if args.json else f"{runs} runs in {args.output}")
    return Exit.DONE


async def bring_in(bus: ServerBus, screen: Screen, args: argparse.Namespace) -> Exit:
    """The runs of a file that are not there yet. Live ones are PAUSED until somebody resumes them."""
    clock = SystemClock()
    await bus.ensure_topology()
    bus.set_writer("import", VERSION)
    copies = Copies(bus, _runs_of(bus, clock), clock)
    made = there = 0
    with ExitStack() as stack:
        source = sys.stdin if args.file == "-" else stack.enter_context(_read(args.file))
        for whole in logfile.runs_in(source):
            for blob in whole.blobs:
                await bus.store("blobs").put(blob_name(blob.tenant, blob.digest), blob.data)
            written = await copies.write(whole.key, whole.events, imported)
            made, there = made + (written is not None), there + (written is None)
    told = f"{made} runs imported" + (f", {there} were there already" if there else "")
    screen.line(json.dumps({"imported": made, "present": there}) if args.json else told)
    return Exit.DONE


async def verify(bus: ServerBus, screen: Screen, args: argparse.Namespace) -> Exit:
    """Whether every log folds and is gapless; each that does not is named."""
    runs = events = bad = 0
    for key in await _chosen(bus, args):
        found = await check(bus, key)
        runs, events, bad = runs + (found.events > 0), events + found.events, bad + bool(found.problem)
        if args.json:
            told = {"run_id": key.log_id, "tenant": key.tenant, "events": found.events}
            screen.line(json.dumps({**told, "status": found.status, "problem": found.problem or None}))
        elif found.problem:
            screen.line(screen.paint(f"{key.log_id} ({printable(key.tenant)}): {found.problem}", "bad"))
    if not args.json:
        screen.line(f"{runs} runs, {events} events: {f'{bad} do not hold together' if bad else 'all sound'}")
    return Exit.FAILED if bad else Exit.DONE


async def replay(bus: ServerBus, screen: Screen, args: argparse.Namespace) -> Exit:
    """Publish the events of a run, each as one message, to a subject of the operator's own."""
    if is_taken(args.to, bus.subjects.prefix):
        raise ConfigurationError(
            f"{args.to} is a subject that Perdure or the server consumes, or none to publish to; name one of your own, "
            "such as audit.replay"
        )
    (key,) = await _chosen(bus, args)
    sent = 0
    async for line in logfile.lines_of(bus, key):
        if isinstance(line, logfile.EventLine):
            for event in line.events:
                if args.after < event.sequence <= (args.up_to or event.sequence):
                    await bus.wire.publish(args.to, logfile.event_bytes(event))
                    sent += 1
    told = f"{sent} events of {key.log_id} were published to {printable(args.to)}"
    screen.line(json.dumps({"run_id": key.log_id, "subject": args.to, "events": sent}) if args.json else told)
    return Exit.DONE


async def _chosen(bus: ServerBus, args: argparse.Namespace) -> list[LogKey]:
    """The runs that are meant: those that are named, else all. Raises `NotFound`."""
    named: list[str] = args.runs
    if not named:
        return await bus.runs()
    found: list[LogKey] = []
    for run_id in named:
        tail = await bus.log.tail(LogKey(ANY_TENANT, run_id)) if is_id("run", run_id) else None
        if tail is None:
            raise NotFound(f"there is no run {run_id[:80]!r} on this bus")
        found.append(LogKey(tail.tenant, tail.log_id))
    return found


def _opened(stack: ExitStack, output: str | None) -> TextIO:
    """Where an export goes: whole or not at all, and for nobody else's eyes."""
    if output is None:
        return sys.stdout
    try:
        return stack.enter_context(written_whole(Path(output)))
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {output}: {error.strerror or error}; name another file"
        ) from error


def _read(file: str) -> TextIO:
    try:
        return Path(file).open(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from error


def _runs_of(bus: ServerBus, clock: Clock) -> Runs:
    return Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
