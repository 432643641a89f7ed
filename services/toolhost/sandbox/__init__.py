"""Sandboxes: how a command is confined so that it reaches its workspace and little else.

Invariant: a sandbox counts as working only after a real command has run in it; `none` always says that it is none.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, assert_never

from libs.contracts.errors import ConfigurationError
from services.toolhost.cgroups import Bounds
from services.toolhost.processes import Command, Processes
from services.toolhost.sandbox.bwrap import Bubblewrap
from services.toolhost.sandbox.docker import Docker
from services.toolhost.sandbox.none import NoSandbox

# More than a build or a test suite of usual size takes; what needs more has gone wrong on a machine shared with others.
BOUNDS = Bounds(memory_bytes=4 << 30, processes=512)


class SandboxMode(StrEnum):
    """The accepted values of `SANDBOX`."""

    AUTO = "auto"
    BWRAP = "bwrap"
    DOCKER = "docker"
    NONE = "none"


class Sandbox(Protocol):
    """`confine` gives the command that runs this one with `root` (at or above its directory) as the only writable
    folder. `warning` is what people must know about it (health, logs). `remains` is the argv that removes what is left
    of a call whose host was killed, beyond its processes; empty when there is nothing."""

    @property
    def name(self) -> str: ...

    @property
    def warning(self) -> str | None: ...

    def confine(self, command: Command, *, root: Path, network: bool = False) -> Command: ...

    def remains(self, call_id: str) -> list[str]: ...


async def choose(
    mode: SandboxMode,
    processes: Processes,
    folder: Path,
    *,
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    image: str = "",
    docker_address: str = "",
    bounds: Bounds = BOUNDS,
) -> Sandbox:
    """The sandbox for `mode`, tried out. What it keeps of its own lies in `folder`. `readable` folders are visible inside in addition to the system and the
    Python that Perdure runs on, `hidden` ones and files are not even there. Raises `ConfigurationError` when the one that was asked for does not work."""
    match mode:
        case SandboxMode.NONE:
            return NoSandbox()
        case SandboxMode.DOCKER:
            found = await Docker.probe(processes, image, bounds, address=docker_address)
            if isinstance(found, str):
                raise ConfigurationError(
                    f"SANDBOX=docker, but no command could be run in a container: {found}. Set SANDBOX_IMAGE to an "
                    "image that the daemon has (docker pull IMAGE) and let this user reach the daemon."
                )
            return found
        case SandboxMode.BWRAP:
            found = await Bubblewrap.probe(processes, folder, readable=readable, hidden=hidden)
            if isinstance(found, str):
                raise ConfigurationError(
                    f"SANDBOX=bwrap, but bubblewrap does not work here: {found}. Install it "
                    "(apt-get install bubblewrap) and allow user namespaces, or set SANDBOX=none to run without."
                )
            return found
        case SandboxMode.AUTO:
            found = await Bubblewrap.probe(processes, folder, readable=readable, hidden=hidden)
            return NoSandbox(reason=found) if isinstance(found, str) else found
    assert_never(mode)
