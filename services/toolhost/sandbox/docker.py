"""docker: each command in a container of its own, from an image that the operator chose.

Invariant: the container sees the image, read-only, and the workspace; it has no network unless it is given, no
capabilities, and bounds on memory, processes, processors and files. No shell is between the tool and the command. The
container's name follows from the call, so that whoever is left, launcher or next host, can remove it.

The daemon must see the workspace under the same path as the tool host. The image brings `PATH` and the programs; it is
never pulled here, because that is a decision about what is trusted.
"""

import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Self

import msgspec

from services.toolhost.cgroups import Bounds
from services.toolhost.marks import CALL_MARKER
from services.toolhost.processes import FIXED_ENVIRONMENT, Command, Limits, Processes
from services.toolhost.sandbox.trial import complaint

# A daemon that does not answer within this is not to be worked with.
_PROBE_PATIENCE_S = 30.0
_TMP_BYTES, _SHM_BYTES = 1 << 30, 64 << 20
# What the client itself would listen to.
_CLIENTS_OWN = re.compile(r"(?:DOCKER_.*|HOME|PATH|TMPDIR|LD_.*|.*_PROXY|.*_proxy)\Z")


class Docker:
    """Confines commands with `docker run`. Made by `probe`, which has run one."""

    name = "docker"
    warning: str | None = None

    def __init__(self, image: str, bounds: Bounds, *, address: str = "", cpus: int = 1) -> None:
        self._image, self._bounds, self._cpus = image, bounds, cpus
        self._client = ["docker", *(["--host", address] if address else [])]

    @classmethod
    async def probe(
        cls, processes: Processes, image: str, bounds: Bounds, *, address: str = ""
    ) -> Self | str:
        """A sandbox in which a command has really run, or why there is none."""
        if not image:
            return "SANDBOX_IMAGE names no image"
        # One processor stays for those who serve the bus.
        sandbox = cls(image, bounds, address=address, cpus=max(1, (os.cpu_count() or 1) - 1))
        return await complaint(processes, sandbox.confine, _PROBE_PATIENCE_S) or sandbox

    def confine(self, command: Command, *, root: Path, network: bool = False) -> Command:
        """The command's directory lies at or below `root`; both keep their path inside."""
        options = [
            *("--name", container_of(command.call_id), "--label", f"perdure.call={command.call_id}"),
            *("--label", f"perdure.host={platform.node()}", "--hostname", "sandbox"),
            *("--rm", "--init", "--pull", "never", "--no-healthcheck", "--log-driver", "none"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--network", "bridge" if network else "none", "--ipc", "private"),
            # Whose files the workspace's are: with another user nothing in it could be written.
            *("--user", f"{os.geteuid()}:{os.getegid()}"),
            *self._limits(),
            *("--tmpfs", f"/tmp:rw,exec,nosuid,nodev,mode=1777,size={_TMP_BYTES}"),  # noqa: S108 - a new one, inside
            *("--mount", _csv("type=bind", f"source={root}", f"target={root}")),
            *("--workdir", str(command.directory)),
        ]
        for path in command.readable:
            options += ["--mount", _csv("type=bind", f"source={path}", f"target={path}", "readonly")]
        # The words of a command are shown to everybody on the machine; what it is given may be secret.
        handed = {name: value for name, value in command.environment.items() if not _CLIENTS_OWN.match(name)}
        inside = {**FIXED_ENVIRONMENT, "HOME": "/tmp", "TMPDIR": "/tmp"}  # noqa: S108 - the same
        for name, value in {**inside, **command.environment, CALL_MARKER: command.call_id}.items():
            options += ["--env", name if name in handed else f"{name}={value}"]
        # The image's own entry point would stand between the tool and the command.
        options += ["--entrypoint", command.argv[0], self._image, *command.argv[1:]]
        return msgspec.structs.replace(
            command,
            argv=[*self._client, "run", *options],
            # The client is a process of the machine, the command is one of the daemon's.
            environment=handed,
            removal=self.remains(command.call_id),
        )

    def remains(self, call_id: str) -> list[str]:
        return [*self._client, "rm", "--force", "--volumes", container_of(call_id)]

    def _limits(self) -> list[str]:
        memory, limits = str(self._bounds.memory_bytes), Limits()
        return [
            *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(self._bounds.processes)),
            *("--cpus", str(self._cpus), "--shm-size", str(_SHM_BYTES), "--oom-score-adj", "1000"),
            *("--ulimit", "core=0:0", "--ulimit", f"nofile={limits.open_files}:{limits.open_files}"),
            *("--ulimit", f"fsize={limits.file_bytes}:{limits.file_bytes}"),
        ]


def container_of(call_id: str) -> str:
    """The name of the call's container: ids have characters that names may not have."""
    return f"perdure-{hashlib.sha256(call_id.encode()).hexdigest()[:24]}"


def _csv(*fields: str) -> str:
    """What `--mount` reads: a line of comma-separated values, where a path may have commas and quotes."""
    return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if not set(field) & set(',"\n\r'):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'
