"""The git repository that a project's people see, in its workspace: commits of the runtime, leftovers, what comes back.

Invariant: git runs in the workspace's sandbox like any command of its agent, because what the repository says about
hooks, filters and drivers is the agent's to write; what is told of a commit was read from git. Everything may be done
again: a commit is found by its trailers, leftovers by theirs.
"""

from collections.abc import Mapping, Sequence

import msgspec

from libs.chassis.effects import Stopped
from services.toolhost.errors import RepositoryFault
from services.toolhost.processes import Command
from services.toolhost.tools import ToolContext

SESSION_TRAILER = "Perdure-Session"
FEATURE_TRAILER = "Perdure-Feature"
EVIDENCE_TRAILER = "Perdure-Evidence"

# Answers are hashes, names and short lists; a status of more is cut and still not empty.
_ANSWER_BYTES_MAX = 256 * 1024
_GIT_S = 120.0
_BRANCH = "main"
# Of a repository inside, in the index for as long as its files are looked for.
_ENTRY = ".perdure-inside"
# Folders that a refusal names.
_NAMED_MAX = 10
# Whose commits these are; nothing of the machine's or the repository's own configuration decides it.
_SETTINGS = (
    "user.name=Perdure",
    "user.email=perdure@localhost",
    "commit.gpgSign=false",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    "gc.auto=0",
    "safe.directory=*",
)


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Where leftovers went (`None`: there were none), and where the branch stands."""

    side_ref: str | None
    head: str | None


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A tree, in which the files of `conflicts` hold both versions between markers."""

    tree: str
    conflicts: list[str]


