"""The tool host's composition root.

Invariant: calls are taken only between registration and release of the lease; when this process is declared dead its
tools are killed first, then it ends with the exit code that asks for a new start (a new process is a new boot).
"""

import asyncio
import platform
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from pathlib import Path

from libs.bus.journal import Journal
from libs.bus.liveness import Registration, register
from libs.bus.parting import let_go
from libs.chassis.hosting import EFFECTS_MAX, Changing, HostSetting, ToolHost
from libs.chassis.logs import get_logger
from libs.chassis.redacted import Redacted
from libs.chassis.run import Chassis
from libs.contracts.errors import ConfigurationError, LeaseLost
from libs.contracts.streams import host_consumer
from libs.contracts.tools import HostCatalog, ToolResult, ToolSpec
from services.toolhost.attach import ANSWER_S, Attached, Inheritance, Workspaces
from services.toolhost.cgroups import Cgroups
from services.toolhost.clearing import Clearing, Pace
from services.toolhost.evidence import Evidence
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.invoke import HostParts, Invocations
from services.toolhost.knowledge.backends import Knowledge
from services.toolhost.leftovers import Leftovers
from services.toolhost.looks import Looks
from services.toolhost.mcp.joining import Guests, Surroundings, joined
from services.toolhost.predecessor import HolderRecord
from services.toolhost.processes import Processes
from services.toolhost.registry import Registry
from services.toolhost.replay import Again
from services.toolhost.repository import HiddenRepository, git_is_installed
from services.toolhost.sandbox import Sandbox, choose
from services.toolhost.settings import ToolhostSettings
from services.toolhost.snapshots import Snapshots
from services.toolhost.tools import search_knowledge
from services.toolhost.tools.catalog import TOOLS
from services.toolhost.tools.ripgrep import installed
from services.toolhost.underway import Underway
from services.toolhost.undo import UndoLog
from services.toolhost.workspace import HIDDEN_FOLDER, WorkspacePlace, root_id, undo_folder

# Files are read and written in threads. By default there are a few more than processors, and as many slow searches would
# hold up every other call.
_THREADS_MAX = EFFECTS_MAX


async def serve(chassis: Chassis[ToolhostSettings]) -> None:
    """Host tools until told to stop. Raises `LeaseLost` when the others have declared this process dead."""
    settings, clock = chassis.settings, chassis.clock
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS_MAX, "tools"))
    cgroups = await asyncio.to_thread(_cgroups, settings)
    processes = Processes(clock=clock, inherited=settings.command_environment, cgroups=cgroups)
    async with aclosing(processes), Underway[ToolResult].open(ANSWER_S) as underway:
        await _serve(chassis, processes, cgroups, underway)


async def _serve(
    chassis: Chassis[ToolhostSettings],
    processes: Processes,
    cgroups: Cgroups | None,
    underway: Underway[ToolResult],
) -> None:
    settings, bus, clock = chassis.settings, chassis.bus, chassis.clock
    sandbox = await _sandbox(settings, processes)
    usable = _usable(settings)
    registry = Registry({name: tool for name, tool in TOOLS.items() if name in usable}, settings.policy)
    snapshots, journal = Snapshots(bus.store("workspaces")), Journal(bus.bucket("journal"))
    again = Again(bus.log, journal, processes, sandbox)
    inheritance = Inheritance(Leftovers(processes, sandbox, cgroups), snapshots, again)
    workspaces = _workspaces(chassis, inheritance, underway)
    nowhere, knowledge, redaction = _nowhere(settings), Knowledge(settings.knowledge), settings.redaction
    parts = HostParts(
        log=bus.log,
        journal=journal,
        registry=registry,
        workspaces=workspaces,
        evidence=Evidence(processes, sandbox, settings.run_tests_command, redaction),
        processes=processes,
        sandbox=sandbox,
        tests_command=settings.run_tests_command,
        nowhere=nowhere,
        ripgrep=installed(settings.program_path),
        knowledge=knowledge,
        redaction=redaction,
        objects=bus.store("workspaces"),
    )
    host, died = ToolHost(bus, clock, Redacted(Invocations(parts), redaction)), asyncio.Event()
    around = Surroundings(processes, sandbox, settings.root / HIDDEN_FOLDER / "mcp")
    try:
        async with (
            joined(settings.mcp_servers, around, registry, clock) as guests,
            register(
                bus,
                clock,
                _registration(settings, sandbox, cgroups, guests),
                control=host.control,
                on_death=died.set,
            ) as liveness,
        ):
            await guests.ready()
            root = await asyncio.to_thread(root_id, settings.root, clock.entropy(12).hex())
            workspaces.begin(liveness, root)
            catalog = _catalog(settings, sandbox, liveness.boot, root)
            effects = host_consumer(bus.subjects, liveness.boot)
            changing = Changing(partial(_offered, registry, knowledge), guests.changed)
            look, seen = bus.subjects.call_look(liveness.boot), _looks(settings, snapshots).answer
            async with bus.wire.respond(look, seen), _clearing(chassis, workspaces).going_on():
                setting = HostSetting(catalog, effects, changing)
                await host.serve(liveness, setting, stop=chassis.stop, died=died)
            if died.is_set():
                raise LeaseLost("the others declared this tool host dead; it starts again as a new boot")
            await let_go("consumer", bus.queue.remove_consumer(effects))
    finally:
        await knowledge.close()
        workspaces.close()
        nowhere.guard.close()


