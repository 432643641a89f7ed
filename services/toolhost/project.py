"""What a project tells every agent: `AGENTS.md` in the root of a workspace, read when a run attaches it.

Invariant: bounded, and never the reason why a workspace is not attached: a file that is there and cannot be used is
reported with the problem instead of its text. What a person would not see in it is made visible.
"""

import hashlib

from libs.contracts.values import ProjectInstructions
from libs.contracts.visible import visible
from services.toolhost.errors import FileMissing, FileTooLarge, ToolFailure
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.tools.lines import BOM

FILE = "AGENTS.md"
# Instructions are read by people too; what is larger is something else.
FILE_BYTES_MAX = 1 << 20
# What a run keeps of them, some 8,000 tokens; the prompt takes less where the model's window is small.
TEXT_CHARS_MAX = 32_000


def instructions(guard: WorkspaceGuard) -> ProjectInstructions | None:
    """The project's instructions, `None` when it has none. Blocking."""
    try:
        data = guard.read(FILE, bytes_max=FILE_BYTES_MAX)
    except FileMissing:
        return None
    except FileTooLarge:
        return ProjectInstructions(path=FILE, problem=f"it is larger than {FILE_BYTES_MAX} bytes")
    except ToolFailure as failure:
        return ProjectInstructions(path=FILE, problem=failure.message)
    if b"\0" in data:
        return ProjectInstructions(path=FILE, problem="it is not UTF-8 text")
    text = data.removeprefix(BOM).decode("utf-8", "replace").replace("\r\n", "\n").strip()
    if not text:
        return None
    return ProjectInstructions(
        path=FILE,
        text=visible(text[:TEXT_CHARS_MAX]),
        sha256=hashlib.sha256(data).hexdigest(),
        clipped=len(text) > TEXT_CHARS_MAX,
    )
