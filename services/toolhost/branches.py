"""How commits travel between the workspaces of a project: as bundles in the object store `<p>-workspaces` (ADR 25).

Invariant: a bundle is made and taken in by git inside of the workspace's sandbox, because its repository is the agent's to
write; outside of it only bytes are copied, through the guard. What was asked for is looked for by its hash afterwards: an
object that is older, or damaged, is an error and never another commit. Everything may be done again.
"""

import asyncio
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from libs.bus.ports import Blobs
from libs.contracts.errors import PerdureError
from services.toolhost.atomic import TEMPORARY_PREFIX
from services.toolhost.errors import FileMissing, RepositoryFault
from services.toolhost.projectgit import ProjectGit
from services.toolhost.tools import ToolContext

# Held in memory once, while it is put into the workspace; the history of a project whose lanes each have a copy of it.
BUNDLE_BYTES_MAX = 64 << 20
# Inside of `.git`, where no status or snapshot sees it; what comes in cannot be written there, and is left out of both, too.
_OUT = ".git/perdure-offer.bundle"
_IN = f"{TEMPORARY_PREFIX}branch"
_BRANCH_REF = "refs/perdure/branch"
# An object may be replaced by a newer one while it is read.
_READS_MAX = 3
_READ_AGAIN_S = 0.2


async def offer(
    context: ToolContext, git: ProjectGit, name: str, commit: str, ref: str | None, since: str | None
) -> None:
    """Put what `commit` holds, and `since` does not, under a name; whoever takes it finds it under `ref`, or as the
    project's branch. Raises `RepositoryFault`."""
    await git.forget_file(_OUT)
    await git.bundle(_OUT, commit, ref or _BRANCH_REF, since)
    await _stored(context, git, name)


async def _stored(context: ToolContext, git: ProjectGit, name: str) -> None:
    """Put the bundle that git has made under a name, and away."""
    try:
        with tempfile.TemporaryDirectory(dir=context.repository.git_dir) as aside:
            copy = Path(aside) / "bundle"
            await asyncio.to_thread(_copied, context, copy)
            await _objects(context).put_file(name, copy)
    except PerdureError as error:
        raise RepositoryFault(f"the commit could not be handed on: {error.message}") from error
    finally:
        await git.forget_file(_OUT)


async def leave(context: ToolContext, name: str, ref: str, message: str, head: str | None) -> bool:
    """Put under a name all that stands in the workspace and `head` of the project's branch, as far as it has come here, does
    not hold: the tree as `ref`, and whatever the repository calls by a name; whether there is anything. What git ignores
    counts for nothing. Raises `RepositoryFault`."""
    git = ProjectGit(context)
    await git.ensure()
    await git.keep_all(ref, message)
    known = [commit for commit in (head, _BRANCH_REF) if commit is not None and await git.has(commit)]
    await git.forget_file(_OUT)
    if not await git.bundle_all(_OUT, known):
        return False
    await _stored(context, git, name)
    return True


async def gather(context: ToolContext, name: str, under: str) -> None:
    """Take in all that another workspace left under a name; its references stand below `under`, so that they replace none
    of this one's. Raises `RepositoryFault`."""
    git = ProjectGit(context)
    await git.ensure()
    if not await take(context, git, name, f"+refs/*:{under}/*"):
        raise RepositoryFault(f"{name} is stored no more; what it held is looked for again")


async def take(
    context: ToolContext, git: ProjectGit, name: str, references: str = "+refs/perdure/*:refs/perdure/*"
) -> bool:
    """Take in what was offered under a name, under the references that it was offered as unless others are named; whether
    there was anything. Raises `RepositoryFault`, also when the store is away."""
    with tempfile.TemporaryDirectory(dir=context.repository.git_dir) as aside:
        copy = Path(aside) / "bundle"
        if not await _fetched(context, name, copy):
            return False
        await asyncio.to_thread(_placed, context, copy)
    try:
        await git.unbundle(_IN, references)
    finally:
        with suppress(FileMissing):
            await asyncio.to_thread(context.guard.unlink, _IN)
    return True


async def begin(context: ToolContext, name: str, head: str) -> ProjectGit:
    """Make the tree what the project's branch, which is stored as `name`, holds at `head`. Ignored files stay."""
    git = ProjectGit(context)
    await git.ensure()
    if not await git.has(head):
        await take(context, git, name)
    if not await git.has(head):
        raise RepositoryFault(f"the project's branch came without {head}; it is asked for again")
    await git.check_out(head)
    return git


async def merge(context: ToolContext, branch: str, name: str, ref: str, head: str) -> list[str]:
    """Make the tree what `head` of the project's branch and the commit `ref`, stored as `name`, give together, uncommitted;
    the files that contradict each other, and then the tree is what `head` holds."""
    git = await begin(context, branch, head)
    if not await take(context, git, name):
        raise RepositoryFault(
            f"{name}, which holds {ref}, is stored no more; the feature has to be built again"
        )
    merged = await git.merged(ref)
    if not merged.conflicts:
        await git.put_tree(merged.tree)
    return merged.conflicts


def _copied(context: ToolContext, copy: Path) -> None:
    """Out of the workspace, by a descriptor that no link leads away from. Blocking."""
    descriptor = context.guard.open_read(_OUT)
    size = 0
    with os.fdopen(descriptor, "rb") as source, copy.open("wb") as target:
        while block := source.read(1 << 20):
            size += len(block)
            if size > BUNDLE_BYTES_MAX:
                raise RepositoryFault(
                    f"the project's history takes more than {BUNDLE_BYTES_MAX} bytes; use `concurrency` 1, or begin it "
                    "with less history"
                )
            target.write(block)


def _placed(context: ToolContext, copy: Path) -> None:
    context.guard.replace(_IN, copy.read_bytes())


async def _fetched(context: ToolContext, name: str, copy: Path) -> bool:
    """Whether there is such an object; then `copy` holds it."""
    problem = ""
    for _ in range(_READS_MAX):
        try:
            return await _objects(context).get_file(name, copy)
        except PerdureError as error:
            problem = error.message
        await asyncio.sleep(_READ_AGAIN_S)
    raise RepositoryFault(f"{name} could not be read: {problem}")


def _objects(context: ToolContext) -> Blobs:
    assert context.objects is not None
    return context.objects
