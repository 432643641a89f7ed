"""`--accept`: a command of a shell's line as the argv of a check.

Invariant: pure; what a shell would read in another way than as words goes to a shell, so that nothing is dropped.
"""

import re
import shlex

# Operators, substitutions, patterns, comments; and an assignment in front of the program.
_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?\[\]~#!\n]|^\s*[A-Za-z_]\w*=")


def argv_of(command: str) -> list[str]:
    """The argv of a command as it was typed. Raises `ValueError` for one that cannot be meant."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"--accept {command!r}: {error}") from error
    if not argv or not argv[0].strip():
        raise ValueError("--accept is blank; give the command that must succeed")
    return ["sh", "-c", command] if _FOR_A_SHELL.search(command) else argv
