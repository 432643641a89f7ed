"""Sandboxes: how a command's argv is wrapped so that it can reach its workspace and little else.

Invariant: a sandbox counts as working only after a real command has run in it; `none` always says that it is none.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, assert_never

from libs.contracts.errors import ConfigurationError
from services.toolhost.sandbox.bwrap import Bubblewrap
from services.toolhost.sandbox.none import NoSandbox


class SandboxMode(StrEnum):
    """The accepted values of `SANDBOX`. (`docker` is not among them yet, so settings refuse it by name.)"""

    AUTO = "auto"
    BWRAP = "bwrap"
    NONE = "none"


class Sandbox(Protocol):
    """`wrap` gives the argv that runs `argv` in `directory` (at or below `root`, the only writable folder).

    `warning` is what people must know about it (health, logs); `spare_leader` is for `Command.spare_leader`.
    """

    @property
    def name(self) -> str: ...

    @property
    def warning(self) -> str | None: ...

    @property
    def spare_leader(self) -> bool: ...

    def wrap(
        self, argv: Sequence[str], *, root: Path, directory: Path, network: bool = False
    ) -> list[str]: ...


async def choose(mode: SandboxMode, *, readable: Sequence[Path] = ()) -> Sandbox:
    """The sandbox for `mode`, tried out. `readable` folders are visible inside in addition to the system and the
    Python that Perdure runs on. Raises `ConfigurationError` when the one that was asked for does not work."""
    match mode:
        case SandboxMode.NONE:
            return NoSandbox()
        case SandboxMode.BWRAP:
            found = await Bubblewrap.probe(readable)
            if isinstance(found, str):
                raise ConfigurationError(
                    f"SANDBOX=bwrap, but bubblewrap does not work here: {found}. Install it "
                    "(apt-get install bubblewrap) and allow user namespaces, or set SANDBOX=none to run without."
                )
            return found
        case SandboxMode.AUTO:
            found = await Bubblewrap.probe(readable)
            return NoSandbox(reason=found) if isinstance(found, str) else found
    assert_never(mode)
