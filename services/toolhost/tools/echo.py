"""`echo`: the text comes back. For probes of a model and of the whole path to a tool."""

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.tools import Arguments, Outcome, ToolContext, decoded

SPEC = ToolSpec(
    name="echo",
    description="Returns the given text unchanged.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The text to return."}},
        "required": ["text"],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
    timeout_s=10.0,
    needs_workspace=False,
)


class EchoArguments(msgspec.Struct, frozen=True, kw_only=True):
    text: str


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    del context
    return Outcome(ok=True, output=decoded(arguments, EchoArguments).text)