def _cgroups(settings: ToolhostSettings) -> Cgroups | None:
    cgroups = Cgroups.probe(settings.bounds)
    if cgroups is not None:
        cgroups.sweep()
    return cgroups


def _offered(registry: Registry, knowledge: Knowledge) -> list[ToolSpec]:
    """The tools of this moment: MCP servers come and go, and there is knowledge once somebody has indexed a folder."""
    return [spec for spec in registry.specs if knowledge.offered or spec != search_knowledge.SPEC]


def _looks(settings: ToolhostSettings, snapshots: Snapshots) -> Looks:
    return Looks(settings.root, snapshots, secure=settings.secure, program_path=settings.program_path)


def _catalog(settings: ToolhostSettings, sandbox: Sandbox, boot: str, root: str) -> HostCatalog:
    """What stays in it; the tools come and go."""
    return HostCatalog(
        boot=boot,
        replica=settings.replica_id,
        host=platform.node(),
        tools=[],
        workspaces=True,
        sandbox=sandbox.name,
        root=root,
    )


def _registration(
    settings: ToolhostSettings, sandbox: Sandbox, cgroups: Cgroups | None, guests: Guests
) -> Registration:
    return Registration(
        service="toolhost",
        replica=settings.replica_id,
        slots=EFFECTS_MAX,
        model_configured=False,
        ttl_s=settings.lease_ttl_s,
        info={
            "policy": settings.policy.digest,
            "sandbox": sandbox.name,
            "limits": "groups" if cgroups is not None else "processes",
            **({"warning": sandbox.warning} if sandbox.warning else {}),
        },
        notes=guests.notes,
    )


def _usable(settings: ToolhostSettings) -> set[str]:
    """A tool that could only say that it is not configured would cost the model a turn."""
    off = {"run_tests": not settings.run_tests_command, "run_program": not settings.program_tool}
    return {name for name in TOOLS if not off.get(name)}


def _workspaces(
    chassis: Chassis[ToolhostSettings], inheritance: Inheritance, underway: Underway[ToolResult]
) -> Workspaces:
    settings = chassis.settings
    return Workspaces(
        chassis.bus.log,
        chassis.clock,
        inheritance,
        underway,
        root=settings.root,
        secure=settings.secure,
        program_path=settings.program_path,
        quota=settings.quota,
    )


def _clearing(chassis: Chassis[ToolhostSettings], workspaces: Workspaces) -> Clearing:
    settings = chassis.settings
    return Clearing(
        chassis.bus.log, chassis.clock, workspaces, settings.root, secure=settings.secure, pace=Pace()
    )


async def _sandbox(settings: ToolhostSettings, processes: Processes) -> Sandbox:
    if not git_is_installed(settings.program_path):
        raise ConfigurationError(
            "there is no git on PATH; workspaces need one: install it (apt-get install git)"
        )
    sandbox = await choose(
        settings.sandbox,
        processes,
        settings.root / HIDDEN_FOLDER / "sandbox",
        image=settings.sandbox_image,
        docker_address=settings.docker_address,
        hidden=settings.hidden_paths,
        bounds=settings.bounds,
    )
    if sandbox.warning:
        if settings.secure:
            raise ConfigurationError(
                f"RUNTIME_API_KEYS_JSON is set, and no sandbox works here ({sandbox.warning}); "
                "install bubblewrap, or unset it to run for one trusted user"
            )
        get_logger("toolhost").warning("sandbox.missing", sandbox=sandbox.name, warning=sandbox.warning)
    return sandbox


def _nowhere(settings: ToolhostSettings) -> Attached:
    """An empty folder for tools that need no workspace."""
    directory: Path = settings.root / HIDDEN_FOLDER / "nowhere"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot use {settings.root} for workspaces: {error.strerror}; set WORKSPACE_DIR to a folder that can be written"
        ) from error
    place = WorkspacePlace(key="nowhere", directory=directory, git_dir=directory.with_suffix(".git"))
    return Attached(
        tenant="",
        name="",
        place=place,
        guard=WorkspaceGuard(directory),
        repository=HiddenRepository(git_dir=place.git_dir, worktree=directory),
        record=HolderRecord(place),
        undo=UndoLog(undo_folder(place)),
        lock_fd=-1,
    )
