"""What a launcher starts: the five services in the order in which they are drained, and what each of them is told.

Invariant: a child's environment is computed here from the given one, never inherited; the model's key goes to the
executor and to the verifier, which runs nothing of a workspace's, and to the tool host only where it embeds documents with a
model of the same endpoint.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from deploy.dev.child import Program
from deploy.dev.datafolder import Credentials
from services.toolhost.knowledge.backends import ONNX

SERVER = "nats"
# The services bound their own drain at 10 s; what takes longer than this hangs.
_DRAIN_S = 12.0
MODEL_KEYS = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One process of a kind. `withheld` are variables that it has no business to know; `replica` counts from 1."""

    name: str
    argv: tuple[str, ...]
    replica: int = 1
    drain_s: float = _DRAIN_S
    withheld: tuple[str, ...] = MODEL_KEYS

    @property
    def child(self) -> str:
        """What the launcher calls the process: the first of a kind by the kind alone."""
        return self.name if self.replica == 1 else f"{self.name}-{self.replica}"


def _module(name: str, *, withheld: tuple[str, ...] = MODEL_KEYS) -> Service:
    return Service(name=name, argv=(sys.executable, "-m", f"services.{name}"), withheld=withheld)


# The order of draining: first nobody new comes in, then nothing new starts, then what runs lets go of its run; the
# verifier and the tool host serve the executor until it has; the server goes last.
SERVICES = (
    _module("gateway"),
    _module("scheduler"),
    _module("executor", withheld=()),
    _module("verifier", withheld=()),
    _module("toolhost"),
)


def twice(services: tuple[Service, ...] = SERVICES) -> tuple[Service, ...]:
    """Two of each, as a deployment that survives the loss of any process has."""
    return tuple(
        msgspec.structs.replace(service, replica=replica) for service in services for replica in (1, 2)
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One start. `environment` is what the children may know besides what the launcher decides; without `nats_url`
    the server is embedded, else the environment also says how to get into that one. Port 0 means any free one."""

    data: Path
    environment: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    nats_url: str | None = None
    services: tuple[Service, ...] = SERVICES
    # Where the services run, which is where they look for `.env`; `None`: where the launcher runs.
    directory: Path | None = None
    # Starting takes 2 to 3 s on two cores; a machine ten times slower still gets there.
    ready_s: float = 60.0
    # Variables that are left to the `.env` where the services run: what stands there may be replaced meanwhile.
    left_to_dotenv: frozenset[str] = frozenset()
    # Tests that kill on purpose do not wait for a program to think better of it.
    restart_s_max: float = 10.0


class Ports(NamedTuple):
    """The ports of one start: one for each gateway, and the monitor of the embedded server."""

    gateways: Sequence[int]
    monitor: int


def bus_access(plan: Plan, ports: Ports, credentials: Credentials | None) -> dict[str, str]:
    """The variables that lead to the server. Empty means unset, and hides what `.env` says."""
    if credentials is None:
        return {"NATS_URL": plan.nats_url} if plan.nats_url is not None else {}
    return {
        "NATS_URL": credentials.url,
        "NATS_USER": credentials.user,
        "NATS_PASSWORD": credentials.password,
        "NATS_CREDS": "",
        "NATS_MONITOR_URL": f"http://127.0.0.1:{ports.monitor}",
    }


def embeds_with_the_models_key(environment: Mapping[str, str]) -> bool:
    """Whether the embedding model is one of the chat model's endpoint."""
    model = environment.get("HYBRID_EMBED_MODEL", "")
    own = environment.get("HYBRID_EMBED_API_KEY") or environment.get("HYBRID_EMBED_BASE_URL")
    return bool(model) and not model.startswith(ONNX) and not own


def service_program(plan: Plan, service: Service, ports: Ports, credentials: Credentials | None) -> Program:
    """The program of a service. Stable replica ids let a restarted service declare its predecessor dead at once."""
    own = (
        ()
        if service.name == "toolhost" and embeds_with_the_models_key(plan.environment)
        else service.withheld
    )
    withheld = plan.left_to_dotenv.union(own)
    given = {name: value for name, value in plan.environment.items() if name not in withheld}
    replica = given.get("REPLICA_ID")
    decided = {
        "PERDURE_DATA": str(plan.data.absolute()),
        "PERDURE_HOST": plan.host,
        "PERDURE_PORT": str(ports.gateways[service.replica - 1 if service.name == "gateway" else 0]),
        "REPLICA_ID": f"{replica}-{service.child}" if replica else f"{service.name}-{service.replica}",
        "LOG_JSON": "true",
        "PYTHONUNBUFFERED": "1",
    }
    access = bus_access(plan, ports, credentials)
    return Program(
        name=service.child,
        argv=service.argv,
        environment={**given, **decided, **access},
        drain_s=service.drain_s,
        directory=plan.directory,
        restart_s_max=plan.restart_s_max,
    )
