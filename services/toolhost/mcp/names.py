"""What a server's tools are called here: `mcp_<server>_<tool>`. PURE.

Invariant: a name has 1 to 64 letters, digits, `_` and `-`, which every model endpoint takes; two tools never share one,
whatever their servers call them, and a tool keeps its name as long as its server and itself are called the same.
"""

import hashlib
import re
from collections.abc import Iterable

NAME_CHARS_MAX = 64
# Without `_`, so that the first one behind it is where the tool's own name begins.
SERVER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}\Z")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 8
_LOOKS_HASHED = re.compile(rf"_[0-9a-f]{{{_HASH_CHARS}}}\Z")


def name_of(server: str, tool: str) -> str:
    """The name of one tool. It ends in a hash of the server's own name for it when that could not be kept, or when it
    looks as if it did."""
    prefix = f"mcp_{server}_"
    safe = _UNSAFE.sub("_", tool)
    room = NAME_CHARS_MAX - len(prefix)
    if tool and safe == tool and len(tool) <= room and not _LOOKS_HASHED.search(tool):
        return prefix + tool
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{prefix}{safe[: room - _HASH_CHARS - 1]}_{digest}"


def names_of(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The server's own names by ours. Of two that end up with one name (the server lists a tool twice, or has made them
    collide on purpose) the first one has it."""
    named: dict[str, str] = {}
    for tool in tools:
        named.setdefault(name_of(server, tool), tool)
    return named
