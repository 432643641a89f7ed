"""One process from start to end: settings, logs, telemetry, bus, serve, drain.

Invariant: the shutdown order is written here and nowhere else: `stop` is set, `serve` lets go of what it holds and
returns within the drain deadline, then the bus connection closes.

Exit codes: 0 drained, 2 configuration, 75 declared dead by the others or out of patience (start it again).
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version as installed_version
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

import uvloop

from libs.bus.checkpoints import Checkpoints
from libs.bus.connection import BusSettings, ServerBus, connect
from libs.bus.ports import Bus
from libs.bus.runs import Runs
from libs.chassis import logs, telemetry
from libs.chassis.addresses import without_secrets
from libs.chassis.clock import SystemClock
from libs.chassis.crash import CrashHooks
from libs.chassis.settings import ServiceSettings
from libs.contracts.clock import Clock
from libs.contracts.errors import ConfigurationError, LeaseLost, PerdureError, Unavailable

S = TypeVar("S", bound=ServiceSettings)
T = TypeVar("T")

EXIT_CONFIGURATION = 2
EXIT_AGAIN = 75
# How long a service may take to let go of its work after SIGTERM; the launcher kills it a little later.
DRAIN_S = 10.0

VERSION = installed_version("perdure")


class Chassis(NamedTuple, Generic[S]):
    """What every service is handed."""

    settings: S
    clock: Clock
    bus: Bus
    runs: Runs
    stop: asyncio.Event


Serve = Callable[[Chassis[S]], Coroutine[Any, Any, None]]


def start(service: str, settings_type: type[S], serve: Serve[S]) -> NoReturn:
    """The body of every `__main__`: load the settings, run the service, exit with its code."""
    try:
        settings = settings_type.load(service)
    except ConfigurationError as error:
        sys.stderr.write(f"perdure {service}: {error.message}\n")
        sys.exit(EXIT_CONFIGURATION)
    logs.configure(
        service=service,
        replica=settings.replica_id,
        as_json=settings.log_json,
        level=settings.log_level,
        redaction=settings.redaction,
    )
    telemetry.configure(
        service=service, replica=settings.replica_id, version=VERSION, endpoint=settings.otlp_endpoint
    )
    for name in settings.without_effect:
        logs.get_logger("chassis").warning("setting.ignored", variable=name, hint="it has no effect yet")
    # What was imported stays for good: to look through it again takes a full collection 35 ms, in which nobody is served.
    gc.collect()
    gc.freeze()
    sys.exit(_run(_serve(service, settings, serve)))


def bus_settings(settings: ServiceSettings, name: str) -> BusSettings:
    """The connection settings of a service."""
    password = settings.nats_password.get_secret_value() if settings.nats_password is not None else None
    return BusSettings(
        url=settings.nats_url,
        user=settings.nats_user,
        password=password,
        creds=str(settings.nats_creds) if settings.nats_creds is not None else None,
        prefix=settings.prefix,
        replicas=settings.replicas,
        allow_lazy_sync=settings.allow_lazy_sync,
        monitor_url=settings.nats_monitor_url,
        name=name,
    )


async def _serve(service: str, settings: S, serve: Serve[S]) -> int:
    log = logs.get_logger("chassis")
    clock = SystemClock()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    log.info("bus.waiting", url=without_secrets(settings.nats_url))
    try:
        async with AsyncExitStack() as stack:
            plain = await _unless_stopped(_opened(stack, service, settings, clock), stop)
            if plain is None:
                log.info("service.stopped", before="the bus answered")
                return 0
            bus = CrashHooks(settings.test_hooks, settings.replica_id).wrap(plain)
            runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), clock)
            log.info("service.started", version=VERSION)
            await _until_drained(serve(Chassis(settings, clock, bus, runs, stop)), stop)
    except (PerdureError, ExceptionGroup) as error:
        return _exit_code(error)
    log.info("service.stopped")
    return 0


async def _opened(stack: AsyncExitStack, service: str, settings: ServiceSettings, clock: Clock) -> ServerBus:
    """The bus with all that is on it, until the stack is closed."""
    bus = await stack.enter_async_context(
        connect(bus_settings(settings, f"{service}.{settings.replica_id}"), clock)
    )
    await bus.ensure_topology()
    await stack.enter_async_context(bus.announced(service, VERSION, f"Perdure's {service}"))
    return bus


async def _unless_stopped(start: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """The result of `start`; `None` when `stop` is set before there is one, and `start` is cancelled then."""
    task = asyncio.create_task(start)
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        waiter.cancel()
        task.cancel()
        await asyncio.wait({task, waiter})


def _exit_code(error: PerdureError | ExceptionGroup[Exception]) -> int:
    """What the end of a service means to whoever starts it again. Re-raises what is a defect."""
    log = logs.get_logger("chassis")
    for leaf in leaves(error):
        match leaf:
            case ConfigurationError(message=message):
                log.error("service.misconfigured", message=message)
                return EXIT_CONFIGURATION
            case Unavailable(message=message) | LeaseLost(message=message):
                log.error("service.gave_up", message=message)
                return EXIT_AGAIN
            case _:
                raise error
    raise AssertionError("an error without a leaf")


def leaves(error: Exception) -> list[Exception]:
    """The single exceptions of a group, or the exception itself."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    group = cast("ExceptionGroup[Exception]", error)
    return [leaf for part in group.exceptions for leaf in leaves(part)]


async def _until_drained(serving: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run `serving`; once `stop` is set it has `DRAIN_S` to return by itself."""
    task = asyncio.create_task(serving)
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task}, timeout=DRAIN_S)
        if not task.done():
            logs.get_logger("chassis").warning("service.drain_overran", deadline_s=DRAIN_S)
        else:
            await task
    finally:
        for pending in (task, waiter):
            pending.cancel()
        await asyncio.wait({task, waiter}, timeout=1.0)


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
