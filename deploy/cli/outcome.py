"""How a command ends: its exit code, and what an error tells the person at the terminal.

Invariant: exit codes are the contract's (section 1); every error says what to do next.
"""

import re
import sys
from enum import IntEnum

from libs.contracts.errors import PerdureError, Unauthorized, ValidationFailed


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    PERSON = 3
    INTERRUPTED = 130


_ENDPOINT = re.compile(r"(?:GET|POST) /api/runs/([^/\s]+)/(\w+)")
_OF_STATUS = {
    "COMPLETED": Exit.DONE,
    "FAILED": Exit.FAILED,
    "CANCELLED": Exit.INTERRUPTED,
    "WAITING_FOR_INPUT": Exit.PERSON,
    "RECONCILIATION_REQUIRED": Exit.PERSON,
}


def of_status(status: str) -> Exit | None:
    """The exit code of a watched run; `None` while there is something to wait for."""
    return _OF_STATUS.get(status)


def refused(message: str) -> Exit:
    """A command that cannot be carried out as it was given."""
    sys.stderr.write(f"perdure: {message}\n")
    return Exit.USAGE


def in_commands(message: str) -> str:
    """What the server says of its API, as the command that does it."""
    return _ENDPOINT.sub(r"`perdure runs \2 \1`", message)


def failed(error: PerdureError, *, token: str = "PERDURE_TOKEN") -> Exit:
    """A command that the server refused or could not carry out. `token` names the variable that says who asks."""
    sys.stderr.write(f"perdure: {in_commands(error.message)} ({error.code})\n")
    if isinstance(error, Unauthorized):
        sys.stderr.write(f"perdure: set {token} to the secret, in the environment or in .env\n")
    details = error.details or []
    for detail in details if len(details) > 1 else []:
        sys.stderr.write(f"  {detail.get('field')}: {detail.get('message')}\n")
    return Exit.USAGE if isinstance(error, ValidationFailed) else Exit.FAILED
