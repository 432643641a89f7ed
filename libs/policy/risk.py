"""How risky a tool is, whatever its host says or leaves out. PURE.

Invariant: no silence, misspelling or word about itself makes a tool less risky than its kind. What cannot be repeated is
of medium risk at least, shell lines are of high one, and so are tools of MCP servers (medium, where their annotations,
for which nobody vouches, say that they read or may be repeated).
"""

from typing import Literal

from libs.contracts.tools import Semantics, ToolSpec

Risk = Literal["low", "medium", "high"]

# The tools that run a shell line, and the argument that it is.
SHELL_LINES = {"run_command": "command"}
# How tools of MCP servers are named (contract, section 5).
_MCP_PREFIX = "mcp_"
_ORDER: dict[Risk, int] = {"low": 0, "medium": 1, "high": 2}


def risk_of(spec: ToolSpec) -> Risk:
    """The risk that decisions go by."""
    return max(_said(spec), _least(spec), key=_ORDER.__getitem__)


def _said(spec: ToolSpec) -> Risk:
    """What the host said; a word that nobody knows is a warning, not an all-clear."""
    match spec.risk:
        case "low" | "medium" | "high":
            return spec.risk
        case _:
            return "high"


def _least(spec: ToolSpec) -> Risk:
    if spec.name in SHELL_LINES:
        return "high"
    if spec.name.startswith(_MCP_PREFIX):
        return "high" if spec.semantics is Semantics.NON_IDEMPOTENT else "medium"
    return "medium" if spec.semantics is Semantics.NON_IDEMPOTENT else "low"
