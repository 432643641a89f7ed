"""`run_command`: a shell line, in the workspace and in the sandbox.

Whether it may run at all is the policy's affair (`libs/policy`): by default a person looks at it first.
"""

from typing import Annotated

import msgspec

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.tools import Arguments, Outcome, ToolContext, commands, decoded

# Arguments and environment of a program have 2 MiB together, and a message of the bus one.
COMMAND_CHARS_MAX = 400_000

SPEC = ToolSpec(
    name="run_command",
    description=(
        "Runs a shell line (bash) in the workspace's root and returns its output and exit code. Each call is a new "
        "shell; nothing it starts goes on after it. There is no network, no terminal and no standard input, and only "
        "the workspace and /tmp can be written."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "minLength": 1,
                "maxLength": COMMAND_CHARS_MAX,
                "description": "The shell line; it may have several lines.",
            },
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds after which it is ended; at most the run's own limit, which is the default.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    semantics=Semantics.NON_IDEMPOTENT,
    risk="high",
    timeout_s=3600.0,
)


class RunCommandArguments(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    wanted = decoded(arguments, RunCommandArguments)
    timeout_s = min(wanted.timeout_s or context.timeout_s, context.timeout_s)
    return await commands.run(context, commands.shell(wanted.command), timeout_s=timeout_s, metadata={})
