"""The whole of a result of which the model saw a part: how it is named, and how it is read page by page.

Invariant: pure; a result is in the run's log whole, also when it is shown clipped or has left the context, and
`read_file` reaches each of its characters under `result:<call id>`, without a host and without doing anything again
(`tools/earlier.py` fetches what the state keeps the beginning of).
"""

import msgspec

from libs.contracts.run import RunState
from libs.contracts.transcript import ToolItem

# The tool that pages results, and what its path begins with. No file of a workspace is reached by such a path; one of
# that name is reached by `./result:...`.
READ_FILE = "read_file"
RESULT = "result:"
# A longer line is shown as several, so that a page can end inside of it.
LINE_CHARS_MAX = 2_000
_LINES_DEFAULT = 2_000


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    offset: int | None = None
    max_lines: int | None = None


def is_result(name: str, arguments: dict[str, object]) -> bool:
    """Whether a call reads an earlier result and no file."""
    path = arguments.get("path")
    return name == READ_FILE and isinstance(path, str) and path.startswith(RESULT)


def lines_of(text: str) -> list[str]:
    """The lines by which a result is read."""
    return [
        line[at : at + LINE_CHARS_MAX]
        for line in text.split("\n")
        for at in range(0, max(1, len(line)), LINE_CHARS_MAX)
    ]


def named(state: RunState, arguments: dict[str, object]) -> ToolItem | None:
    """The result that a call reads."""
    call_id = str(arguments.get("path", "")).removeprefix(RESULT)
    items = reversed(state.transcript)
    return next((item for item in items if isinstance(item, ToolItem) and item.call_id == call_id), None)


def page(text: str, arguments: dict[str, object], chars_max: int) -> tuple[bool, str]:
    """Lines of a result as `read_file` gives those of a file, or what is wrong. At least one line, else at most
    `chars_max` characters."""
    try:
        wanted = msgspec.convert(arguments, _Wanted)
    except msgspec.ValidationError as error:
        return False, f"{error}"
    lines, offset = lines_of(text), max(1, wanted.offset or 1)
    if offset > len(lines):
        return False, f"{wanted.path} has {len(lines)} lines; offset {offset} is beyond the end"
    shown: list[str] = []
    for number, line in enumerate(lines[offset - 1 :][: wanted.max_lines or _LINES_DEFAULT], start=offset):
        numbered = f"{number:6d}\t{line}"
        chars_max -= len(numbered) + 1
        if chars_max < 0 and shown:
            break
        shown.append(numbered)
    last = offset + len(shown) - 1
    head = f"{wanted.path}: lines {offset}-{last} of {len(lines)}"
    more = len(lines) - last
    rest = [f"… {more} more lines; continue with offset={last + 1}"] if more else []
    return True, "\n".join([head, *shown, *rest])
