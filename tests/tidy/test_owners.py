"""Environment, time, chance, vendors and wide nets each have one owner; what is pure stays pure, also through others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.source import Module, expect_none, import_graph, modules, parse

ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv"}
# Launchers and tests hand an environment on to the processes they start; they do not configure themselves by it.
ENVIRONMENT_OWNERS = ("libs/chassis/settings.py", "deploy/", "tests/")

TIME_AND_CHANCE = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.urandom",
    "random.SystemRandom",
    "random.choice",
    "random.randint",
    "random.random",
    "random.shuffle",
    "random.uniform",
    "secrets.choice",
    "secrets.token_bytes",
    "secrets.token_hex",
    "secrets.token_urlsafe",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.time",
    "time.time_ns",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid7",
}
# The launcher makes up credentials, a bench is about time, and a simulation is judged by its schedules a minute.
TIME_AND_CHANCE_OWNERS = (
    "libs/chassis/clock.py",
    "libs/contracts/ids.py",
    "deploy/",
    "tests/bench/",
    "tests/sim/__main__.py",
    "tests/sim/planted.py",
)

# Clients of different protocols stand on `httpx2`; each keeps its exceptions to itself.
VENDORS = {
    "aiohttp": ("services.executor.endpoint.connections",),
    "asyncpg": ("libs.projection",),
    "cronsim": ("libs.contracts.cron",),
    "httpcore": ("services.scheduler.sources.fetch", "services.scheduler.webhooks.outbound"),
    "httpx2": (
        "services.executor.endpoint.connections",
        "services.executor.endpoint.model",
        "services.toolhost.mcp",
        "services.verifier.review.endpoint",
    ),
    "mcp": ("services.toolhost.mcp",),
    "mcp_types": ("services.toolhost.mcp",),
    "meilisearch": ("services.toolhost.knowledge.meilisearch",),
    "nats": ("libs.bus",),
    "onnxruntime": ("services.toolhost.knowledge.onnx",),
    "openai": ("services.executor.endpoint.model", "services.verifier.review.endpoint"),
    "qdrant_client": ("services.toolhost.knowledge.qdrant",),
    "tantivy": ("services.toolhost.knowledge.tantivy",),
    "yaml": ("services.scheduler.sources.frontmatter",),
    "tokenizers": ("services.toolhost.knowledge.onnx",),
}

PURE = (
    "libs.contracts",
    "libs.policy",
    "services.executor.decision",
    "services.executor.egress",
    "services.executor.endpoint.circuits",
    "services.executor.endpoint.faults",
    "services.executor.ingress",
    "services.executor.tools.recovery",
    "services.executor.tools.runtime",
    "services.scheduler.admission",
    "services.scheduler.schedules.decide",
    "services.scheduler.sources.frontmatter",
    "services.toolhost.knowledge.chunks",
    "services.toolhost.knowledge.fusion",
    "services.toolhost.knowledge.terms",
    "services.toolhost.mcp.configuration",
    "services.toolhost.mcp.declarations",
    "services.toolhost.mcp.names",
    "services.toolhost.mcp.results",
    "services.toolhost.mcp.schemas",
    "services.toolhost.mcp.texts",
    "services.toolhost.tools.edits",
    "services.toolhost.tools.encodings",
    "services.toolhost.tools.lines",
    "services.toolhost.tools.patching",
    "services.verifier.claims",
    "services.verifier.judgement",
    "services.verifier.mentions",
    "services.verifier.review.brief",
    "services.verifier.review.judgement",
    "services.verifier.verdict",
)
IMPURE = (
    "anyio",
    "asyncio",
    "httpx",
    "libs.bus",
    "libs.chassis",
    "libs.projection",
    "nats",
    "openai",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
)

WIDE_NETS_MAX = 2


def test_only_the_settings_read_the_environment() -> None:
    expect_none(
        (found for module in modules() for found in foreign_uses(module, ENVIRONMENT, ENVIRONMENT_OWNERS)),
        "Only libs/chassis/settings.py reads the environment; take a settings object as an argument.",
    )


def test_only_the_clock_and_the_ids_know_time_and_chance() -> None:
    expect_none(
        (
            found
            for module in modules()
            for found in foreign_uses(module, TIME_AND_CHANCE, TIME_AND_CHANCE_OWNERS)
        ),
        "Time, randomness and ids are arguments, a Clock or a random.Random with a seed.",
    )


def test_an_alias_does_not_hide_a_forbidden_name() -> None:
    module = parse("import os as o\nfrom time import time as t\no.environ['A'] = str(t())\n")
    assert len(list(foreign_uses(module, ENVIRONMENT | TIME_AND_CHANCE, ()))) == 2


def test_every_vendor_has_one_owner() -> None:
    graph = import_graph()
    expect_none(
        (
            f"{importer} imports {vendor}, which belongs to {' and '.join(owners)}"
            for vendor, owners in VENDORS.items()
            if vendor in graph.modules
            for importer in graph.find_modules_that_directly_import(vendor)
            if not any(f"{importer}.".startswith(f"{owner}.") for owner in owners)
        ),
        "A vendor's types and exceptions stop at the file of its owner.",
    )


def test_every_pure_module_exists() -> None:
    missing = [name for name in PURE if name not in import_graph().modules]
    assert not missing, f"a rule about a module that is not there holds nothing: {missing}"


def test_pure_modules_reach_nothing_impure() -> None:
    graph = import_graph()
    expect_none(
        (
            " > ".join(chain)
            for pure in PURE
            for impure in IMPURE
            if {pure, impure} <= graph.modules
            for chain in graph.find_shortest_chains(pure, impure, as_packages=True)
        ),
        "A pure module reaches no I/O, bus or event loop, not even through what it imports.",
    )


def test_contracts_have_no_any() -> None:
    expect_none(
        (
            module.at(line, "Any")
            for module in modules("libs/contracts")
            for name, line in module.uses()
            if name == "typing.Any"
        ),
        "A contract says what a value is; use msgspec.Raw, object or a union.",
    )


def test_wide_nets_hang_in_two_files_at_most() -> None:
    # The simulation's event loop takes the place of asyncio's, which has to catch everything as well.
    nets = {
        module.path: lines
        for module in modules()
        if not module.path.startswith("tests/sim/") and (lines := list(wide_nets(module)))
    }
    places = [f"{path}:{line}: catches everything" for path, lines in nets.items() for line in lines]
    expect_none(
        places if len(nets) > WIDE_NETS_MAX else (),
        f"`except Exception` stands in at most {WIDE_NETS_MAX} files; catch what you can name.",
    )


def test_every_shape_of_a_wide_net_is_found() -> None:
    module = parse(
        "import contextlib\n"
        "try: ...\nexcept (OSError, Exception): ...\n"
        "try: ...\nexcept BaseException: ...\n"
        "try: ...\nexcept: ...\n"
        "with contextlib.suppress(Exception): ...\n"
        "try: ...\nexcept OSError: ...\n"
    )
    assert list(wide_nets(module)) == [3, 5, 7, 8]


def test_no_import_exists_only_for_the_type_checker() -> None:
    expect_none(
        (
            module.at(line, name)
            for module in modules()
            for name, line in module.uses()
            if name in {"typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"}
        ),
        "A needed thing moves down a layer; TYPE_CHECKING hides a cycle.",
    )


def foreign_uses(module: Module, names: set[str], owners: tuple[str, ...]) -> Iterator[str]:
    if not module.path.startswith(owners):
        yield from (module.at(line, name) for name, line in module.uses() if name in names)


def wide_nets(module: Module) -> Iterator[int]:
    for node in ast.walk(module.tree):
        match node:
            case ast.ExceptHandler(type=None):
                yield node.lineno
            case ast.ExceptHandler(type=ast.expr() as caught) if catches_all(caught):
                yield node.lineno
            case ast.Call(func=func, args=args) if module.dotted(func) == "contextlib.suppress":
                yield from (node.lineno for arg in args if catches_all(arg))
            case _:
                pass


def catches_all(caught: ast.expr) -> bool:
    named = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in {"Exception", "BaseException"} for name in named)
