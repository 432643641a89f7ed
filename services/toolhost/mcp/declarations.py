"""A server's tool as one of ours. PURE.

Invariant: what a server says of its tools is a hint of somebody who is not trusted: it decides nothing about repeating a
call unless the operator says so for this server, and its texts reach a prompt cleaned and cut.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from mcp_types import Tool as Declared

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.names import names_of
from services.toolhost.mcp.schemas import simplified
from services.toolhost.mcp.texts import cleaned

# What one tool's description may take of a prompt.
DESCRIPTION_CHARS_MAX = 2000
# More tools than that make any model worse at choosing; the operator names those that matter.
TOOLS_MAX = 128


class Offered(NamedTuple):
    """One tool: what it is here, and what its server calls it."""

    spec: ToolSpec
    tool: str


def offered(server: McpServer, declared: Iterable[Declared]) -> list[Offered]:
    """The tools that the operator wants of those that the server has, at most `TOOLS_MAX`."""
    wanted = {tool.name: tool for tool in declared if _is_wanted(server, tool.name)}
    names = names_of(server.name, wanted)
    return [
        Offered(_spec(server, name, wanted[tool]), tool) for name, tool in list(names.items())[:TOOLS_MAX]
    ]


def semantics_of(server: McpServer, tool: Declared) -> Semantics:
    """What a repetition of the call would do, as far as it is known."""
    hints = tool.annotations
    if hints is None or not server.trust_annotations:
        return Semantics.NON_IDEMPOTENT
    if hints.read_only_hint:
        return Semantics.READ_ONLY
    return Semantics.IDEMPOTENT if hints.idempotent_hint else Semantics.NON_IDEMPOTENT


def _spec(server: McpServer, name: str, tool: Declared) -> ToolSpec:
    title = tool.title or (tool.annotations.title if tool.annotations is not None else None)
    told = cleaned(tool.description or title or "", DESCRIPTION_CHARS_MAX)
    return ToolSpec(
        name=name,
        description=told or f"A tool of the MCP server {server.name}, which does not describe it.",
        parameters=simplified(tool.input_schema),
        semantics=semantics_of(server, tool),
        timeout_s=server.call_timeout_s,
        needs_workspace=False,
        tenants=list(server.tenants),
    )


def _is_wanted(server: McpServer, tool: str) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in server.tools)
