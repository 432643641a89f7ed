"""No sandbox: commands run as the tool host's user, in the workspace, with its rights.

Invariant: it never passes for one; whoever asks gets the warning.
"""

from pathlib import Path

from services.toolhost.processes import Command


class NoSandbox:
    """Leaves the command as it is. `reason` says why there is nothing better."""

    name = "none"

    def __init__(self, *, reason: str = "SANDBOX=none") -> None:
        self._reason = reason

    @property
    def warning(self) -> str | None:
        return (
            f"commands run without a sandbox ({self._reason}): they can read and change whatever this user can, "
            "and reach the network. Install bubblewrap (apt-get install bubblewrap) for containment."
        )

    def confine(self, command: Command, *, root: Path, network: bool = False) -> Command:
        del root, network
        return command

    def remains(self, call_id: str) -> list[str]:
        del call_id  # Its processes are found as those of any command are.
        return []
