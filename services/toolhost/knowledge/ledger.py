"""What the index runs on this machine did, for people: when, from which folders, and what was passed over.

Invariant: nothing is decided by it but whether a name stands for one folder; what is in an index, the index says. One run
at a time goes on in a data folder.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from libs.contracts.errors import ConfigurationError
from services.toolhost.knowledge.documents import Source
from services.toolhost.knowledge.places import runs_file


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One name: its folder, and the last run that it was part of."""

    root: str
    indexed_at: str
    passed_over: dict[str, int] = {}
    problems: list[str] = []


class Ledger(msgspec.Struct, kw_only=True):
    """All names of a tenant. `begun_at` is set while a run goes on, and stays where one was killed."""

    sources: dict[str, Record] = {}
    begun_at: str | None = None

    def refuse_two_folders(self, source: Source) -> None:
        """Raises `ConfigurationError` if a name would stand for a second folder: their paths would be the same."""
        known = self.sources.get(source.name)
        if known is not None and known.root != str(source.root):
            raise ConfigurationError(
                f"{source.name} is {known.root} already; give {source.root} another name (--as NAME), or take the other one "
                f"out (--forget {source.name})"
            )


def load(root: Path, tenant: str) -> Ledger:
    """What is known; nothing if there never was a run here, or what was written cannot be read."""
    try:
        return msgspec.json.decode(runs_file(root, tenant).read_bytes(), type=Ledger)
    except (OSError, msgspec.MsgspecError):
        return Ledger()


def save(root: Path, tenant: str, ledger: Ledger) -> None:
    """In one step."""
    file = runs_file(root, tenant)
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(ledger))
    fresh.replace(file)


@contextmanager
def exclusive(root: Path) -> Generator[None]:
    """The only index run in this data folder. Raises `ConfigurationError` naming the process that is at it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / "index.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"cannot use {root} for indexes: {error.strerror}; set PERDURE_DATA (--data)"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise ConfigurationError(
            f"another index run (process {owner}) is at work; wait until it is done"
        ) from None
    finally:
        os.close(descriptor)
