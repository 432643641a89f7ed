"""The tools that a run offers its model, encoded once.

Invariant: the same tools give the same bytes in the same order, so that they stay in a provider's prompt cache.
"""

from collections.abc import Iterable, Mapping

import msgspec

from libs.contracts.tools import ToolSpec
from services.executor.ingress.names import wire_name
from services.executor.ingress.tokens import MESSAGE_TOKENS, tokens_in


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """`json` is the array of a request's `tools`, `None` when there is no tool; `schemas` are parameters by name."""

    json: bytes | None
    schemas: Mapping[str, Mapping[str, object]]
    estimated_tokens: int


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    parameters: Mapping[str, object]


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    function: _Function
    type: str = "function"


def toolset(specs: Iterable[ToolSpec]) -> Toolset:
    """The tools in the order of their names."""
    ordered = sorted(specs, key=lambda spec: spec.name)
    if not ordered:
        return Toolset(json=None, schemas={}, estimated_tokens=0)
    tools = [
        _Tool(
            function=_Function(
                name=wire_name(spec.name, {}),
                description=spec.description,
                parameters=_object_schema(spec.parameters),
            )
        )
        for spec in ordered
    ]
    encoded = msgspec.json.encode(tools)
    tokens = tokens_in(encoded) + MESSAGE_TOKENS * len(tools)
    return Toolset(
        json=encoded, schemas={spec.name: spec.parameters for spec in ordered}, estimated_tokens=tokens
    )


def _object_schema(parameters: Mapping[str, object]) -> Mapping[str, object]:
    """Strict servers want an object's schema that says so, also of a tool that takes nothing."""
    if parameters.get("type") == "object" and "properties" in parameters:
        return parameters
    return {"properties": {}, **parameters, "type": "object"}