class ProjectGit:
    """The repository in the root of one workspace, through one call's context."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    async def ensure(self) -> None:
        """Make the repository if there is none, and clear a lock that a killed git left."""
        await self._run("init", "--quiet", "--initial-branch", _BRANCH)
        await self._sh("rm -f .git/index.lock .git/HEAD.lock")

    async def head(self) -> str | None:
        """The commit that is checked out; `None` before the first."""
        return await self._resolve("HEAD")

    async def commit(
        self,
        message: str,
        trailers: Mapping[str, str],
        parent: str | None = None,
        kept: Sequence[str] = (),
    ) -> tuple[str, bool]:
        """Commit the whole tree on top of `parent`, also when nothing changed; the commit, and whether it was there already.
        What an agent committed by itself becomes a part of it; the files `kept` are as they were before."""
        found = await self.found(trailers)
        if found is not None:
            return found, True
        if parent is not None and await self._resolve(parent) is not None:
            await self._run("reset", "--quiet", "--soft", parent)
        await self._stage(await self.head())
        empty = await self._repositories_inside()
        if empty:
            raise RepositoryFault(
                f"{', '.join(sorted(empty)[:_NAMED_MAX])}: a git repository of its own without any file for a commit; "
                "remove it"
            )
        # What the repository ignores is in no commit, and git restores nothing when one of the files is none of its own.
        tracked = (await self._run("ls-tree", "--name-only", "HEAD", "--", *kept)).split() if kept else []
        if tracked:
            await self._run("restore", "--source=HEAD", "--staged", "--worktree", "--", *tracked)
        lines = "\n".join(f"{name}: {value}" for name, value in trailers.items())
        await self._run("commit", "--quiet", "--allow-empty", "--no-verify", "-m", message, "-m", lines)
        head = await self.head()
        if head is None:
            raise RepositoryFault("git says that it committed, and there is no commit")
        return head, False

    async def found(self, trailers: Mapping[str, str]) -> str | None:
        """The commit of the branch that carries all of these trailers."""
        if await self.head() is None:
            return None
        greps = [item for name, value in trailers.items() for item in ("--grep", f"^{name}: {value}$")]
        answer = await self._run("log", "-1", "--format=%H", "--all-match", "--extended-regexp", *greps)
        return answer.strip() or None

    async def _stage(self, parent: str | None) -> None:
        """Bring the whole tree into the index. Files of repositories inside are the project's like any others, as the verifier
        saw them: a commit would name their folder and hold none of them. What `parent` names so stays that way."""
        # Whoever worked here may have added such a folder, or committed it.
        named = await self._links("ls-files -z --stage")
        if parent is not None:
            named -= await self._links('ls-tree -r -z "$1"', parent)
        if named:
            await self._run("update-index", "--force-remove", "--", *sorted(named))
        nothing = (await self._run("hash-object", "-t", "blob", "/dev/null")).strip()
        entered: set[str] = set()
        while fresh := await self._repositories_inside() - entered:
            # A folder with an entry is gone through, by the rules of the whole project; there is no such file, so the entry
            # goes as it is.
            entries = (f"100644,{nothing},{folder}/{_ENTRY}" for folder in sorted(fresh))
            options = [item for entry in entries for item in ("--cacheinfo", entry)]
            await self._run("update-index", "--add", "--replace", *options)
            entered |= fresh
        await self._run("add", "--all")

    async def _repositories_inside(self) -> set[str]:
        """Folders with a repository of their own that the index has no entry of, and git does not ignore."""
        found = await self._found("ls-files -z --others --exclude-standard", "/$")
        return {folder.rstrip("/") for folder in found}

    async def _links(self, listed: str, *arguments: str) -> set[str]:
        """Folders of which a listing names the commit of a repository in place of files."""
        return {entry.partition("\t")[2] for entry in await self._found(listed, "^160000 ", *arguments)}

    async def _found(self, listed: str, pattern: str, *arguments: str) -> set[str]:
        """The entries of a listing that fit. Searched where it is made: all names of a project are more than an answer
        holds."""
        line = f"git -c safe.directory='*' {listed} | grep -z '{pattern}'"
        _, answer = await self._carry_out(["sh", "-c", line, "sh", *arguments])
        return {entry for entry in answer.split("\0") if entry}

    async def is_clean(self) -> bool:
        return not (await self._run("status", "--porcelain")).strip()

    async def set_aside(self, ref: str, message: str, trailers: Mapping[str, str], head: str) -> SetAside:
        """Keep on a side ref what differs from `head`, commits included, and make the tree what `head` holds. Ignored
        files stay."""
        now = await self.head()
        if now == head and await self.is_clean():
            # Perhaps an earlier try did it all.
            mine = await self._resolve(ref)
            return SetAside(side_ref=ref if mine is not None else None, head=head)
        await self._stage(head)
        tree = (await self._run("write-tree")).strip()
        parent = ["-p", now] if now is not None else []
        lines = "\n".join(f"{name}: {value}" for name, value in trailers.items())
        kept = (await self._run("commit-tree", tree, *parent, "-m", message, "-m", lines)).strip()
        await self._run("update-ref", ref, kept)
        await self.check_out(head)
        return SetAside(side_ref=ref, head=head)

    async def keep_all(self, ref: str, message: str) -> None:
        """Let a side ref hold the commit that is checked out and what the tree adds to it, be it nothing. The tree stays."""
        now = await self.head()
        if now is not None and await self.is_clean():
            await self._run("update-ref", ref, now)
            return
        await self._stage(now)
        tree = (await self._run("write-tree")).strip()
        parent = ["-p", now] if now is not None else []
        kept = (await self._run("commit-tree", tree, *parent, "-m", message)).strip()
        await self._run("update-ref", ref, kept)

    async def bundle_all(self, file: str, without: Sequence[str]) -> bool:
        """What any reference holds and the commits `without` do not, as a file; whether there is anything."""
        behind = [f"^{commit}" for commit in without]
        if not (await self._run("rev-list", "--max-count=1", "--all", *behind)).strip():
            return False
        await self._run("bundle", "create", "--quiet", file, "--all", *behind)
        return True

    async def bring_back(self, ref: str, *, marked: bool = False) -> list[str] | None:
        """Put what a side ref holds on top of the tree, uncommitted. Files that do not fit are named, and hold both versions
        between markers if they may be `marked`. `None`, and nothing done, where they may not, or nothing is there."""
        if not await self.has(ref):
            return None
        merged = await self.merged(ref)
        if merged.conflicts and not marked:
            return None
        await self._run("restore", "--worktree", f"--source={merged.tree}", "--", ".")
        return merged.conflicts

    async def merged(self, ref: str) -> Merged:
        """What is checked out and the commit `ref` give together, by what each changed since they parted. Nothing is
        written, so it is the same however often it is done."""
        options = ("--write-tree", "--name-only", "--no-messages", "-z")
        exit_code, answer = await self._try("merge-tree", *options, "HEAD", ref)
        if exit_code not in (0, 1):
            raise RepositoryFault(f"git could not merge {ref}: {answer.strip()[-500:]}")
        tree, *named = answer.rstrip("\0").split("\0")
        return Merged(tree=tree, conflicts=sorted({name for name in named if name}))

    async def put_tree(self, tree: str) -> None:
        """Make index and files what `tree` holds; the branch stays."""
        await self._run("read-tree", "--reset", "-u", tree)

    async def check_out(self, commit: str) -> None:
        """Make the branch, whatever it is called, index and files what `commit` holds. Ignored files stay, repositories inside
        do not."""
        await self._run("reset", "--quiet", "--hard", commit)
        await self._run("clean", "-d", "--force", "--force", "--quiet")

    async def has(self, commit: str) -> bool:
        return await self._resolve(commit) is not None

    async def bundle(self, file: str, commit: str, ref: str, since: str | None) -> None:
        """What `commit` holds, and `since` does not, as a file, in which it is called `ref`."""
        await self._run("update-ref", ref, commit)
        without = [f"^{since}"] if since is not None else []
        await self._run("bundle", "create", "--quiet", file, ref, *without)

    async def unbundle(self, file: str, references: str = "+refs/perdure/*:refs/perdure/*") -> None:
        """Take in what `bundle` gave, as what it was called there, or below another name."""
        await self._run("fetch", "--quiet", "--no-tags", file, references)

    async def forget_file(self, file: str) -> None:
        await self._carry_out(["rm", "-f", file])

    async def _resolve(self, name: str) -> str | None:
        exit_code, answer = await self._try("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return answer.strip() if exit_code == 0 else None

    async def _run(self, *arguments: str) -> str:
        exit_code, answer = await self._try(*arguments)
        if exit_code != 0:
            raise RepositoryFault(f"git {arguments[0]} ended with {exit_code}: {answer.strip()[-500:]}")
        return answer

    async def _try(self, *arguments: str) -> tuple[int | None, str]:
        settings = [item for setting in _SETTINGS for item in ("-c", setting)]
        return await self._carry_out(["git", *settings, *arguments])

    async def _sh(self, line: str) -> None:
        await self._carry_out(["sh", "-c", line])

    async def _carry_out(self, argv: Sequence[str]) -> tuple[int | None, str]:
        context = self._context
        command = Command(
            argv=list(argv),
            directory=context.guard.root,
            call_id=context.call_id,
            timeout_s=_GIT_S,
            output_bytes_max=_ANSWER_BYTES_MAX,
            environment={"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"},
        )
        confined = context.sandbox.confine(command, root=context.guard.root)
        ended = await context.processes.run(confined, on_started=context.on_started, stop=context.stop)
        if ended.cancelled:
            raise Stopped("git was stopped before it had ended")
        if ended.timed_out:
            raise RepositoryFault(f"git did not end within {_GIT_S:g} s")
        return ended.exit_code, ended.output
