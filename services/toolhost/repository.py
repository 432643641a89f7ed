"""The hidden git repository of a workspace: snapshots, differences and clean checkouts, unseen by whoever works in it.

Invariant: nothing of the user's own git is read or written: not their `.git`, index, refs, stash, configuration,
hooks, filters or ignore rules. A snapshot holds every regular file and link byte for byte (ignored files too, and the
contents of nested repositories) except `.git` itself, half-written files, and the folders of `BULK_FOLDERS`, which
tools can make again. Empty folders, pipes and sockets have no place in git and are not kept.

One `HiddenRepository` serves one workspace; its lock puts operations that touch the index into a row.
"""

import asyncio
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from services.toolhost.entries import BULK_FOLDERS, Entry, FileKind
from services.toolhost.errors import FileTooLarge, RepositoryFault
from services.toolhost.git import Git
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.paths import components

# What we record by attributes: bytes, whatever `.gitattributes` in the workspace says. (`info/attributes` wins.)
_ATTRIBUTES = "* -text -eol -ident -filter !working-tree-encoding !diff !merge !export-ignore !export-subst\n"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REFERENCE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_LATEST = "refs/perdure/latest"
_BEFORE = "refs/perdure/before"
_DIFF_BYTES_MAX = 4 << 20
_FILE_BYTES_MAX = 64 << 20
# Files may change while they are hashed; a workspace that never stands still is snapshotted between two calls.
_SNAPSHOT_ATTEMPTS = 3


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded state: the commit, and the tree in it (equal trees are equal contents)."""

    commit: str
    tree: str


class ChangedPath(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is git's letter: A added, M modified, D deleted, T changed in kind."""

    path: str
    status: str


