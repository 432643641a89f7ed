"""`list_files`: what is in the workspace, bounded, one name a line.

Invariant: a name on the list can be given to the other tools as it stands (quoted ones: as the JSON string says).
"""

import asyncio
from collections.abc import Callable

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from libs.policy.globs import matches
from services.toolhost.entries import BULK_FOLDERS, Entry, FileKind
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded
from services.toolhost.tools.names import shown

# A model chooses from a list; beyond these it needs a glob or a folder. The nearest to the root are shown first.
_SHOWN_MAX = 1_000

SPEC = ToolSpec(
    name="list_files",
    description=(
        "Lists files and folders of the workspace, recursively and with sizes in bytes. Folders end with '/'. "
        "Without arguments it lists the whole workspace. Narrow it with a folder or a glob. "
        f"Contents of {', '.join(sorted(BULK_FOLDERS))} are left out unless path names the folder."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": "Folder relative to the workspace. Default: the workspace.",
            },
            "glob": {
                "type": "string",
                "description": "Only paths that match, relative to the folder: *.py (at any depth), src/**/*.ts, {a,b}/*.",
            },
        },
        "required": [],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
    timeout_s=60.0,
)


class ListFilesArguments(msgspec.Struct, frozen=True, kw_only=True):
    path: str | None = None
    glob: str | None = None


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, ListFilesArguments)
    return await asyncio.to_thread(_listed, context.guard, wanted, context.hidden)


def _listed(
    guard: WorkspaceGuard, wanted: ListFilesArguments, hidden: Callable[[str], bool] | None
) -> Outcome:
    folder = guard.spelled(wanted.path or ".")
    listing = guard.walk(folder)
    below = 0 if folder == "." else len(folder) + 1
    fitting = [
        entry for entry in listing.entries if not wanted.glob or matches(entry.path[below:], wanted.glob)
    ]
    found = [entry for entry in fitting if hidden is None or not hidden(entry.path)]
    lines = [_line(entry) for entry in sorted(found[:_SHOWN_MAX], key=lambda entry: entry.path)]
    more = len(found) - len(lines)
    total = f"{len(found)}{'' if listing.complete else ' or more'} entries"
    if not found:
        lines = [f"nothing here matches {wanted.glob!r}" if wanted.glob else "the folder is empty"]
    if more:
        lines.append(f"… {more} more of {total} in all; narrow the list with path or glob")
    if len(found) < len(fitting):
        lines.append(f"({len(fitting) - len(found)} left out by the policy)")
    if listing.unreadable:
        lines.append(f"({listing.unreadable} folders could not be read)")
    return Outcome(
        ok=True, output="\n".join(lines), metadata={"path": folder, "entries": len(found), "left_out": more}
    )


def _line(entry: Entry) -> str:
    match entry.kind:
        case FileKind.FILE:
            return f"{shown(entry.path)}\t{entry.size_bytes}"
        case FileKind.DIRECTORY:
            name = entry.path.rpartition("/")[2]
            return f"{shown(entry.path)}/{' (contents not listed)' if name in BULK_FOLDERS else ''}"
        case FileKind.SYMLINK:
            return f"{shown(entry.path)}\t(symbolic link, not followed)"
        case FileKind.SPECIAL:
            return f"{shown(entry.path)}\t(not a file)"
