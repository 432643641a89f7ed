"""The embedded server of a data folder as the launcher runs it: the same port, credentials and store at every start.

Invariant: `<data>/nats.json` (0600) always tells how to reach the server that runs on `<data>/nats`.
"""

import os
import socket
from pathlib import Path

import msgspec

from deploy.dev.child import Program
from deploy.dev.datafolder import Credentials, load_credentials, made_up, save_credentials
from deploy.dev.nats_server import STOP_S, ServerSettings, free_port, server_argv, store_of, write_config
from deploy.dev.plan import SERVER


def credentials(data: Path) -> Credentials:
    """The folder's credentials, made up at the first start; the port changes only when somebody else took it."""
    known = load_credentials(data)
    if known is not None and _is_free(int(known.url.rpartition(":")[2])):
        return known
    port = free_port()
    fresh = made_up(port) if known is None else msgspec.structs.replace(known, url=made_up(port).url)
    save_credentials(data, fresh)
    return fresh


def store(data: Path) -> Path:
    """Where the server of a data folder keeps its streams."""
    return store_of(data.absolute() / "nats")


def program(data: Path, known: Credentials, monitor_port: int, lock: int) -> Program:
    """The server as a child of the launcher. It holds the folder's lock as long as it lives."""
    folder = data.absolute() / "nats"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob("*.ports"):
        # Written by servers that were killed; each names a process that is gone.
        left.unlink(missing_ok=True)
    config = write_config(
        ServerSettings(
            folder=folder,
            user=known.user,
            password=known.password,
            port=int(known.url.rpartition(":")[2]),
            monitor_port=monitor_port,
        )
    )
    return Program(
        name=SERVER,
        argv=server_argv(config),
        environment={"PATH": os.defpath},
        drain_s=STOP_S,
        descriptors=(lock,),
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
