"""No sandbox: commands run as the tool host's user, in the workspace, with its rights.

Invariant: it never passes for one; whoever asks gets the warning.
"""

from collections.abc import Sequence
from pathlib import Path


class NoSandbox:
    """Leaves the argv as it is. `reason` says why there is nothing better."""

    name = "none"
    spare_leader = False

    def __init__(self, *, reason: str = "SANDBOX=none") -> None:
        self._reason = reason

    @property
    def warning(self) -> str | None:
        return (
            f"commands run without a sandbox ({self._reason}): they can read and change whatever this user can, "
            "and reach the network. Install bubblewrap (apt-get install bubblewrap) for containment."
        )

    def wrap(self, argv: Sequence[str], *, root: Path, directory: Path, network: bool = False) -> list[str]:
        del root, directory, network
        return list(argv)
