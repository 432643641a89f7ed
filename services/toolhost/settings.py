"""What the tool host reads from its environment.

Invariant: nothing of the environment reaches a tool but what stands in `command_environment`.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import AliasChoices, Field, InstanceOf, SecretStr, field_validator, model_validator

from libs.chassis.addresses import Http
from libs.chassis.settings import DeploymentPolicy, ServiceSettings
from libs.policy.rules import Policy
from services.toolhost.cgroups import Bounds
from services.toolhost.knowledge.backends import KnowledgeSettings
from services.toolhost.mcp.configuration import McpServer, parse_servers
from services.toolhost.room import BYTES_MAX, FILES_MAX, Quota
from services.toolhost.sandbox import BOUNDS, SandboxMode


class ToolhostSettings(ServiceSettings):
    """`secure` (many tenants) is on when API keys are configured; the keys themselves are of no use here."""

    workspace_dir: Annotated[Path | None, Field(alias="WORKSPACE_DIR")] = None
    sandbox: Annotated[SandboxMode, Field(alias="SANDBOX")] = SandboxMode.AUTO
    sandbox_image: Annotated[str, Field(alias="SANDBOX_IMAGE")] = ""
    docker_address: Annotated[str, Field(alias="DOCKER_HOST")] = ""
    command_memory_bytes: Annotated[int, Field(alias="PERDURE_COMMAND_BYTES_MAX", ge=16 << 20)] = (
        BOUNDS.memory_bytes
    )
    command_processes: Annotated[int, Field(alias="PERDURE_COMMAND_PROCESSES_MAX", ge=8)] = BOUNDS.processes
    program_tool: Annotated[bool, Field(alias="ENABLE_PROGRAM_TOOL")] = False
    run_tests_command: Annotated[tuple[str, ...], Field(alias="RUN_TESTS_COMMAND")] = ()
    api_keys: Annotated[SecretStr | None, Field(alias="RUNTIME_API_KEYS_JSON")] = None
    program_path: Annotated[str, Field(alias="PATH")] = "/usr/local/bin:/usr/bin:/bin"
    bytes_max: Annotated[int, Field(alias="PERDURE_WORKSPACE_BYTES_MAX", ge=1)] = BYTES_MAX
    files_max: Annotated[int, Field(alias="PERDURE_WORKSPACE_FILES_MAX", ge=1)] = FILES_MAX
    policy: DeploymentPolicy = Policy()
    time_zone: Annotated[str, Field(alias="TZ")] = ""
    mcp_servers: Annotated[tuple[InstanceOf[McpServer], ...], Field(alias="PERDURE_MCP")] = ()
    meilisearch_url: Annotated[Http | None, Field(alias="MEILISEARCH_URL")] = None
    meilisearch_key: Annotated[SecretStr | None, Field(alias="MEILISEARCH_API_KEY")] = None
    qdrant_url: Annotated[Http | None, Field(alias="QDRANT_URL")] = None
    qdrant_key: Annotated[SecretStr | None, Field(alias="QDRANT_API_KEY")] = None
    embed_model: Annotated[str, Field(alias="HYBRID_EMBED_MODEL")] = ""
    embed_url: Annotated[Http | None, Field(alias="HYBRID_EMBED_BASE_URL")] = None
    embed_key: Annotated[SecretStr | None, Field(alias="HYBRID_EMBED_API_KEY")] = None
    model_url: Annotated[
        Http | None, Field(validation_alias=AliasChoices("OPENAI_BASE_URL", "DASHSCOPE_BASE_URL"))
    ] = None
    model_key: Annotated[
        SecretStr | None, Field(validation_alias=AliasChoices("OPENAI_API_KEY", "DASHSCOPE_API_KEY"))
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _servers_take_what_they_name(cls, given: dict[str, object]) -> dict[str, object]:
        """`PERDURE_MCP` names other variables, so it is read with all of them."""
        said = given.get("PERDURE_MCP")
        if not isinstance(said, str):
            return given
        variables = {name: value for name, value in given.items() if isinstance(value, str)}
        try:
            text = said if said.lstrip().startswith("{") else Path(said).read_text(encoding="utf-8")
            servers = parse_servers(
                text, variables, tenants_required=bool(given.get("RUNTIME_API_KEYS_JSON"))
            )
        except OSError as error:
            raise ValueError(f"PERDURE_MCP: the file cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"PERDURE_MCP: {error}") from None
        return {**given, "PERDURE_MCP": servers}

    @field_validator("run_tests_command", mode="before")
    @classmethod
    def _argv_is_a_json_array(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            argv = tuple(msgspec.json.decode(value, type=list[str]))
        except msgspec.MsgspecError as error:
            raise ValueError(f'must be a JSON array of strings such as ["pytest", "-q"]: {error}') from None
        if not argv or not argv[0].strip():
            raise ValueError('names no program; write it as ["pytest", "-q"], or unset it')
        return argv

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Those of the host, and those that it hands to MCP servers."""
        return (*super().secrets, *(secret for server in self.mcp_servers for secret in server.secrets))

    @property
    def secure(self) -> bool:
        return self.api_keys is not None

    @property
    def bounds(self) -> Bounds:
        """What one command may take of the machine, where control groups count it."""
        return Bounds(memory_bytes=self.command_memory_bytes, processes=self.command_processes)

    @property
    def quota(self) -> Quota:
        """What one workspace may hold."""
        return Quota(self.bytes_max, self.files_max)

    @property
    def knowledge(self) -> KnowledgeSettings:
        """Where the indexes of documents are, and the model of their vectors. An endpoint of its own never sees the key of
        the chat model's."""
        return KnowledgeSettings(
            root=(self.data / "knowledge").absolute(),
            name=f"{self.prefix}-knowledge",
            meilisearch_url=self.meilisearch_url or "",
            meilisearch_key=_plain(self.meilisearch_key),
            qdrant_url=self.qdrant_url or "",
            qdrant_key=_plain(self.qdrant_key),
            embed_model=self.embed_model,
            embed_url=self.embed_url or self.model_url or "",
            embed_key=_plain(self.embed_key if self.embed_url or self.embed_key else self.model_key),
        )

    @property
    def root(self) -> Path:
        """The folder of all workspaces."""
        return (self.workspace_dir or self.data / "workspaces").absolute()

    @property
    def hidden_paths(self) -> list[Path]:
        """What no command may see, should it lie where programs do."""
        return [self.data, self.root, Path(".env"), *([self.nats_creds] if self.nats_creds else [])]

    @property
    def command_environment(self) -> dict[str, str]:
        """What commands inherit."""
        return {"PATH": self.program_path} | ({"TZ": self.time_zone} if self.time_zone else {})


def _plain(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret is not None else ""
