"""`run_tests`: the configured test command, in the workspace and in the sandbox. The model cannot change the command.

`ok` says whether the tests passed, that is, whether the command exited with 0.
"""

from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.errors import NotConfigured
from services.toolhost.tools import Arguments, Outcome, ToolContext, commands

SPEC = ToolSpec(
    name="run_tests",
    description="Runs the project's tests with the configured command and returns their output and exit code.",
    parameters={"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    semantics=Semantics.IDEMPOTENT,
    risk="medium",
    timeout_s=600.0,
)


async def run(context: ToolContext, arguments: Arguments) -> Outcome:
    del arguments
    argv = context.run_tests_command
    if not argv:
        raise NotConfigured(
            "no test command is configured; set RUN_TESTS_COMMAND to a JSON array such as an argv of pytest"
        )
    return await commands.run(context, argv, timeout_s=context.timeout_s, metadata={"argv": list(argv)})
