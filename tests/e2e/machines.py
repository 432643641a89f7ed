"""Tool hosts as if each had a machine of its own: another folder of workspaces, and off for good once it was killed."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.dev.plan import Service

# A machine that loses its power stays off: the second start only sleeps.
ONCE = 'if mkdir "$1" 2>/dev/null; then shift; exec env "$@"; else exec sleep 1000; fi'


def machine(folder: Path, name: str, replica: int) -> Service:
    """The tool host that keeps its workspaces in `folder/name`."""
    once, root = str(folder / f"{name}.on"), str(folder / name)
    argv = (
        "/bin/sh",
        "-c",
        ONCE,
        "once",
        once,
        f"WORKSPACE_DIR={root}",
        sys.executable,
        "-m",
        "services.toolhost",
    )
    return Service(name="toolhost", argv=argv, replica=replica)
