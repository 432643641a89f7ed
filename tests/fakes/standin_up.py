"""`perdure up` over stand-in services, for tests of the launcher: plan, health, and a process of its own.

Invariant: everything but the five services is real: lock, embedded server, supervision, signals, ready line.
Run as `python -m tests.fakes.standin_up FOLDER`; logs go to standard error as JSON lines.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.cli.outcome import failed
from deploy.cli.up import until_stopped
from deploy.dev.child import Program
from deploy.dev.launcher import Health, Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.plan import SERVICES, Plan, Service
from libs.contracts.errors import PerdureError

_PROGRAM = str(Path(__file__).with_name("standin_service.py"))


def standin_plan(
    folder: Path, *, port: int = 0, nats_url: str | None = None, manners: Mapping[str, str] | None = None
) -> Plan:
    """The five services as stand-ins that keep their traces in `folder`, with short deadlines."""
    folder.mkdir(parents=True, exist_ok=True)
    services = tuple(
        Service(
            name=service.name,
            argv=(sys.executable, "-S", _PROGRAM, str(folder), service.name, *_manner(manners, service.name)),
            drain_s=2.0,
            withheld=service.withheld,
        )
        for service in SERVICES
    )
    return Plan(
        data=folder / "data",
        environment={"OPENAI_API_KEY": "key-of-the-model", "MODEL_ID": "scripted"},
        port=port,
        nats_url=nats_url,
        services=services,
        ready_s=20.0,
    )


def standin_program(folder: Path, name: str, manner: str) -> Program:
    """One stand-in by itself."""
    argv = (sys.executable, "-S", _PROGRAM, str(folder), name, manner)
    return Program(name=name, argv=argv, environment={}, drain_s=2.0)


def standin_health(folder: Path) -> Health:
    """A stand-in is healthy when the pid it left is that of the process that runs now."""

    async def missing(pids: Mapping[str, int]) -> Mapping[str, str]:
        return {name: "no pid" for name, pid in pids.items() if _pid(folder, name) != pid}

    return missing


def _pid(folder: Path, name: str) -> int | None:
    path = folder / f"{name}.pid"
    return int(path.read_text()) if path.exists() else None


def _manner(manners: Mapping[str, str] | None, name: str) -> tuple[str, ...]:
    return (manners[name],) if manners and name in manners else ()


def main() -> None:
    folder = Path(sys.argv[1])
    log = MergedLog(sys.stderr, readable=False)
    try:
        sys.exit(
            asyncio.run(until_stopped(Launcher(standin_plan(folder), log, health=standin_health(folder))))
        )
    except PerdureError as error:
        log.close()
        sys.exit(failed(error))
    finally:
        log.close()


if __name__ == "__main__":
    main()
