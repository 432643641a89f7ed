"""What the runtime itself does in a project's workspace: the calls of errands, which no model is offered.

Invariant: each may be done again after a crash and then finds what it did; a commit holds exactly what the verifier
judged, and the files that the runtime keeps.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from libs.chassis.effects import Stopped
from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMAND,
    WORKSPACE_COMMIT,
    WORKSPACE_GATHER,
    WORKSPACE_LEAVE,
    WORKSPACE_MERGE,
    WORKSPACE_PREPARE,
    WORKSPACE_RESTORE,
    WORKSPACE_SET_ASIDE,
)
from services.toolhost import branches
from services.toolhost.errors import ToolFailure, WorkspaceFault
from services.toolhost.processes import Command
from services.toolhost.projectgit import ProjectGit
from services.toolhost.tools import Arguments, Outcome, ToolContext, commands, decoded

# Changed paths that a refusal names.
_NAMED_MAX = 10
_CLONE_S = 600.0
# Of what git says; a refusal quotes its end.
_SAID_BYTES_MAX = 64 * 1024
_HEAD = "HEAD"


class PrepareArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What an empty workspace begins from."""

    seed_dir: str | None = None
    git_url: str | None = None


class CommandArguments(msgspec.Struct, frozen=True, kw_only=True):
    argv: list[str]


class CommitArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`files` are those that the runtime keeps in the workspace, by path, `kept` those that stay as they were; `verified` is
    the snapshot that was judged (`None`: nothing was that could have changed since); the commit comes on top of `head`,
    whatever was committed since. With `offer` it counts only once it is stored under that name, as `ref`."""

    message: str
    trailers: dict[str, str]
    files: dict[str, str] = {}
    kept: list[str] = []
    verified: str | None = None
    head: str | None = None
    offer: str | None = None
    ref: str | None = None


class SetAsideArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`head` is the commit that the branch goes back to (`HEAD`: where it stands); `None`: there is none yet, and nothing is
    done. What was left over is stored as `offer`, if that is a name."""

    ref: str
    message: str
    trailers: dict[str, str]
    head: str | None = None
    offer: str | None = None


class RestoreArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`object`: it may have been left in another workspace, and is stored there."""

    ref: str
    object: str | None = None


class BeginArguments(msgspec.Struct, frozen=True, kw_only=True):
    object: str
    head: str


class MergeArguments(msgspec.Struct, frozen=True, kw_only=True):
    """`object` holds the commit `ref`; `head` is where the project's branch stands, which is stored as `branch`: the
    workspace may have been lost with its machine."""

    branch: str
    object: str
    ref: str
    head: str


class LeaveArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the tree is called `ref`; all that `head` of the project's branch does not hold is stored as `object`."""

    object: str
    ref: str
    message: str
    head: str | None = None


class GatherArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The references that `object` holds are kept below `under`."""

    object: str
    under: str


async def _prepare(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, PrepareArguments)
    git = ProjectGit(context)
    root = context.guard.root
    if (root / ".git").exists() and await git.head() is not None:
        return Outcome(ok=True, output="the workspace has begun already", metadata={"began": False})
    if wanted.seed_dir is not None or wanted.git_url is not None:
        with tempfile.TemporaryDirectory(dir=context.repository.git_dir) as aside:
            fresh = Path(aside) / "tree"
            fresh.mkdir()
            if wanted.seed_dir is not None:
                await asyncio.to_thread(_copy, Path(wanted.seed_dir), fresh)
            elif wanted.git_url is not None:
                await _fetch(context, wanted.git_url, fresh)
            await asyncio.to_thread(_move, fresh, root)
    await git.ensure()
    return Outcome(ok=True, output="the workspace is prepared", metadata={"began": True})


def _move(fresh: Path, root: Path) -> None:
    """Put what a folder of our own holds into the workspace. An agent may have worked there before a first session that
    failed: what stands in the way goes, and no link that it left is followed. The repository comes last: with it the
    workspace has begun. Blocking."""
    for entry in sorted(fresh.iterdir(), key=lambda entry: entry.name == ".git"):
        there = root / entry.name
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)
        shutil.move(entry, there)


def _copy(seed: Path, root: Path) -> None:
    if not seed.is_dir():
        raise WorkspaceFault(
            f"{seed} is no folder on this machine; give seed_dir a folder that the host can read"
        )
    try:
        shutil.copytree(seed, root, symlinks=True, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise WorkspaceFault(f"{seed} could not be copied: {error}") from error


async def _fetch(context: ToolContext, url: str, root: Path) -> None:
    """Clone into a new folder, where nothing is anybody's yet: this git runs outside of the sandbox, which has no network,
    and does what the repository's configuration and hooks say."""
    script = (
        'git init -q && (git remote add origin -- "$1" || git remote set-url origin -- "$1") '
        "&& git fetch -q --no-tags origin HEAD && git checkout -q -B main FETCH_HEAD"
    )
    command = Command(
        argv=["sh", "-c", script, "sh", url],
        directory=root,
        call_id=context.call_id,
        timeout_s=_CLONE_S,
        output_bytes_max=_SAID_BYTES_MAX,
        environment={"GIT_ALLOW_PROTOCOL": "https", "GIT_CONFIG_NOSYSTEM": "1"},
    )
    ended = await context.processes.run(command, on_started=context.on_started, stop=context.stop)
    if ended.cancelled:
        raise Stopped(f"{url} was not cloned: it was stopped")
    if ended.timed_out:
        raise WorkspaceFault(f"{url} was not cloned within {_CLONE_S:g} s")
    if ended.exit_code != 0:
        raise WorkspaceFault(f"{url} could not be cloned: {ended.output.strip()[-500:]}")


async def _command(context: ToolContext, arguments: Arguments) -> Outcome:
    argv = decoded(arguments, CommandArguments).argv
    return await commands.run(context, argv, timeout_s=context.timeout_s, metadata={"argv": argv})


async def _commit(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, CommitArguments)
    git = ProjectGit(context)
    await git.ensure()
    if await git.found(wanted.trailers) is None:
        if wanted.verified is not None:
            await _require_unchanged(context, wanted.verified, {*wanted.files, *wanted.kept})
        await asyncio.to_thread(_write, context, wanted.files)
    commit, found = await git.commit(wanted.message, wanted.trailers, wanted.head, wanted.kept)
    if not await git.is_clean():
        raise WorkspaceFault("the tree is not clean after the commit: a process of the project still writes")
    if wanted.offer is not None:
        since = wanted.head if wanted.ref is not None else None
        await branches.offer(context, git, wanted.offer, "HEAD", wanted.ref, since)
    baseline = await context.repository.snapshot(f"commit {commit}")
    metadata: dict[str, object] = {
        "commit": commit,
        "head": commit,
        "baseline": baseline.commit,
        "found": found,
    }
    return Outcome(ok=True, output=f"committed as {commit}", metadata=metadata)


async def _require_unchanged(context: ToolContext, verified: str, kept: set[str]) -> None:
    """The tree is what the verifier judged; the runtime's own files, which an earlier try may have written, aside."""
    now = await context.repository.snapshot("before the commit")
    changed = [
        change.path
        for change in await context.repository.changed_paths(verified, now.commit)
        if change.path not in kept
    ]
    if changed:
        named = ", ".join(changed[:_NAMED_MAX])
        raise WorkspaceFault(
            f"the workspace changed since it was verified: {named}; it has to be verified again"
        )


def _write(context: ToolContext, files: dict[str, str]) -> None:
    for path, text in files.items():
        context.guard.replace(path, text.encode())


