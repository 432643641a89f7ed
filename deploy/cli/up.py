"""`perdure up`: everything on one machine until it is told to stop.

Invariant: standard output carries exactly one line, `ready http://HOST:PORT`; everything else is log, on standard
error. Whatever can be refused is refused before anything is started.
"""

import argparse
import asyncio
import importlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import uvloop
from pydantic import Field

from deploy.cli.outcome import Exit, failed, refused
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.plan import MODEL_KEYS, SERVICES, Plan
from libs.chassis import logs
from libs.chassis.addresses import without_secrets
from libs.chassis.settings import ServiceSettings, only_in_dotenv, read_environment
from libs.contracts.errors import ConfigurationError, PerdureError
from services.executor.settings import ExecutorSettings

_PORT_MAX = 65_535
_NATS_PORT = 4222
# `timeout`, systemd and make pass a stop on to everybody below them, so one wish to stop arrives twice within moments;
# a person who wants it faster first sees that it takes long.
_ONE_WISH_S = 0.5
# A server that was there before takes a connection in milliseconds, also from afar.
_PROBE_S = 3.0


class UpSettings(ServiceSettings):
    """What `up` reads itself; each service reads its own."""

    host: Annotated[str, Field(alias="PERDURE_HOST")] = "127.0.0.1"
    port: Annotated[int, Field(alias="PERDURE_PORT", ge=0, le=_PORT_MAX)] = 8000


def main(args: argparse.Namespace) -> Exit:
    """Run until SIGTERM or Ctrl-C."""
    try:
        plan = plan_of(args, read_environment())
    except ConfigurationError as error:
        return refused(error.message)
    readable = sys.stderr.isatty() and not args.json
    logs.configure(service="launcher", replica="launcher", as_json=not readable, level="warning")
    log = MergedLog(sys.stderr, readable=readable)
    if not ExecutorSettings.load("executor", plan.environment).model_configured:
        log.say(
            "model.missing",
            level="warning",
            hint="set OPENAI_API_KEY, OPENAI_BASE_URL and MODEL_ID to run tasks",
        )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_up(plan, log))
    except ConfigurationError as error:
        log.close()
        return refused(error.message)
    except PerdureError as error:
        log.close()
        return failed(error)
    finally:
        log.close()


def plan_of(args: argparse.Namespace, environment: Mapping[str, str]) -> Plan:
    """What to start. Raises `ConfigurationError` for every setting that some service would refuse."""
    flags = {
        "PERDURE_HOST": args.host,
        "PERDURE_PORT": args.port,
        "PERDURE_DATA": args.data,
        "NATS_URL": args.nats_url,
    }
    known = {**environment, **{name: str(value) for name, value in flags.items() if value is not None}}
    settings = UpSettings.load("up", known)
    for service in SERVICES:
        _settings_of(service.name).load(service.name, known)
    return Plan(
        data=Path(settings.data),
        environment=known,
        host=settings.host,
        port=settings.port,
        nats_url=args.nats_url,
        left_to_dotenv=only_in_dotenv(MODEL_KEYS),
    )


async def answers(urls: str) -> bool:
    """Whether something listens at one of the addresses of `NATS_URL`."""
    for url in urls.split(","):
        place = urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")
        try:
            async with asyncio.timeout(_PROBE_S):
                _, writer = await asyncio.open_connection(place.hostname, place.port or _NATS_PORT)
        except (OSError, TimeoutError):
            continue
        writer.close()
        return True
    return False


async def _up(plan: Plan, log: MergedLog) -> Exit:
    if plan.nats_url is not None and not await answers(plan.nats_url):
        raise ConfigurationError(
            f"no server answers at {without_secrets(plan.nats_url)}; start it, or leave out --nats-url for an own one"
        )
    return await until_stopped(Launcher(plan, log))


async def until_stopped(launcher: Launcher) -> Exit:
    """Start, say that it is ready, and drain on the first signal; a second one, later than at once, kills."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    asked: list[float] = []

    def stop() -> None:
        """The first signal drains, wherever the start has come to; the second gives up on draining."""
        asked.append(loop.time())
        if len(asked) == 1:
            task.cancel()
        elif asked[-1] - asked[0] > _ONE_WISH_S:
            launcher.hurry()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)
    try:
        async with launcher:
            sys.stdout.write(f"ready {launcher.url}\n")
            sys.stdout.flush()
            await loop.create_future()
    except asyncio.CancelledError:
        if not asked:
            raise
    return Exit.DONE


def _settings_of(service: str) -> type[ServiceSettings]:
    """`services/NAME/settings.py` holds `NameSettings`."""
    module = importlib.import_module(f"services.{service}.settings")
    found: object = getattr(module, f"{service.capitalize()}Settings")
    assert isinstance(found, type)
    assert issubclass(found, ServiceSettings)
    return found
