"""Settings: one frozen object per service, read once from the environment and from `.env`.

Invariant: an unknown `PERDURE_*` name or a bad value stops a service before it touches anything, naming the culprit;
no other module reads the environment. What may change while a service runs is read again with `reread`.
"""

import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    SecretBytes,
    SecretStr,
    ValidationError,
    field_validator,
)

from libs.chassis.addresses import Http, HttpList, bus_addresses
from libs.chassis.reserved import Reserved, without_effect
from libs.chassis.secrets import secrets_in
from libs.contracts.errors import ConfigurationError, ValidationFailed
from libs.contracts.http import LimitsIn, parse_body
from libs.contracts.ids import is_token
from libs.contracts.tasks import Limits
from libs.policy.outbound import Outbound, parse_outbound
from libs.policy.reading import parse_policy
from libs.policy.redaction import Redaction
from libs.policy.rules import Policy

# Every PERDURE_* name of docs/configuration.md. All services share one environment, so each must know them all.
KNOWN_NAMES = frozenset(
    {
        "PERDURE_FALLBACK_MODELS",
        "PERDURE_MODEL_PRICES",
        "PERDURE_MODEL_PROFILES",
        "PERDURE_RECORD_WIRE",
        "PERDURE_REVIEW_MODEL",
        "PERDURE_MCP",
        "PERDURE_SOURCES",
        "PERDURE_HOST",
        "PERDURE_PORT",
        "PERDURE_URL",
        "PERDURE_TOKEN",
        "PERDURE_OPERATOR_KEY",
        "PERDURE_RETENTION_DAYS",
        "PERDURE_RETENTION_EXPORT",
        "PERDURE_WEBHOOK_ALLOW",
        "PERDURE_PREFIX",
        "PERDURE_REPLICAS",
        "PERDURE_LEASE_TTL_S",
        "PERDURE_DATA",
        "PERDURE_LIMITS",
        "PERDURE_POLICY",
        "PERDURE_ALLOW_LAZY_SYNC",
        "PERDURE_COMMAND_BYTES_MAX",
        "PERDURE_COMMAND_PROCESSES_MAX",
        "PERDURE_WORKSPACE_BYTES_MAX",
        "PERDURE_WORKSPACE_FILES_MAX",
    }
)
# A policy is written by people; a larger file is another one.
_POLICY_BYTES_MAX = 1 << 20
TEST_PREFIX = "PERDURE_TEST_"
# Places are counted as a set of ids that is read and written whole: 10,000 are half a megabyte.
QUEUED_RUNS_MAX = 10_000
QUEUED_RUNS_DEFAULT = 1000
# `export A=1 B=2` is one line for a shell; read as one value it would hide B and spoil A. In quotes it is a value.
_SEVERAL = re.compile(r"""(?!(["'])(?:(?!\1).)*\1$).*\s[A-Z][A-Z0-9_]*=""")


class ServiceSettings(BaseModel):
    """What every service reads. A service's own settings extend it; an alias is the variable's name."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    nats_url: Annotated[str, AfterValidator(bus_addresses), Field(alias="NATS_URL")] = "nats://127.0.0.1:4222"
    nats_creds: Annotated[Path | None, Field(alias="NATS_CREDS")] = None
    nats_user: Annotated[str | None, Field(alias="NATS_USER")] = None
    nats_password: Annotated[SecretStr | None, Field(alias="NATS_PASSWORD")] = None
    nats_monitor_url: Annotated[HttpList | None, Field(alias="NATS_MONITOR_URL")] = None
    prefix: Annotated[str, Field(alias="PERDURE_PREFIX")] = "perdure"
    replicas: Annotated[int, Field(alias="PERDURE_REPLICAS", ge=1, le=5)] = 1
    data: Annotated[Path, Field(alias="PERDURE_DATA")] = Path(".perdure")
    replica_id: Annotated[str, Field(alias="REPLICA_ID")] = ""
    # At least 1 s: the server's own smallest TTL.
    lease_ttl_s: Annotated[float, Field(alias="PERDURE_LEASE_TTL_S", ge=1, le=300)] = 3.0
    allow_lazy_sync: Annotated[bool, Field(alias="PERDURE_ALLOW_LAZY_SYNC")] = False
    log_json: Annotated[bool, Field(alias="LOG_JSON")] = True
    log_level: Annotated[str, Field(alias="LOG_LEVEL", pattern="^(debug|info|warning|error)$")] = "info"
    otlp_endpoint: Annotated[Http | None, Field(alias="OTEL_EXPORTER_OTLP_ENDPOINT")] = None
    test_hooks: dict[str, str] = {}
    known_secrets: tuple[SecretBytes, ...] = ()
    # What is set and read by nothing yet, as far as this service has to say it.
    without_effect: tuple[str, ...] = ()

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_token(cls, value: str) -> str:
        if not is_token(value):
            raise ValueError("must match [a-z0-9_-]{1,64}")
        return value

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """What this process knows and nobody else may."""
        return tuple(secret.get_secret_value() for secret in self.known_secrets)

    @property
    def redaction(self) -> Redaction:
        """Takes the secrets of this process out of what it says."""
        known = self.secrets
        return Redaction(lambda: known)

    @classmethod
    def load(cls, service: str, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings of `service`. Raises `ConfigurationError` naming each bad or unknown variable."""
        values = environment if environment is not None else read_environment()
        unknown = sorted(name for name in values if _unknown(name))
        if unknown:
            raise ConfigurationError(
                f"unknown variable {', '.join(unknown)}; remove it or correct its spelling"
            )
        hooks = {name: value for name, value in values.items() if name.startswith(TEST_PREFIX)}
        replica = values.get("REPLICA_ID") or f"{service}-{_host_token()}-{os.getpid()}"
        if not is_token(replica):
            raise ConfigurationError(f"REPLICA_ID {replica!r} must match [a-z0-9_-]{{1,64}}")
        given = {name: value for name, value in values.items() if value != ""}
        vain = without_effect(service, given)
        try:
            Reserved.model_validate(given)
            return cls.model_validate(
                {
                    **given,
                    "REPLICA_ID": replica,
                    "test_hooks": hooks,
                    "without_effect": vain,
                    "known_secrets": secrets_in(given),
                }
            )
        except ValidationError as error:
            problems = [
                ": ".join(
                    filter(None, (".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")))
                )
                for item in error.errors()
            ]
            raise ConfigurationError("bad configuration: " + "; ".join(problems)) from error


