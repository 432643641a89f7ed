"""`run_program`: a Python program, in the workspace and in the sandbox. Offered when the operator says so.

Invariant: as for any command, what it may do is what the sandbox lets it do; without a sandbox that is everything.
"""

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.tools import Arguments, Outcome, ToolContext, commands, decoded
from services.toolhost.tools.run_command import COMMAND_CHARS_MAX

SPEC = ToolSpec(
    name="run_program",
    description=(
        "Runs a Python 3 program in the workspace's root and returns what it prints and its exit code. There is no "
        "network and no standard input, and only the workspace and /tmp can be written."
    ),
    parameters={
        "type": "object",
        "properties": {
            "code": {
                "type": "string",
                "minLength": 1,
                "maxLength": COMMAND_CHARS_MAX,
                "description": "The program's source.",
            }
        },
        "required": ["code"],
        "additionalProperties": False,
    },
    semantics=Semantics.NON_IDEMPOTENT,
    risk="high",
    timeout_s=3600.0,
)


class RunProgramArguments(msgspec.Struct, frozen=True, kw_only=True):
    code: str


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    code = decoded(arguments, RunProgramArguments).code
    return await commands.run(context, commands.python(code), timeout_s=context.timeout_s, metadata={})
