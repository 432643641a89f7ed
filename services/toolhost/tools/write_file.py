"""`write_file`: a file's whole content, byte for byte as given. IDEMPOTENT by its digests (see `files.py`)."""

import asyncio
import hashlib

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.redaction import MARK
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.encodings import encoded
from services.toolhost.tools.files import (
    Plan,
    apply,
    line_count,
    plan_of,
    require_no_marks,
    require_seen,
    sha256_of,
)
from services.toolhost.tools.names import shown
from services.toolhost.undo import FILE_BYTES_MAX

SPEC = ToolSpec(
    name="write_file",
    description=(
        "Writes a file of the workspace, replacing all of its content; missing folders are made. To change a part of "
        "an existing file use edit_file. A file that has changed since you last read or wrote it is not replaced: read "
        "it again first."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "File relative to the workspace."},
            "content": {"type": "string", "description": "The whole content; may be empty."},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    semantics=Semantics.IDEMPOTENT,
    timeout_s=60.0,
)


class WriteFileArguments(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    content: str


async def plan(context: ToolContext, arguments: Arguments) -> Plan:
    """What would be written. Nothing is changed."""
    return await asyncio.to_thread(_planned, context, decoded(arguments, WriteFileArguments))


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    return await asyncio.to_thread(apply, context.guard, await plan(context, arguments), context.undo)


def _planned(context: ToolContext, wanted: WriteFileArguments) -> Plan:
    guard = context.guard
    path = guard.spelled(wanted.path)
    guard.require_writable(path)
    after = encoded(wanted.content, "content")
    before = sha256_of(guard, path)
    require_seen(context.seen, path, before, hashlib.sha256(after).hexdigest())
    marks = wanted.content.count(MARK)
    if marks and before is not None:
        require_no_marks(context.redaction, path, guard.read(path, bytes_max=FILE_BYTES_MAX), after)
    lines = line_count(after)
    verb = "created" if before is None else "replaced"
    said = f"{verb} {shown(path)}: {lines} lines, {len(after)} bytes"
    if marks:
        said += f" ({MARK} stands in it as it is: it brings no secret back)"
    metadata: dict[str, object] = {"total_lines": lines, "size_bytes": len(after), "created": before is None}
    return plan_of(path, before=before, after=after, said=said, metadata=metadata)
