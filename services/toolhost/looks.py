"""Looks of people into workspaces: files, their bytes, what changed (`contracts/looks.py`).

Invariant: a look reads and never writes into a workspace or the index of its repository, so it may come beside whatever
goes on there, whoever holds the workspace, and long after its runs are over.
"""

import asyncio
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from libs.bus.ports import Message
from libs.chassis.effects import DEFECTS
from libs.chassis.logs import get_logger
from libs.contracts.errors import UNREADABLE, BusUnavailable
from libs.contracts.ids import is_id, is_token
from libs.contracts.looks import (
    DIFF_BYTES_MAX,
    LIST_BYTES_MAX,
    PART_BYTES_MAX,
    Answer,
    Diff,
    FileFound,
    FileList,
    ListFiles,
    Look,
    NotSeen,
    Part,
    ReadPart,
    ShowDiff,
)
from libs.contracts.workspaces import Saved
from services.toolhost.entries import Entry, FileKind
from services.toolhost.errors import FileMissing, FileTooLarge, PathRefused, ToolFailure, WrongKind
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.paths import NEVER_SHOWN, components
from services.toolhost.repository import HiddenRepository
from services.toolhost.snapshots import Snapshots
from services.toolhost.workspace import HIDDEN_FOLDER, WorkspacePlace, place_of

# Looks at once: each may walk a large tree or read a large file in a thread that calls of runs need too.
LOOKS_MAX = 4
# What is hashed for one download: some seconds of a disk. Who needs more has the folder.
FILE_BYTES_MAX = 512 << 20
# Repositories that snapshots were unpacked into, for the next look at the same one.
UNPACKED_MAX = 4
_BLOCK_BYTES = 1 << 20
_MISSING = (FileMissing, PathRefused, WrongKind)


class Looks:
    """Answers `<p>.call.look.<boot>` over the folder of all workspaces."""

    def __init__(self, root: Path, snapshots: Snapshots, *, secure: bool, program_path: str) -> None:
        self._root, self._secure, self._program_path = root, secure, program_path
        self._snapshots = snapshots
        self._places = asyncio.Semaphore(LOOKS_MAX)
        self._unpacking = asyncio.Lock()
        self._log = get_logger("looks")

    async def answer(self, message: Message) -> bytes:
        """Answer one request; idempotent by nature."""
        try:
            look = _decoder.decode(message.body)
        except UNREADABLE as error:
            return _encoder.encode(NotSeen(reason="fault", message=f"this is no look: {error}"))
        if not (is_token(look.tenant) and is_id("ws", look.workspace_id) and look.workspace):
            return _encoder.encode(NotSeen(reason="fault", message="this look names no workspace"))
        async with self._places:
            return _encoder.encode(await self._seen(look))

    async def _seen(self, look: Look) -> Answer:
        try:
            if look.saved is not None:
                return await self._in_snapshot(look, look.saved)
            return await self._in_folder(look)
        except _MISSING as failure:
            return NotSeen(reason="missing", message=failure.message)
        except FileTooLarge as failure:
            return NotSeen(reason="large", message=failure.message)
        except BusUnavailable as error:
            return NotSeen(reason="fault", message=error.message)
        except DEFECTS as error:
            self._log.exception("look.failed", workspace=look.workspace_id)
            told = error.message if isinstance(error, ToolFailure) else type(error).__name__
            return NotSeen(reason="fault", message=told)

    async def _in_folder(self, look: Look) -> Answer:
        place = place_of(self._root, look.workspace, tenant=look.tenant if self._secure else None)
        directory = place.directory.resolve()
        if not directory.is_dir():
            return NotSeen(reason="absent", message="its folder is not there")
        match look.question:
            case ListFiles() as question:
                return await asyncio.to_thread(_listed, directory, question)
            case ReadPart() as question:
                return await asyncio.to_thread(_part_of_file, directory, question)
            case ShowDiff() as question:
                return await self._changed_in_folder(place, directory, question)

    async def _changed_in_folder(self, place: WorkspacePlace, directory: Path, question: ShowDiff) -> Answer:
        if not place.git_dir.is_dir():
            return _no_baseline(question)
        with tempfile.TemporaryDirectory(dir=place.git_dir) as aside:
            index = Path(aside) / "index"
            with suppress(FileNotFoundError):
                # Its cache of what files look like spares hashing them all.
                await asyncio.to_thread(shutil.copyfile, place.git_dir / "index", index)
            repository = HiddenRepository(
                git_dir=place.git_dir, worktree=directory, program_path=self._program_path, index=index
            )
            return await _changed(repository, question, None)

    async def _in_snapshot(self, look: Look, saved: Saved) -> Answer:
        async with self._unpacking:
            repository, commit = await self._unpacked(look.workspace_id, saved)
            match look.question:
                case ListFiles() as question:
                    return _page(await repository.files_of(commit), question, complete=True)
                case ReadPart() as question:
                    data = await repository.file_at(commit, os.fsdecode(question.path))
                    if data is None:
                        raise FileMissing(f"{os.fsdecode(question.path)!r} is not in the snapshot")
                    digest = hashlib.sha256(data).hexdigest()
                    part = data[question.offset : question.offset + min(question.length, PART_BYTES_MAX)]
                    return Part(data=part, size_bytes=len(data), version=digest, sha256=digest)
                case ShowDiff() as question:
                    return await _changed(repository, question, commit)

    async def _unpacked(self, workspace_id: str, saved: Saved) -> tuple[HiddenRepository, str]:
        """A repository that holds the snapshot, and the commit of its files."""
        folder = self._root / HIDDEN_FOLDER / "looks"
        git_dir = folder / f"{workspace_id}-{saved.snapshot}.git"
        await asyncio.to_thread(_make_room, folder, git_dir)
        nothing = folder / "nothing"
        nothing.mkdir(exist_ok=True)
        repository = HiddenRepository(git_dir=git_dir, worktree=nothing, program_path=self._program_path)
        await repository.ensure()
        return repository, await self._snapshots.fetch(repository, workspace_id, saved.chain, saved.snapshot)