class HiddenRepository:
    """See the module. `git_dir` lies outside of `worktree`; `program_path` is the PATH that git is found on; an `index`
    of its own leaves that of the repository's holder alone; who changes several files at once holds `still`, so that
    no snapshot has half of it."""

    def __init__(
        self,
        *,
        git_dir: Path,
        worktree: Path,
        program_path: str = os.defpath,
        index: Path | None = None,
        still: "threading.Lock | None" = None,
    ) -> None:
        self.git_dir = git_dir
        self.worktree = worktree
        # Whoever keeps the workspace moves one reference: one after the other.
        self.keeping = asyncio.Lock()
        self._still = still or threading.Lock()
        self._commands = Git(git_dir=git_dir, worktree=worktree, program_path=program_path, index=index)
        self._git = self._commands.run
        self._lock = asyncio.Lock()

    async def ensure(self) -> None:
        """Makes the repository if there is none, and clears locks that a killed git left. Idempotent."""
        async with self._lock:
            if not (self.git_dir / "HEAD").is_file():
                self.git_dir.mkdir(parents=True, exist_ok=True)
                await self._git("init", "--quiet", "--template=")
            (self.git_dir / "info").mkdir(exist_ok=True)
            (self.git_dir / "info" / "attributes").write_text(_ATTRIBUTES)
            for lock in [*self.git_dir.glob("*.lock"), *(self.git_dir / "refs").rglob("*.lock")]:
                lock.unlink(missing_ok=True)

    async def snapshot(self, message: str) -> Snapshot:
        """Records the worktree as it is. An unchanged worktree gives the previous snapshot again."""
        async with self._lock:
            tree = await self._tree_of_worktree()
            latest = await self.resolve(_LATEST)
            if latest is not None and await self.resolve(f"{latest}^{{tree}}") == tree:
                return Snapshot(commit=latest, tree=tree)
            parent = [] if latest is None else ["-p", latest]
            commit = (await self._git("commit-tree", tree, *parent, "-m", message)).decode().strip()
            await self._git("update-ref", _LATEST, commit)
            return Snapshot(commit=commit, tree=tree)

    async def commit(self, tree: str, parents: Sequence[str], message: str, reference: str) -> str:
        """A commit of a tree, and a reference that points to it from now on."""
        options = [item for parent in parents for item in ("-p", parent)]
        made = (await self._git("commit-tree", tree, *options, "-m", message)).decode().strip()
        await self.point(reference, made)
        return made

    async def point(self, reference: str, commit: str) -> None:
        await self._git("update-ref", reference, _checked(commit))

    async def tree_of(self, files: Mapping[str, Path], index: Path) -> str:
        """The tree with these files and links under these names. `index` is a file that may be made for it."""
        odd = [name for name, path in files.items() if path.is_symlink() or "\n" in str(path)]
        plain = [name for name in files if name not in set(odd)]
        listed = b"".join(os.fsencode(files[name]) + b"\n" for name in plain)
        answer = await self._git("hash-object", "-w", "--no-filters", "--stdin-paths", data=listed)
        blobs = dict(zip(plain, answer.decode().split(), strict=True))
        for name in odd:
            path = files[name]
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            blobs[name] = (await self._git("hash-object", "-w", "--stdin", data=content)).decode().strip()
        entries = b"".join(
            f"{_mode(files[name])} {blob}\t".encode() + os.fsencode(name) + b"\0"
            for name, blob in blobs.items()
        )
        private = {"GIT_INDEX_FILE": str(index)}
        await self._git("update-index", "-z", "--index-info", data=entries, extra=private)
        return (await self._git("write-tree", extra=private)).decode().strip()

    async def bundle(self, reference: str, into: Path, *, since: str | None, bytes_max: int) -> None:
        """What `reference` holds and `since` does not, as one file."""
        without = [] if since is None else [f"^{_checked(since)}"]
        await self._git(
            "bundle", "create", "--quiet", "-", reference, *without, bytes_max=bytes_max, into=into
        )

    async def unbundle(self, file: Path, reference: str) -> None:
        """Takes in what `bundle` gave."""
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        await self._git("fetch", *options, str(file), f"+{reference}:{reference}")

    async def make_worktree(self, commit: str) -> None:
        """Makes the worktree what the commit holds. What it was before is recorded under `refs/perdure/before`."""
        async with self._lock:
            tree = await self._tree_of_worktree()
            latest = await self.resolve(_LATEST)
            known = set((await self._git("ls-files", "-z", "--cached")).split(b"\0"))
            if known != {b""}:
                await self.commit(tree, [latest] if latest is not None else [], "before", _BEFORE)
            wanted = set(
                (await self._git("ls-tree", "-r", "-z", "--name-only", _checked(commit))).split(b"\0")
            )
            await asyncio.to_thread(_unlink, self.worktree, known - wanted)
            await self._git("read-tree", commit)
            await self._git("checkout-index", "--all", "--force", "--quiet", "--index")
            await self.point(_LATEST, commit)

    async def count(self, commit: str) -> int:
        """How many files and links it holds."""
        listed = await self._git("ls-tree", "-r", "-z", "--name-only", _checked(commit))
        return listed.count(b"\0")

    async def pin_baseline(self, run_id: str, commit: str) -> None:
        """Remembers, and keeps alive, the commit that a run began from. The first one stays."""
        reference = _baseline(run_id)
        async with self._lock:
            if await self.resolve(reference) is None:
                await self._git("update-ref", reference, _checked(commit))

    async def baseline(self, run_id: str) -> str | None:
        """The commit that the run began from."""
        return await self.resolve(_baseline(run_id))

    async def unpin_baseline(self, run_id: str) -> None:
        """Forgets it (the run is deleted). Idempotent."""
        async with self._lock:
            await self._git("update-ref", "-d", _baseline(run_id))

    async def has(self, commit: str) -> bool:
        return await self.resolve(f"{_checked(commit)}^{{commit}}") is not None

    async def diff(
        self, from_commit: str, path: str | None = None, *, bytes_max: int = _DIFF_BYTES_MAX
    ) -> str:
        """What changed in the worktree since `from_commit`, as a unified diff with new and deleted files; `path`
        (a file or folder) narrows it. Empty when nothing changed; cut after `bytes_max`, and then it says so."""
        raw = await self.difference(from_commit, None, path, bytes_max=bytes_max)
        text = raw[:bytes_max].decode("utf-8", "replace")
        return text if len(raw) <= bytes_max else f"{text}\n… [the rest of the diff is left out] …\n"

    async def difference(
        self, older: str, newer: str | None, path: str | None, *, bytes_max: int = _DIFF_BYTES_MAX
    ) -> bytes:
        """The same between two commits (`None`: the worktree), as bytes; longer than `bytes_max` when it was cut."""
        narrowed = ["--", *(["/".join(components(path))] if path and components(path) else [])]
        if newer is None:
            async with self._lock:
                newer = await self._tree_of_worktree()
        options = ("-r", "-p", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")
        return await self._git(
            "diff-tree", *options, _checked(older), _checked(newer), *narrowed, bytes_max=bytes_max, cut=True
        )

    async def files_of(self, commit: str) -> list[Entry]:
        """All files and links that the commit holds, sorted by their bytes."""
        raw = await self._git("ls-tree", "-r", "-z", "-l", _checked(commit))
        found: list[Entry] = []
        for line in filter(None, raw.split(b"\0")):
            about, _, path = line.partition(b"\t")
            mode, kind, _, size = about.decode().split()
            if kind == "blob":
                link = mode == "120000"
                entry = FileKind.SYMLINK if link else FileKind.FILE
                found.append(Entry(path=os.fsdecode(path), kind=entry, size_bytes=0 if link else int(size)))
        return found

    async def changed_paths(self, older: str, newer: str) -> list[ChangedPath]:
        """The paths in which two commits differ, sorted. A rename is a deletion and an addition."""
        options = ("-r", "-z", "--name-status", "--no-renames")
        raw = await self._git("diff-tree", *options, _checked(older), _checked(newer))
        fields = raw.split(b"\0")
        return [
            ChangedPath(path=os.fsdecode(path), status=status.decode())
            for status, path in zip(fields[0::2], fields[1::2], strict=False)
        ]

    async def checkout(self, commit: str, into: Path) -> None:
        """Writes the commit's files into the empty or missing folder `into`: a clean copy, without any `.git`."""
        await asyncio.to_thread(into.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.git_dir) as private:
            index = {"GIT_INDEX_FILE": str(Path(private) / "index"), "GIT_WORK_TREE": str(into)}
            await self._git("read-tree", _checked(commit), extra=index)
            await self._git("checkout-index", "--all", "--force", "--quiet", extra=index, directory=into)

    async def file_at(self, commit: str, path: str) -> bytes | None:
        """The bytes of a regular file in the commit; None if there is none. Raises `FileTooLarge` above 64 MiB."""
        listed = await self._git("ls-tree", "-z", "-l", _checked(commit), "--", "/".join(components(path)))
        if not listed:
            return None
        mode, kind, blob, size = listed.split(b"\t", 1)[0].decode().split()
        if kind != "blob" or mode == "120000":
            return None
        if int(size) > _FILE_BYTES_MAX:
            raise FileTooLarge(f"{path!r} in the snapshot is larger than {_FILE_BYTES_MAX} bytes")
        return await self._git("cat-file", "blob", blob)

    async def _tree_of_worktree(self) -> str:
        """Brings the index up to the worktree and writes its tree. Needs the lock."""
        acquiring = asyncio.get_running_loop().run_in_executor(None, self._still.acquire)
        try:
            await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            # The thread goes on waiting, and gets it.
            acquiring.add_done_callback(lambda _: self._still.release())
            raise
        try:
            return await self._recorded_worktree()
        finally:
            self._still.release()

    async def _recorded_worktree(self) -> str:
        for attempt in range(_SNAPSHOT_ATTEMPTS):
            present = await asyncio.to_thread(self._present)
            try:
                known = [
                    path for path in (await self._git("ls-files", "-z", "--cached")).split(b"\0") if path
                ]
                # What is gone leaves first: a name may be a file, a folder and a link one after the other.
                gone = set(known).difference(present)
                for option, paths in (("--force-remove", sorted(gone)), ("--add", present)):
                    if paths:
                        options = ("-z", "--remove", option, "--stdin")
                        await self._git("update-index", *options, data=b"\0".join([*paths, b""]))
                return (await self._git("write-tree")).decode().strip()
            except RepositoryFault:
                if attempt == _SNAPSHOT_ATTEMPTS - 1:
                    raise
                # A file changed under git's hands, or a killed git left its lock, or half an index.
                index = self._commands.index
                for spoilt in (index.with_name(f"{index.name}.lock"), index)[: attempt + 1]:
                    spoilt.unlink(missing_ok=True)
        raise AssertionError("the last attempt returns or raises")

    def _present(self) -> list[bytes]:
        with WorkspaceGuard(self.worktree) as guard:
            listing = guard.walk()
        if not listing.complete:
            raise RepositoryFault(
                f"the workspace has more than {len(listing.entries)} entries and cannot be snapshotted; "
                f"remove what can be made again, or put it into one of {', '.join(sorted(BULK_FOLDERS))}"
            )
        kept = (FileKind.FILE, FileKind.SYMLINK)
        return [
            os.fsencode(entry.path) for entry in listing.entries if entry.kind in kept and _recordable(entry)
        ]

    async def resolve(self, name: str) -> str | None:
        raw = await self._git(
            "rev-parse", "--verify", "--quiet", "--end-of-options", name, accepted=(0, 1, 128)
        )
        return raw.decode().strip() or None


def git_is_installed(program_path: str) -> bool:
    """Whether there is a git to work with. For the host's start."""
    return shutil.which("git", path=program_path) is not None


def _baseline(run_id: str) -> str:
    if not _REFERENCE_NAME.match(run_id):
        raise RepositoryFault(f"{run_id!r} is not the id of a run")
    return f"refs/perdure/baseline/{run_id}"


def _checked(commit: str) -> str:
    if not _COMMIT.match(commit):
        raise RepositoryFault(f"{commit!r} is not the name of a commit")
    return commit


def _recordable(entry: Entry) -> bool:
    """Git refuses these names, and one of them would spoil the snapshot of all others."""
    names = entry.path.casefold().split("/")
    return ".git" not in names and not (entry.kind is FileKind.SYMLINK and names[-1] == ".gitmodules")


def _mode(path: Path) -> str:
    if path.is_symlink():
        return "120000"
    return "100755" if path.stat().st_mode & 0o100 else "100644"


def _unlink(worktree: Path, names: set[bytes]) -> None:
    """Removes files and links; what is gone already, or lies behind a link by now, is passed over."""
    for name in names - {b""}:
        path = worktree / os.fsdecode(name)
        within = [parent for parent in path.parents if parent != worktree and parent.is_relative_to(worktree)]
        if not any(parent.is_symlink() for parent in within):
            path.unlink(missing_ok=True)
