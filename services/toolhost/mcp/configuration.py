"""The MCP servers of a deployment, as its operator says them in `PERDURE_MCP`: JSON, or the path of a file that holds it.

    {"github": {"command": ["npx", "-y", "some-server"], "environment": {"TOKEN": "${GITHUB_TOKEN}"}, "network": true},
     "search": {"url": "https://search.example.com/mcp", "headers": {"Authorization": "Bearer ${SEARCH_TOKEN}"}}}

Invariant: a server gets exactly those variables that its entry names, never one of Perdure's own secrets; what is wrong
is said by its place and without repeating a value. What a `${NAME}` stood for is a secret from then on.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

from libs.contracts.ids import is_token
from services.toolhost.mcp.names import SERVER_NAME

# More servers than a model could keep apart, and each may be a process.
SERVERS_MAX = 32
ALL_TENANTS = "*"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BLANK = re.compile(r"\s")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
# What the protocol sets itself.
_OWN_HEADERS = re.compile(
    r"(?:mcp-.*|accept|accept-encoding|connection|content-.*|host|last-event-id|transfer-encoding)\Z",
    re.IGNORECASE,
)
# What opens Perdure itself is nobody else's.
_OWN_VARIABLES = re.compile(
    r"(?:PERDURE_.*|NATS_.*|RUNTIME_API_KEYS_JSON|OPENAI_API_KEY|DASHSCOPE_API_KEY|LANGFUSE_SECRET_KEY|DATABASE_URL"
    r"|MEILISEARCH_API_KEY)\Z"
)

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
Texts = dict[str, str]


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server as it is written."""

    command: list[str] = []
    environment: Texts = {}
    readable: list[str] = []
    network: bool = False
    url: str = ""
    headers: Texts = {}
    tenants: list[str] = []
    tools: tuple[str, ...] = ("*",)
    trust_annotations: bool = False
    handshake: bool = False
    start_timeout_s: Seconds = 30.0
    call_timeout_s: Seconds = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class McpServer:
    """One server: a program (`command`) or an address (`url`).

    `readable` are paths that the program may read beside the system, `network` whether it has one. `tenants` may use it
    (none named: all). `tools` are shell patterns over the server's own names. `trust_annotations`: what the server says
    of its tools' effects is believed. `handshake`: it is not asked whether it knows a protocol without one.
    `secrets` are what its answers must not show.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    readable: tuple[Path, ...]
    network: bool
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    tenants: tuple[str, ...]
    tools: tuple[str, ...]
    trust_annotations: bool
    handshake: bool
    start_timeout_s: float
    call_timeout_s: float
    secrets: frozenset[bytes] = field(repr=False)


def parse_servers(
    text: str, variables: Mapping[str, str], *, tenants_required: bool = False
) -> tuple[McpServer, ...]:
    """The servers in `text` (JSON). `variables` is the environment. Raises `ValueError` that names the place."""
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"is not JSON of servers by name: {error}") from None
    if len(entries) > SERVERS_MAX:
        raise ValueError(f"names {len(entries)} servers; at most {SERVERS_MAX} are possible")
    servers: list[McpServer] = []
    for name, raw in entries.items():
        if not SERVER_NAME.match(name):
            raise ValueError(f"{name[:40]!r} is no name of a server: it must match [a-z0-9][a-z0-9-]{{0,23}}")
        try:
            entry = msgspec.json.decode(raw, type=_Entry)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"{name}: {error}") from None
        servers.append(_server(name, entry, variables, tenants_required=tenants_required))
    return tuple(servers)


def _server(name: str, entry: _Entry, variables: Mapping[str, str], *, tenants_required: bool) -> McpServer:
    _check_kind(name, entry)
    _check_tenants(name, entry, required=tenants_required)
    if not entry.tools or not all(entry.tools):
        raise ValueError(f"{name}.tools: names no tool; leave it out to offer all of them")
    secrets: set[bytes] = set()

    def filled(place: str, text: str) -> str:
        found = _filled(f"{name}.{place}", text, variables)
        secrets.update(value.encode() for value in found.values)
        return found.text

    environment = {key: filled(f"environment.{key}", text) for key, text in entry.environment.items()}
    headers = {key: filled(f"headers.{key}", text) for key, text in entry.headers.items()}
    url = filled("url", entry.url)
    for key, value in {**environment, **headers, "command": "".join(entry.command)}.items():
        if any(character in value for character in "\0\r\n"):
            raise ValueError(f"{name}: the value of {key} may not hold line ends or NUL")
    if url:
        _check_url(name, url)
    return McpServer(
        name=name,
        command=tuple(entry.command),
        environment=environment,
        readable=tuple(map(Path, entry.readable)),
        network=entry.network,
        url=url,
        headers=headers,
        tenants=() if ALL_TENANTS in entry.tenants else tuple(dict.fromkeys(entry.tenants)),
        tools=entry.tools,
        trust_annotations=entry.trust_annotations,
        handshake=entry.handshake,
        start_timeout_s=entry.start_timeout_s,
        call_timeout_s=entry.call_timeout_s,
        secrets=frozenset(secrets),
    )


def _check_kind(name: str, entry: _Entry) -> None:
    if bool(entry.command) == bool(entry.url):
        raise ValueError(f"{name}: give either `command` (a list of words) or `url`")
    if entry.command and not entry.command[0].strip():
        raise ValueError(f"{name}.command: names no program")
    useless = {
        "headers": bool(entry.headers) and not entry.url,
        "environment": bool(entry.environment) and not entry.command,
        "readable": bool(entry.readable) and not entry.command,
        "network": entry.network and not entry.command,
    }
    for key, is_useless in useless.items():
        if is_useless:
            raise ValueError(f"{name}.{key}: is for servers with a `{'url' if entry.command else 'command'}`")
    for key in entry.environment:
        if not _VARIABLE_NAME.match(key) or key.startswith("PERDURE_"):
            raise ValueError(f"{name}.environment: {key[:40]!r} is no variable for a server")
    for key in entry.headers:
        if not _HEADER_NAME.match(key) or _OWN_HEADERS.match(key):
            raise ValueError(f"{name}.headers: {key[:40]!r} is no header to set here")
    for path in entry.readable:
        if not Path(path).is_absolute():
            raise ValueError(f"{name}.readable: {path!r} is no absolute path")


def _check_tenants(name: str, entry: _Entry, *, required: bool) -> None:
    if required and not entry.tenants:
        raise ValueError(f'{name}.tenants: name the tenants that may use it, or ["{ALL_TENANTS}"] for all')
    for tenant in entry.tenants:
        if tenant != ALL_TENANTS and not is_token(tenant):
            raise ValueError(
                f"{name}.tenants: {tenant[:70]!r} is no tenant; it must match [a-z0-9_-]{{1,64}}"
            )


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        raise ValueError(f"{name}.url: is no address; write it as https://host/path") from None
    if not usable or parts.scheme not in ("http", "https") or not parts.hostname or _BLANK.search(url):
        raise ValueError(f"{name}.url: is no address; write it as https://host/path")
    if parts.username is not None:
        raise ValueError(f"{name}.url: holds a user; put what opens the server into `headers`")


class _Filled(NamedTuple):
    text: str
    values: list[str]


def _filled(place: str, text: str, variables: Mapping[str, str]) -> _Filled:
    """`text` with the variables that it names. Raises `ValueError`."""
    if "${" in _VARIABLE.sub("", text):
        raise ValueError(f"{place}: holds `${{` that begins no ${{NAME}}")
    names = _VARIABLE.findall(text)
    for name in names:
        if _OWN_VARIABLES.match(name):
            raise ValueError(
                f"{place}: {name} is Perdure's own and goes to no server; use a variable of its own"
            )
        if not variables.get(name):
            raise ValueError(f"{place}: the variable {name} is not set")
    return _Filled(
        _VARIABLE.sub(lambda match: variables[match[1]], text), [variables[name] for name in names]
    )
