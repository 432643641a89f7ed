"""The HTTP server: a socket, uvicorn on it, and a drain that leaves no client hanging.

Invariant: signals belong to the chassis; the server stops when it is told to, after the streams have ended.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from libs.contracts.clock import Clock
from libs.contracts.errors import ConfigurationError
from services.gateway.protocol import PATIENCE, Patience, connections

# Connections that wait to be accepted: a burst of streams that reconnect after a gateway's restart.
BACKLOG = 2048
# An idle connection is kept for a client's next request, not for ever.
KEEP_ALIVE_S = 30
# A connection is an open file: for all streams (`stream.py`), as many other requests, and what the process has for itself.
FILES = 16_384
# The last resort for what does not read its answer; requests themselves are answered before (`requests.py`).
GRACE_S = 5


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `ConfigurationError` when the address is taken or none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"port {port} of {host} is in use; stop what listens there, or set PERDURE_PORT to another one"
            ) from error
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return bound


def make_room() -> None:
    """Let this process open as many files as its clients need, or as many as it may: many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve_until(
    stop: asyncio.Event, app: ASGIApp, bound: socket.socket, clock: Clock, patience: Patience = PATIENCE
) -> None:
    """Serve until `stop` is set, then let running requests finish."""
    config = uvicorn.Config(
        app,
        http=connections(clock, patience),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[bound]))
        stopping = group.create_task(stop.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stopping.cancel()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
