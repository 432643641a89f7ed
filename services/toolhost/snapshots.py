"""Snapshots of workspaces in the object store, and how a workspace is brought back from one (ADR 14).

Invariant: a snapshot is named to anybody only after its bundle was stored and read back; bringing one back loses nothing
that stood in the folder before, because that is recorded in the hidden repository first.

A snapshot is a commit of its own behind the one of the worktree. Its tree holds what git has no place for: empty folders,
permissions beyond the execute bit, and everything in `.git` of the user's own repositories, under names that git takes.
"""

import asyncio
import filecmp
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from libs.bus.ports import Blobs
from libs.contracts.errors import PerdureError
from libs.contracts.workspaces import objects_of
from services.toolhost.errors import RepositoryFault
from services.toolhost.extras import Extras, found_extras, hidden, put_extras
from services.toolhost.repository import HiddenRepository

# What one message-sized read after another brings back within an attach; a history that outgrew it stays on its machine.
BUNDLE_BYTES_MAX = 256 << 20
# Bundles that a return goes through. A whole one costs as much as the history is long, so it comes now and then.
CHAIN_MAX = 32
# Bundles in the works at once: each takes a processor of a git that packs or unpacks, and disk for twice what it holds.
AT_ONCE = 2
_KEPT = "refs/perdure/kept"
_EXTRAS = "extras.json"
_GIT_FOLDERS = "git"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept: `snapshot` is the commit of all, `commit` the worktree's; `chain` as in `workspaces.Saved`."""

    snapshot: str
    commit: str
    chain: list[str]
    changed: int
    bundle_bytes: int = 0


class Snapshots:
    """Keeps workspaces in the object store `<p>-workspaces` and brings them back."""

    def __init__(self, store: Blobs) -> None:
        self._store = store
        self._places = asyncio.Semaphore(AT_ONCE)
        # By hidden repository: the tree of extras and what it was made of. A small entry for each workspace of the host.
        self._trees: dict[Path, tuple[str, str]] = {}

    async def keep(self, repository: HiddenRepository, workspace_id: str, chain: Sequence[str]) -> Kept:
        """Store the workspace as it is, on top of the snapshots that are stored already. Raises `ToolFailure`."""
        worktree = await repository.snapshot("snapshot")
        tree = await self._extras_tree(repository)
        async with self._places, repository.keeping:
            former = chain[-1] if chain and await repository.has(chain[-1]) else None
            if former is not None:
                known = [await repository.resolve(f"{former}{part}") for part in ("^1", "^{tree}")]
                if known == [worktree.commit, tree]:
                    return Kept(snapshot=former, commit=worktree.commit, chain=list(chain), changed=0)
            parents = [worktree.commit, *([former] if former is not None else [])]
            snapshot = await repository.commit(tree, parents, "kept", _KEPT)
            extends = former is not None and len(chain) < CHAIN_MAX
            links = [*chain, snapshot] if extends else [snapshot]
            name = objects_of(workspace_id, links)[-1]
            size = await self._stored(name, repository, since=former if extends else None)
        changed = (
            len(await repository.changed_paths(f"{await repository.resolve(f'{former}^1')}", worktree.commit))
            if former is not None
            else await repository.count(worktree.commit)
        )
        return Kept(
            snapshot=snapshot, commit=worktree.commit, chain=links, changed=changed, bundle_bytes=size
        )

    async def _stored(self, name: str, repository: HiddenRepository, *, since: str | None) -> int:
        """The size of the bundle that is in the store now, and was read back from there."""
        with tempfile.TemporaryDirectory(dir=repository.git_dir) as aside:
            bundle = Path(aside) / "bundle"
            await repository.bundle(_KEPT, bundle, since=since, bytes_max=BUNDLE_BYTES_MAX)
            try:
                await self._store.put_file(name, bundle)
                found = await self._store.get_file(name, Path(aside) / "again")
            except PerdureError as error:
                raise RepositoryFault(f"the snapshot could not be stored: {error.message}") from error
            if not (found and await asyncio.to_thread(filecmp.cmp, bundle, Path(aside) / "again", False)):
                raise RepositoryFault("the snapshot was stored and cannot be read back")
            return bundle.stat().st_size

    async def bring_back(
        self,
        repository: HiddenRepository,
        workspace_id: str,
        chain: Sequence[str],
        snapshot: str | None = None,
        told: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Make the folder what it was: at the end of the chain, or at an older `snapshot`, which every whole bundle
        holds too. Gives the commit of the worktree. What stands in the folder is recorded before (`refs/perdure/before`);
        what snapshots never hold (`BULK_FOLDERS`, pipes) stays. `told` hears how far it is. Raises `ToolFailure`; safe to
        repeat."""
        wanted = snapshot or chain[-1]
        commit = await self.fetch(repository, workspace_id, chain, wanted, told)
        told("its files are written")
        raw = await repository.file_at(wanted, _EXTRAS)
        extras = msgspec.json.decode(raw or b"{}", type=Extras)
        await repository.make_worktree(commit)
        with tempfile.TemporaryDirectory(dir=repository.git_dir) as aside:
            folder = Path(aside) / "extras"
            await repository.checkout(wanted, folder)
            former = repository.git_dir.with_suffix(".before") / wanted
            await asyncio.to_thread(put_extras, repository.worktree, folder / _GIT_FOLDERS, extras, former)
        return commit

    async def fetch(
        self,
        repository: HiddenRepository,
        workspace_id: str,
        chain: Sequence[str],
        snapshot: str,
        told: Callable[[str], None] = lambda _: None,
    ) -> str:
        """Take in all that the chain holds; gives the commit of the worktree at `snapshot`. Raises `ToolFailure`."""
        told("its snapshots wait for those of other workspaces")
        async with self._places:
            for number, (link, name) in enumerate(
                zip(chain, objects_of(workspace_id, chain), strict=True), 1
            ):
                told(f"snapshot {number} of {len(chain)} is brought back")
                if not await repository.has(link):
                    await self._fetched(name, repository)
                if not await repository.has(link):
                    raise RepositoryFault(f"the object {name} does not hold the snapshot that it is named by")
                # What comes on top of it is taken only where a reference leads to it.
                await repository.point(_KEPT, link)
        commit = await repository.resolve(f"{snapshot}^1")
        if commit is None:
            raise RepositoryFault(f"snapshot {snapshot} is not in the chain that ends with {chain[-1]}")
        return commit

    async def _extras_tree(self, repository: HiddenRepository) -> str:
        """The tree of what git has no place for."""
        found = await asyncio.to_thread(found_extras, repository.worktree)
        known = self._trees.get(repository.git_dir)
        if known is not None and known[0] == found.print:
            return known[1]
        with tempfile.TemporaryDirectory(dir=repository.git_dir) as aside:
            manifest = Path(aside) / _EXTRAS
            manifest.write_bytes(msgspec.json.encode(found.extras))
            files = {f"{_GIT_FOLDERS}/{hidden(path)}": repository.worktree / path for path in found.files}
            tree = await repository.tree_of({_EXTRAS: manifest, **files}, Path(aside) / "index")
        self._trees[repository.git_dir] = (found.print, tree)
        return tree

    async def _fetched(self, name: str, repository: HiddenRepository) -> None:
        with tempfile.TemporaryDirectory(dir=repository.git_dir) as aside:
            bundle = Path(aside) / "bundle"
            # A bus that is away is no fault of the snapshot: then the workspace is asked for again.
            if not await self._store.get_file(name, bundle):
                raise RepositoryFault(f"the snapshot's object {name} is not there")
            await repository.unbundle(bundle, _KEPT)
