"""`run_tests`: the configured test command, in the workspace and in the sandbox. The model cannot change the command.

`ok` says whether the tests passed, that is, whether the command exited with 0.
"""

import signal

from libs.chassis.effects import Stopped
from libs.contracts.tools import Semantics, ToolSpec
from services.toolhost.errors import NotConfigured
from services.toolhost.processes import Command, ProcessOutcome
from services.toolhost.tools import Arguments, Outcome, ToolContext

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
    if not context.run_tests_command:
        raise NotConfigured(
            "no test command is configured; set RUN_TESTS_COMMAND to a JSON array such as an argv of pytest"
        )
    root = context.guard.root
    command = Command(
        argv=context.sandbox.wrap(context.run_tests_command, root=root, directory=root),
        directory=root,
        call_id=context.call_id,
        timeout_s=context.timeout_s,
        output_bytes_max=context.output_chars_max,
        spare_leader=context.sandbox.spare_leader,
    )
    ended = await context.processes.run(command, on_started=context.on_started, stop=context.stop)
    if ended.cancelled:
        raise Stopped("the tests were cancelled before they had ended")
    metadata: dict[str, object] = {
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "timed_out": ended.timed_out,
        "output_bytes": ended.output_bytes,
        "dropped_bytes": ended.dropped_bytes,
        "leftovers": ended.leftovers,
        "argv": list(context.run_tests_command),
        "sandbox": context.sandbox.name,
    }
    ok = ended.exit_code == 0 and not ended.timed_out
    text = f"{ended.output.rstrip()}\n[{_verdict(ended, context.timeout_s)}]".lstrip()
    return Outcome(ok=ok, output=text, metadata=metadata)


def _verdict(ended: ProcessOutcome, timeout_s: float) -> str:
    if ended.timed_out:
        return f"timed out after {timeout_s:g} s and was ended"
    if ended.signal is not None:
        return f"ended by signal {signal.Signals(ended.signal).name}"
    return f"exit code {ended.exit_code}"
