"""`get_git_diff`: what changed in the workspace since the run began, from the hidden repository."""

import asyncio

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.errors import NotConfigured
from services.toolhost.output import clip
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded

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
    if not text:
        return Outcome(ok=True, output="no changes since the run began", metadata={"changed": False})
    return Outcome(ok=True, output=clip(text, context.output_chars_max), metadata={"changed": True})