def _read_limits(value: object) -> Limits:
    return value if isinstance(value, Limits) else parse_limits(str(value))


def parse_limits(text: str) -> Limits:
    """The deployment's limits from `PERDURE_LIMITS` (JSON); they may be above or below the defaults.

    Raises `ValueError` for what a task could not name either: an unknown limit, or one outside of its range.
    """
    try:
        given = parse_body(LimitsIn, text.encode())
    except ValidationFailed as failed:
        problems = "; ".join(f"{one['field']}: {one['message']}" for one in failed.details or [])
        raise ValueError(f"is not JSON of run limits: {problems or failed.message}") from failed
    return Limits(**given.model_dump(exclude_none=True))


def _read_policy(value: object) -> Policy:
    if isinstance(value, Policy):
        return value
    text = str(value).strip()
    if text.startswith("{"):
        return parse_policy(text)
    path = Path(text)
    try:
        if path.stat().st_size > _POLICY_BYTES_MAX:
            raise ValueError(f"{path} is larger than {_POLICY_BYTES_MAX >> 20} MiB, and no policy")
        return parse_policy(path.read_bytes())
    except OSError as error:
        raise ValueError(f"is neither JSON nor a file that can be read: {path}: {error.strerror}") from error


def _read_outbound(value: object) -> Outbound:
    return value if isinstance(value, Outbound) else parse_outbound(str(value))


# The field of every service that buys tokens or starts what will.
TokensPerDay = Annotated[int | None, Field(alias="TENANT_MAX_TOKENS_PER_DAY", ge=1)]
# The fields of every service that starts runs for tenants.
TenantRunsMax = Annotated[int | None, Field(alias="TENANT_MAX_ACTIVE_RUNS", ge=1)]
TenantQueuedMax = Annotated[int, Field(alias="TENANT_MAX_QUEUED_RUNS", ge=0, le=QUEUED_RUNS_MAX)]
# The field of every service that makes runs: the deployment's limits.
DeploymentLimits = Annotated[InstanceOf[Limits], BeforeValidator(_read_limits), Field(alias="PERDURE_LIMITS")]
# The field of every service that decides about calls, or explains decisions: the deployment's policy.
DeploymentPolicy = Annotated[InstanceOf[Policy], BeforeValidator(_read_policy), Field(alias="PERDURE_POLICY")]


# The field of every service that takes addresses from tenants, or sends to them.
WebhookAllow = Annotated[
    InstanceOf[Outbound], BeforeValidator(_read_outbound), Field(alias="PERDURE_WEBHOOK_ALLOW")
]


def _unknown(name: str) -> bool:
    return name.startswith("PERDURE_") and name not in KNOWN_NAMES and not name.startswith(TEST_PREFIX)


def _host_token() -> str:
    kept = "".join(char if char.isalnum() and char.isascii() else "-" for char in platform.node().lower())
    return kept[:32] or "host"


def read_environment() -> dict[str, str]:
    """The process's variables over those of `.env` in the working directory."""
    return {**read_dotenv(Path(".env")), **os.environ}


def only_in_dotenv(names: Iterable[str]) -> frozenset[str]:
    """Those of the variables that are set by `.env` in the working directory alone."""
    written = read_dotenv(Path(".env"))
    return frozenset(name for name in names if name in written and name not in os.environ)


def reread(*names: str) -> tuple[str, bool] | None:
    """What a variable is configured as now, and whether by the process's own environment, which stays as it is; the first
    of `names` that is set counts. Raises like `read_dotenv`."""
    values = read_environment()
    name = next((name for name in names if values.get(name)), None)
    return (values[name], name in os.environ) if name is not None else None


def read_dotenv(path: Path) -> dict[str, str]:
    """The variables of a `.env` file, none without one. Raises `ConfigurationError` for a line that is no variable."""
    if not path.is_file():
        return {}
    values: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.removeprefix("export ").partition("=")
        if not separator or not name.strip():
            raise ConfigurationError(f".env line {number} is not NAME=value")
        if _SEVERAL.match(value.strip()):
            raise ConfigurationError(
                f".env line {number} names several variables; write each on its own line"
            )
        values[name.strip()] = value.strip().strip("\"'")
    return values