async def _set_aside(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, SetAsideArguments)
    git = ProjectGit(context)
    await git.ensure()
    head = await git.head() if wanted.head == _HEAD else wanted.head
    if head is None:
        return Outcome(ok=True, output="there is no commit to go back to yet")
    aside = await git.set_aside(wanted.ref, wanted.message, wanted.trailers, head)
    if wanted.offer is not None and aside.side_ref is not None:
        await branches.offer(context, git, wanted.offer, aside.side_ref, aside.side_ref, head)
    baseline = await context.repository.snapshot(f"back to {head}")
    told = f"kept as {aside.side_ref}" if aside.side_ref is not None else "nothing was left over"
    metadata: dict[str, object] = {
        "side_ref": aside.side_ref,
        "head": aside.head,
        "baseline": baseline.commit,
    }
    return Outcome(ok=True, output=told, metadata=metadata)


async def _restore(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, RestoreArguments)
    git = ProjectGit(context)
    await git.ensure()
    travelled = wanted.object is not None
    if wanted.object is not None:
        # One that is stored no more is asked for in vain ever after; a store that is away is not.
        await branches.take(context, git, wanted.object)
    conflicts = await git.bring_back(wanted.ref, marked=travelled)
    if conflicts is None:
        why = "is there no more" if travelled else "does not fit any more; it stays there"
        told = f"{wanted.ref} {why}"
    elif conflicts:
        named = ", ".join(conflicts[:_NAMED_MAX])
        told = f"what was left over is back; these files hold both versions between conflict markers: {named}"
    else:
        told = "what was left over is back"
    # Something that the agent is told, and not what another try would mend.
    metadata: dict[str, object] = {"restored": conflicts is not None, "problem": conflicts != []}
    return Outcome(ok=travelled or conflicts == [], output=told, metadata=metadata)


async def _begin(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, BeginArguments)
    await branches.begin(context, wanted.object, wanted.head)
    baseline = await context.repository.snapshot(f"begin from {wanted.head}")
    metadata: dict[str, object] = {"head": wanted.head, "baseline": baseline.commit}
    return Outcome(ok=True, output=f"the workspace is what {wanted.head} holds", metadata=metadata)


async def _merge(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, MergeArguments)
    conflicts = await branches.merge(context, wanted.branch, wanted.object, wanted.ref, wanted.head)
    named = ", ".join(conflicts[:_NAMED_MAX])
    told = f"these files contradict each other: {named}" if conflicts else f"{wanted.ref} fits {wanted.head}"
    return Outcome(ok=not conflicts, output=told, metadata={"conflicts": conflicts[:_NAMED_MAX]})


async def _leave(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, LeaveArguments)
    offered = await branches.leave(context, wanted.object, wanted.ref, wanted.message, wanted.head)
    told = (
        "what only this workspace holds is stored"
        if offered
        else "the project's branch holds all that is here"
    )
    return Outcome(ok=True, output=told, metadata={"offered": offered})


async def _gather(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, GatherArguments)
    await branches.gather(context, wanted.object, wanted.under)
    return Outcome(ok=True, output=f"what was left is kept below {wanted.under}")


ERRANDS: dict[str, Callable[[ToolContext, Arguments], Awaitable[Outcome]]] = {
    WORKSPACE_PREPARE: _prepare,
    WORKSPACE_COMMAND: _command,
    WORKSPACE_COMMIT: _commit,
    WORKSPACE_SET_ASIDE: _set_aside,
    WORKSPACE_RESTORE: _restore,
    WORKSPACE_BEGIN: _begin,
    WORKSPACE_MERGE: _merge,
    WORKSPACE_LEAVE: _leave,
    WORKSPACE_GATHER: _gather,
}


async def perform(name: str, context: ToolContext, arguments: Arguments) -> Outcome:
    """Carry out a step; its failure is an answer too."""
    try:
        return await ERRANDS[name](context, arguments)
    except ToolFailure as failure:
        return Outcome(
            ok=False, output=f"{failure.code}: {failure.message}", metadata={"error_code": failure.code}
        )
    except OSError as error:
        return Outcome(
            ok=False, output=f"WORKSPACE_ERROR: {error}", metadata={"error_code": "WORKSPACE_ERROR"}
        )