def _make_room(folder: Path, wanted: Path) -> None:
    """Remove what was unpacked longest ago, but for the wanted one. Blocking."""
    folder.mkdir(parents=True, exist_ok=True)
    others = [path for path in folder.glob("*.git") if path != wanted]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[UNPACKED_MAX - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


def _listed(directory: Path, question: ListFiles) -> FileList:
    with WorkspaceGuard(directory) as guard:
        listing = guard.walk()
    return _page(listing.entries, question, complete=listing.complete)


def _page(entries: list[Entry], question: ListFiles, *, complete: bool) -> FileList:
    files = [
        FileFound(
            path=os.fsencode(entry.path),
            size_bytes=entry.size_bytes,
            link=entry.kind is FileKind.SYMLINK,
        )
        for entry in entries
        if entry.kind in (FileKind.FILE, FileKind.SYMLINK)
    ]
    files = sorted((file for file in files if file.path > question.after), key=lambda file: file.path)
    page: list[FileFound] = []
    size = 0
    for file in files[: question.limit]:
        # Base64, and what JSON puts around it.
        size += len(file.path) * 4 // 3 + 64
        if size > LIST_BYTES_MAX:
            break
        page.append(file)
    return FileList(files=page, more=len(files) > len(page), complete=complete)


def _part_of_file(directory: Path, question: ReadPart) -> Answer:
    path = os.fsdecode(question.path)
    if NEVER_SHOWN.intersection(part.casefold() for part in components(path)):
        # What no list shows is not given either: a `.git` holds the addresses of its remotes, with their passwords.
        raise FileMissing(f"{path!r} is not shown")
    with WorkspaceGuard(directory) as guard, os.fdopen(guard.open_read(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        version = _version(file.fileno())
        if size > FILE_BYTES_MAX:
            raise FileTooLarge(
                f"{path!r} is larger than {FILE_BYTES_MAX} bytes; take it from the workspace's folder itself"
            )
        digest = "" if question.version else _digest(file.fileno())
        data = os.pread(file.fileno(), min(question.length, PART_BYTES_MAX), question.offset)
        if {question.version or version, _version(file.fileno())} != {version}:
            return NotSeen(reason="changed", message=f"{path!r} changed while it was read; get it again")
        return Part(data=data, size_bytes=size, version=version, sha256=digest)


def _version(descriptor: int) -> str:
    found = os.fstat(descriptor)
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def _digest(descriptor: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(descriptor, _BLOCK_BYTES, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()


async def _changed(repository: HiddenRepository, question: ShowDiff, commit: str | None) -> Answer:
    if not await repository.has(question.baseline):
        return _no_baseline(question)
    path = os.fsdecode(question.path) or None
    text = await repository.difference(question.baseline, commit, path, bytes_max=DIFF_BYTES_MAX)
    return Diff(text=text[:DIFF_BYTES_MAX], cut=len(text) > DIFF_BYTES_MAX)


def _no_baseline(question: ShowDiff) -> NotSeen:
    return NotSeen(
        reason="baseline",
        message=f"the state that the run began from ({question.baseline[:12]}) is not kept here any more",
    )


_decoder = msgspec.json.Decoder(Look)
_encoder = msgspec.json.Encoder()
