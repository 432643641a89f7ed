"""`get_git_diff`: what changed in the workspace since the run began, from the hidden repository."""

import asyncio
from collections.abc import Callable

import msgspec

from libs.contracts.patches.unified import unquoted
from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.errors import NotConfigured
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded

_HEAD = "diff --git "

SPEC = ToolSpec(
    name="get_git_diff",
    description=(
        "Shows what changed in the workspace since this run began, as a unified diff with new and deleted files. "
        "Works without a git repository of your own, and does not touch one."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Only this file or folder. Default: everything."}
        },
        "required": [],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
)


class GetGitDiffArguments(msgspec.Struct, frozen=True, kw_only=True):
    path: str | None = None


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, GetGitDiffArguments)
    if context.baseline_commit is None:
        raise NotConfigured("this workspace has no baseline for the run, so there is nothing to compare with")
    path = await asyncio.to_thread(context.guard.spelled, wanted.path) if wanted.path else None
    text = await context.repository.diff(context.baseline_commit, path)
    left_out = 0
    if context.hidden is not None:
        text, left_out = without(text, context.hidden)
    told = text or "no changes since the run began"
    if left_out:
        told += f"\n({left_out} changed files left out by the policy)"
    return Outcome(ok=True, output=told, metadata={"changed": bool(text or left_out)})


def without(diff: str, hidden: Callable[[str], bool]) -> tuple[str, int]:
    """The diff without its hidden files, and how many those are. PURE."""
    kept: list[str] = []
    left_out, keeps = 0, True
    for line in diff.splitlines(keepends=True):
        # No line of a file's content begins so: they are marked by their first character.
        if line.startswith(_HEAD):
            keeps = not hidden(_name(line))
            left_out += not keeps
        if keeps:
            kept.append(line)
    return "".join(kept), left_out


def _name(head: str) -> str:
    """The file of `diff --git a/X b/X`, whose halves are of one length."""
    names = head.rstrip("\r\n").removeprefix(_HEAD)
    return unquoted(names[: len(names) // 2])[2:]
