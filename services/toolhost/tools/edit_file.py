"""`edit_file`: replaces one piece of a file. IDEMPOTENT by its digests (see `files.py`); the rules are in `edits.py`."""

import asyncio
import hashlib

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.edits import Edit, edit
from services.toolhost.tools.encodings import as_utf8
from services.toolhost.tools.files import Plan, apply, line_count, plan_of, require_no_marks, require_shown
from services.toolhost.tools.names import shown
from services.toolhost.undo import FILE_BYTES_MAX

_LINES_NAMED_MAX = 20

SPEC = ToolSpec(
    name="edit_file",
    description=(
        "Replaces old_str by new_str in a file of the workspace. old_str must match exactly (blanks included, without "
        "the line numbers that read_file shows) and occur once, unless replace_all is true. Line ends follow the file. "
        "Several changes at once, also of several files, are made by apply_patch."
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


async def plan(context: ToolContext, arguments: Arguments) -> Plan:
    """What the file would be. Nothing is changed."""
    return await asyncio.to_thread(_planned, context, decoded(arguments, EditFileArguments))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    return await asyncio.to_thread(apply, context.guard, await plan(context, arguments), context.undo)


def _planned(context: ToolContext, wanted: EditFileArguments) -> Plan:
    path = context.guard.spelled(wanted.path)
    context.guard.require_writable(path)
    data = context.guard.read(path, bytes_max=FILE_BYTES_MAX)
    before = hashlib.sha256(data).hexdigest()
    text = as_utf8(data)
    require_shown(path, text.data, [wanted.old_str])
    edited = edit(text.data, wanted.old_str, wanted.new_str, replace_all=bool(wanted.replace_all))
    require_no_marks(context.redaction, path, text.data, edited.after)
    after = text.back(edited.after)
    count, total = len(edited.lines), line_count(edited.after)
    named = ", ".join(map(str, edited.lines[:_LINES_NAMED_MAX])) + (", …" if count > _LINES_NAMED_MAX else "")
    where = f"1 replacement at line {named}" if count == 1 else f"{count} replacements at lines {named}"
    return plan_of(
        path,
        before=before,
        after=after,
        said=f"edited {shown(path)}: {where}; the file now has {total} lines{_notes(context, path, before, edited)}",
        metadata={"total_lines": total, "size_bytes": len(after), "replacements": count},
    )


def _notes(context: ToolContext, path: str, before: str, edited: Edit) -> str:
    """What the model did not know of the place that it changed."""
    overlooked = [f"old_str was found but for {what}" for what in edited.overlooked]
    changed = context.seen.get(path, before) != before
    notes = [*overlooked, *(["the file had changed since you last saw it"] if changed else [])]
    return f" ({'; '.join(notes)})" if notes else ""
