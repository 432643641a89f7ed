"""The data folder of one machine: who owns it now, and the credentials of the server that lives in it.

Invariant: at most one launcher owns a folder. The lock's descriptor is inherited by the embedded server, so a folder
whose launcher was killed is free only once that server is gone too and nobody else writes to its store.
"""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from libs.contracts.errors import ConfigurationError

# A killed launcher's server dies within milliseconds; a living owner does not go away by waiting.
_ORPHANS_S = 3.0
_LOOK_S = 0.05


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The value of `<data>/nats.json`: where the embedded server listens and how to get in."""

    url: str
    user: str
    password: str


@asynccontextmanager
async def owned(folder: Path) -> AsyncGenerator[int]:
    """Own the folder (created when missing); yields the descriptor of its lock.

    Raises `ConfigurationError` naming the owner's pid, or what is wrong with the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "perdure.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot use the data folder {folder}: {error.strerror}") from error
    try:
        await _lock(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def load_credentials(folder: Path) -> Credentials | None:
    """The credentials of an earlier start; `None` when there are none. Raises `ConfigurationError` if unreadable."""
    path = folder / "nats.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"cannot read {path} ({error}); remove it to have it made anew") from error


def save_credentials(folder: Path, credentials: Credentials) -> None:
    """Write them in one step, readable by the owner only."""
    path, fresh = folder / "nats.json", folder / "nats.json.new"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(credentials) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def made_up(port: int) -> Credentials:
    """Fresh credentials for a server on this loopback port."""
    return Credentials(url=f"nats://127.0.0.1:{port}", user="perdure", password=secrets.token_urlsafe(32))


async def _lock(descriptor: int, folder: Path) -> None:
    deadline = asyncio.get_running_loop().time() + _ORPHANS_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            if _alive(owner) or asyncio.get_running_loop().time() > deadline:
                raise ConfigurationError(
                    f"the data folder {folder} is in use by process {owner}; stop that one, or give --data another folder"
                ) from None
            await asyncio.sleep(_LOOK_S)
        else:
            return


def _alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
