"""Commands of tools: run confined in the workspace, and told as the model reads them.

Invariant: what is told is true (who ended it, what is missing of its output), holds no known form of a secret, and is
plain text: a terminal's controls are left out, because nobody here is a terminal and a question to one has no answer.
"""

import signal
from collections.abc import Iterator, Sequence

from libs.chassis.effects import Stopped
from services.toolhost.launched import ProcessOutcome
from services.toolhost.processes import Command
from services.toolhost.tools import Outcome, ToolContext

# One argument may have 128 KiB (`processes`); a longer text comes in several. Four bytes are the longest character.
_PART_CHARS = 128 * 1024 // 4 - 1
# Shells take the better one of those that are where the command runs, which may be an image.
_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$@"; else exec sh -c "$@"; fi'
_OF_PARTS = 'eval "set --; $(printf %s "$@")"'
# The marks of what is left out and how it ended: with them an answer is still one that is not cut again.
_MARKS_CHARS = 250


def shell(line: str) -> list[str]:
    """The argv that runs a shell line of any length."""
    parts = list(_parts(line))
    script = [line] if len(parts) < 2 else [_OF_PARTS]
    return ["sh", "-c", _SHELL, "sh", *script, "shell", *(parts if len(parts) > 1 else [])]


def python(code: str) -> list[str]:
    """The argv that runs a Python program of any length."""
    parts = list(_parts(code))
    if len(parts) < 2:
        return ["python3", "-c", code]
    return ["python3", "-c", "import sys; exec(compile(''.join(sys.argv[1:]), '<code>', 'exec'))", *parts]


async def run(
    context: ToolContext, argv: Sequence[str], *, timeout_s: float, metadata: dict[str, object]
) -> Outcome:
    """Runs the command to its end; ok when it exits with 0. Raises `ToolFailure` and `Stopped`."""
    root = context.guard.root
    command = Command(
        argv=list(argv),
        directory=root,
        call_id=context.call_id,
        timeout_s=timeout_s,
        output_bytes_max=max(context.output_chars_max - _MARKS_CHARS, context.output_chars_max // 2),
    )
    confined = context.sandbox.confine(command, root=root)
    ended = await context.processes.run(confined, on_started=context.on_started, stop=context.stop)
    if ended.cancelled:
        raise Stopped("the command was cancelled before it had ended")
    output = ended.kept.told(context.redaction).rstrip()
    text = f"{output}\n[{_verdict(ended, timeout_s)}]".lstrip()
    facts: dict[str, object] = {
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "timed_out": ended.timed_out,
        "output_bytes": ended.output_bytes,
        "dropped_bytes": ended.dropped_bytes,
        "leftovers": ended.leftovers,
        "sandbox": context.sandbox.name,
    }
    return Outcome(
        ok=ended.exit_code == 0 and not ended.timed_out, output=text, metadata={**facts, **metadata}
    )


def _verdict(ended: ProcessOutcome, timeout_s: float) -> str:
    if ended.timed_out:
        return f"timed out after {timeout_s:g} s and was ended"
    how = f"exit code {ended.exit_code}"
    if ended.signal is not None:
        # Of those for programs of their own most have no name.
        named = {known.value: known.name for known in signal.Signals}
        how = f"ended by signal {named.get(ended.signal, ended.signal)}"
    return f"{how}; the system ended a process at the bound of memory" if ended.out_of_memory else how


def _parts(text: str) -> Iterator[str]:
    return (text[start : start + _PART_CHARS] for start in range(0, len(text), _PART_CHARS))
