"""A watched folder: each file in it is a task; one that is over is moved to `done/` or `failed/`, with what became of it.

Invariant: a file is moved only after its outcome lies beside where it goes. A file that cannot be read as a task is moved
aside with the reason and is in nobody's way. The same name, time and bytes are the same wish.
"""

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.contracts.clock import Clock
from libs.contracts.errors import ValidationFailed
from libs.contracts.http import TASK_BYTES_MAX, TaskCreate
from services.scheduler.sources.frontmatter import read_task
from services.scheduler.sources.wish import Outcome, SourceAway, Wish

# A task fits a record; with its front matter a file is hardly longer.
FILE_BYTES_MAX = 2 * TASK_BYTES_MAX
# Files that are read in one look; the others wait for those to be moved.
FILES_MAX = 1_000
# A file that somebody writes this moment is left until it stands still. Whoever moves it in whole need not wait for long.
STILL_S = 1.0
_SUFFIXES = frozenset({".md", ".txt", ".task"})
DONE, FAILED = "done", "failed"


class _Result(msgspec.Struct, frozen=True, kw_only=True):
    """What lies beside a file that was moved."""

    run_id: str
    status: str
    answer: str
    error: str


class _Read(NamedTuple):
    """A file as it was read: by what it is recognised as unchanged, and the wish in it."""

    mark: tuple[int, int, int]
    wish: Wish


class Directory:
    """One folder of the scheduler's machine. `Source`."""

    def __init__(self, name: str, path: Path, clock: Clock, *, tenant: str, every_s: float) -> None:
        self.name, self.tenant, self.every_s = name, tenant, every_s
        self._path, self._clock = path, clock
        self._read: dict[str, _Read] = {}

    async def look(self, going: Collection[str], *, afresh: bool) -> list[Wish]:
        # A file that somebody took away says nothing of its run.
        del going, afresh
        return await asyncio.to_thread(self._look)

    async def tell(self, key: str, outcome: Outcome) -> None:
        await asyncio.to_thread(self._tell, key, outcome)

    def _look(self) -> list[Wish]:
        now = self._clock.now().timestamp()
        found: dict[str, _Read] = {}
        try:
            names = sorted(os.listdir(self._path))
        except OSError as error:
            raise SourceAway(f"{self._path} cannot be read: {error.strerror}") from error
        for name in names:
            if len(found) == FILES_MAX:
                break
            if name.startswith(".") or Path(name).suffix not in _SUFFIXES:
                continue
            with contextlib.suppress(FileNotFoundError):
                info = os.lstat(self._path / name)
                if stat.S_ISREG(info.st_mode) and now - info.st_mtime >= STILL_S:
                    found[name] = self._known(name, info)
        self._read = found
        return [read.wish for read in found.values()]

    def _known(self, name: str, info: os.stat_result) -> _Read:
        mark = (info.st_ino, info.st_size, info.st_mtime_ns)
        known = self._read.get(name)
        return known if known is not None and known.mark == mark else _Read(mark, self._wish(name, info))

    def _wish(self, name: str, info: os.stat_result) -> Wish:
        key = f"{name}:{info.st_mtime_ns}"
        task: TaskCreate | None = None
        try:
            with (self._path / name).open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise ValidationFailed(
                    f"it is larger than {FILE_BYTES_MAX} bytes; put long texts into the workspace"
                )
            key = f"{key}:{hashlib.sha256(data).hexdigest()[:16]}"
            task, problem = read_task(data.decode()), ""
        except UnicodeDecodeError:
            problem = "it is no UTF-8 text"
        except OSError as error:
            problem = f"it cannot be read: {error.strerror}"
        except ValidationFailed as error:
            problem = error.message
        return Wish(key, task, problem)

    def _tell(self, key: str, outcome: Outcome) -> None:
        name = next((name for name, read in self._read.items() if read.wish.key == key), None)
        if name is None:
            return
        folder = self._path / (DONE if outcome.done else FAILED)
        status = outcome.status.value if outcome.status is not None else "REFUSED"
        result = _Result(run_id=outcome.run_id, status=status, answer=outcome.answer, error=outcome.error)
        try:
            folder.mkdir(exist_ok=True)
            target = folder / name
            if target.exists():
                mark = hashlib.sha256(key.encode()).hexdigest()[:8]
                target = folder / f"{Path(name).stem}.{mark}{Path(name).suffix}"
            beside = target.with_name(target.name + ".result.json")
            written = beside.with_name(f".{beside.name}")
            written.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
            written.rename(beside)
            # Another scheduler may have moved it this moment.
            with contextlib.suppress(FileNotFoundError):
                (self._path / name).rename(target)
        except OSError as error:
            raise SourceAway(f"{name} cannot be moved to {folder}: {error.strerror}") from error
        self._read.pop(name, None)
