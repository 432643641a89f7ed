"""`edit_file`: replaces one piece of a file. IDEMPOTENT by its digests (see `files.py`); the rules are in `edits.py`."""

import asyncio
import hashlib

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.edits import edit
from services.toolhost.tools.files import FILE_BYTES_MAX, FilePlan, apply, line_count, plan_of
from services.toolhost.tools.names import shown

_LINES_NAMED_MAX = 20

SPEC = ToolSpec(
    name="edit_file",
    description=(
        "Replaces old_str by new_str in a file of the workspace. old_str must match exactly (blanks included, without "
        "the line numbers that read_file shows) and occur once, unless replace_all is true. Line ends follow the file."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File relative to the workspace."},
            "old_str": {
                "type": "string",
                "description": "The text to replace, with enough lines around it to be unique.",
            },
            "new_str": {"type": "string", "description": "The text to put there, taken literally."},
            "replace_all": {"type": "boolean", "description": "Replace every occurrence. Default false."},
        },
        "required": ["path", "old_str", "new_str"],
        "additionalProperties": False,
    },
    semantics=Semantics.IDEMPOTENT,
    timeout_s=60.0,
)


class EditFileArguments(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    old_str: str
    new_str: str
    replace_all: bool | None = None


async def plan(context: ToolContext, arguments: Arguments) -> FilePlan:
    """What the file would be. Nothing is changed."""
    return await asyncio.to_thread(_planned, context.guard, decoded(arguments, EditFileArguments))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    return await asyncio.to_thread(apply, context.guard, await plan(context, arguments))


def _planned(guard: WorkspaceGuard, wanted: EditFileArguments) -> FilePlan:
    guard.require_writable(wanted.path)
    data = guard.read(wanted.path, bytes_max=FILE_BYTES_MAX)
    edited = edit(data, wanted.old_str, wanted.new_str, replace_all=bool(wanted.replace_all))
    count, total = len(edited.lines), line_count(edited.after)
    named = ", ".join(map(str, edited.lines[:_LINES_NAMED_MAX])) + (", …" if count > _LINES_NAMED_MAX else "")
    where = f"1 replacement at line {named}" if count == 1 else f"{count} replacements at lines {named}"
    return plan_of(
        wanted.path,
        before=hashlib.sha256(data).hexdigest(),
        after=edited.after,
        said=f"edited {shown(wanted.path)}: {where}; the file now has {total} lines",
        metadata={"total_lines": total, "size_bytes": len(edited.after), "replacements": count},
    )
