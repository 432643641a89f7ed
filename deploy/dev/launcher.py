"""Everything on one machine: the embedded server and one process per service, started, kept alive, drained in order.

Invariant: nothing is started before the data folder is owned and the port is free; nothing outlives the launcher,
however it ends. As a library (tests, demo): `async with Launcher(plan, log) as perdure:` starts, waits until all
services are healthy and drains at the end. It must be entered in the main thread: the kernel ties a child's life to
the thread that started it.
"""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from deploy.dev import embedded
from deploy.dev.child import EXIT_CONFIGURATION, Child, Program
from deploy.dev.datafolder import Credentials, owned
from deploy.dev.health import ServiceHealth
from deploy.dev.mergedlog import MergedLog
from deploy.dev.nats_server import free_port
from deploy.dev.plan import SERVER, Plan, Ports, bus_access, service_program
from deploy.dev.server_disk import ServerDisk
from libs.chassis.run import bus_settings
from libs.chassis.settings import ServiceSettings
from libs.contracts.errors import ConfigurationError, Unavailable

# How often the launcher looks whether all are healthy: fine enough not to be seen in the start-up time.
_LOOK_S = 0.05
# A drained child's supervisor still collects its last output.
_ENDED_S = 3.0
# A service that dies this often before everything was healthy once will not come up by trying again.
_EARLY_STARTS_MAX = 4

# Asked with the pids of the living services; answers what is not healthy yet, by service.
Health = Callable[[Mapping[str, int]], Awaitable[Mapping[str, str]]]


class Launcher:
    """One running Perdure. `health` replaces the question to bus and gateway where the services are stand-ins."""

    def __init__(self, plan: Plan, log: MergedLog, *, health: Health | None = None) -> None:
        self.plan = plan
        # The first is the plan's; every further gateway takes any free one.
        self.ports = [plan.port]
        self.credentials: Credentials | None = None
        self._log, self._health = log, health
        self._children: dict[str, Child] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stack, self._asking = AsyncExitStack(), AsyncExitStack()
        self._was_healthy = False
        self._watching: asyncio.Task[None] | None = None
        # The launcher's own connection only looks; what it meets, the services report in their logs.
        logging.getLogger("perdure").addHandler(logging.NullHandler())

    @property
    def port(self) -> int:
        """The port of the first gateway."""
        return self.ports[0]

    @property
    def url(self) -> str:
        """Where the first gateway listens."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Where the gateways listen."""
        host = f"[{self.plan.host}]" if ":" in self.plan.host else self.plan.host
        return [f"http://{host}:{port}" for port in self.ports]

    @property
    def pids(self) -> dict[str, int]:
        """The pid of each living child, the embedded server's as `nats`."""
        return {name: pid for name, child in self._children.items() if (pid := child.pid) is not None}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a child by name; returns the pid it had. It is restarted when it dies of it."""
        pid = self.pids[name]
        self._children[name].send(number)
        return pid

    async def halt(self, name: str) -> None:
        """Kill a child and keep it down until `start`."""
        self._children[name].end()
        await asyncio.wait({self._tasks.pop(name)})

    def start(self, name: str) -> None:
        """Run a child that is down."""
        self._keep(self._children[name].program)

    def hurry(self) -> None:
        """Give up on draining: kill every child now."""
        for child in self._children.values():
            child.end()

    async def __aenter__(self) -> Self:
        """Start everything and wait until it is healthy.

        Raises `ConfigurationError` (folder in use, busy port, a setting that a service refuses) before or instead
        of running, `Unavailable` when it does not become healthy in time; either way nothing is left running.
        """
        async with AsyncExitStack() as unless_healthy:
            unless_healthy.push_async_callback(self._stop)
            await self._start()
            await self.healthy(self.plan.ready_s)
            unless_healthy.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def healthy(self, timeout_s: float) -> None:
        """Wait until the process that now runs for each service is healthy. Raises `Unavailable` naming the others."""
        missing: Mapping[str, str] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while loop.time() < deadline:
            if not self._was_healthy:
                self._look_for_refusals()
            missing = await self._missing()
            if not missing:
                self._was_healthy = True
                return
            await asyncio.sleep(_LOOK_S)
        told = "; ".join(f"{name}: {what}" for name, what in missing.items())
        raise Unavailable(f"not healthy after {timeout_s:g} s ({told}); the log above says more")

    async def _start(self) -> None:
        plan = self.plan
        lock = await self._stack.enter_async_context(owned(plan.data))
        gateways = sum(service.name == "gateway" for service in plan.services)
        self.ports = [_checked_port(plan.host, plan.port), *(free_port() for _ in range(1, gateways))]
        ports = Ports(gateways=self.ports, monitor=free_port())
        programs: list[Program] = []
        if plan.nats_url is None:
            self.credentials = embedded.credentials(plan.data)
            programs.append(embedded.program(plan.data, self.credentials, ports.monitor, lock))
        programs += [service_program(plan, service, ports, self.credentials) for service in plan.services]
        if self._health is None:
            known = {**plan.environment, **bus_access(plan, ports, self.credentials)}
            bus = bus_settings(ServiceSettings.load("launcher", known), "launcher")
            self._health = await self._asking.enter_async_context(ServiceHealth(self.url, bus))
        for program in programs:
            self._keep(program)
        if self.credentials is not None:
            disk = ServerDisk(
                embedded.store(plan.data),
                f"http://127.0.0.1:{ports.monitor}",
                self._log,
                pid=lambda: self.pids.get(SERVER),
                restart=lambda: self._children[SERVER].send(signal.SIGTERM),
            )
            self._watching = asyncio.create_task(disk.watch(), name="server-disk")

    def _keep(self, program: Program) -> None:
        child = self._children[program.name] = Child(program, self._log)
        self._tasks[program.name] = asyncio.create_task(child.run(), name=f"child-{child.name}")

    async def _stop(self) -> None:
        """Drain in order, each with its own deadline, the server last; then give the folder back."""
        order = [service.child for service in self.plan.services] + [SERVER]
        try:
            if self._watching is not None:
                self._watching.cancel()
            await self._asking.aclose()
            for name in order:
                if (child := self._children.get(name)) is not None:
                    self._log.say("child.stopped", child=name, exit=await child.drain())
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=_ENDED_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._stack.aclose()

    async def _missing(self) -> Mapping[str, str]:
        pids = {name: pid for name, pid in self.pids.items() if name != SERVER}
        not_running = {
            service.child: "no process" for service in self.plan.services if service.child not in pids
        }
        assert self._health is not None
        return not_running or await self._health(pids)

    def _look_for_refusals(self) -> None:
        for child in self._children.values():
            if child.pid is not None or child.last_exit is None:
                continue
            if child.last_exit == EXIT_CONFIGURATION:
                raise ConfigurationError(f"{child.name} does not start: {child.last_lines}")
            if child.starts >= _EARLY_STARTS_MAX:
                raise Unavailable(f"{child.name} keeps dying (exit {child.last_exit}): {child.last_lines}")


def _checked_port(host: str, port: int) -> int:
    """The port, once it was seen to be free; any free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections of a predecessor that are still winding down do not make a port busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port (or PERDURE_PORT)"
            ) from error
        chosen: int = probe.getsockname()[1]
    return chosen
