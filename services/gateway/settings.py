"""Settings of the gateway.

Invariant: without keys the gateway listens on loopback only, because then everybody who reaches it may do everything.
"""

from typing import Annotated, Self

import msgspec
from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from libs.chassis.addresses import address
from libs.chassis.settings import (
    QUEUED_RUNS_DEFAULT,
    DeploymentLimits,
    DeploymentPolicy,
    ServiceSettings,
    TenantQueuedMax,
    TenantRunsMax,
    TokensPerDay,
    WebhookAllow,
)
from libs.contracts.ids import is_token
from libs.contracts.tasks import Limits
from libs.policy.outbound import Outbound
from libs.policy.rules import Policy
from services.gateway.auth import is_loopback

# A secret shorter than this is guessed in an afternoon.
SECRET_CHARS_MIN = 16
# What one counter can tell apart; more is no limit any more.
REQUESTS_PER_MINUTE_MAX = 1_000_000


def _keys(value: object) -> dict[str, tuple[SecretStr, ...]]:
    """`{"tenant": "secret"}` or `{"tenant": ["secret", ...]}`; never quotes what it read."""
    try:
        given = msgspec.json.decode(str(value), type=dict[str, str | list[str]])
    except msgspec.MsgspecError as error:
        raise ValueError(
            'is not JSON of the form {"tenant": "secret"} or {"tenant": ["secret", ...]}'
        ) from error
    if not given:
        # Whoever sets it wants a closed door; no keys at all would leave it open.
        raise ValueError("names no tenant; add one, or unset it for one trusted user on this machine")
    return {
        tenant: tuple(SecretStr(secret) for secret in ([secrets] if isinstance(secrets, str) else secrets))
        for tenant, secrets in given.items()
    }


def _database(value: object) -> SecretStr | None:
    if value is None or isinstance(value, SecretStr):
        return value
    return SecretStr(address(str(value), ("postgres", "postgresql"), "postgresql://user@host/name"))


class GatewaySettings(ServiceSettings):
    """`keys` maps tenants to their bearer secrets; empty means trusted-local mode."""

    host: Annotated[str, Field(alias="PERDURE_HOST", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(alias="PERDURE_PORT", ge=0, le=65535)] = 8000
    limits: DeploymentLimits = Limits()
    tenant_tokens_per_day: TokensPerDay = None
    tenant_requests_per_minute: Annotated[
        int | None, Field(alias="TENANT_REQUESTS_PER_MINUTE", ge=1, le=REQUESTS_PER_MINUTE_MAX)
    ] = None
    tenant_runs_max: TenantRunsMax = None
    tenant_queued_max: TenantQueuedMax = QUEUED_RUNS_DEFAULT
    policy: DeploymentPolicy = Policy()
    webhook_allow: WebhookAllow = Outbound()
    keys: Annotated[
        dict[str, tuple[SecretStr, ...]],
        BeforeValidator(_keys),
        Field(alias="RUNTIME_API_KEYS_JSON", default_factory=dict),
    ]
    operator_key: Annotated[
        SecretStr | None, Field(alias="PERDURE_OPERATOR_KEY", min_length=SECRET_CHARS_MIN)
    ] = None

    database_url: Annotated[SecretStr | None, BeforeValidator(_database), Field(alias="DATABASE_URL")] = None

    @field_validator("keys")
    @classmethod
    def _keys_are_usable(cls, keys: dict[str, tuple[SecretStr, ...]]) -> dict[str, tuple[SecretStr, ...]]:
        for tenant, secrets in keys.items():
            if not is_token(tenant):
                raise ValueError(f"tenant {tenant!r} must match [a-z0-9_-]{{1,64}}")
            if not secrets or any(len(secret.get_secret_value()) < SECRET_CHARS_MIN for secret in secrets):
                raise ValueError(f"tenant {tenant} needs secrets of at least {SECRET_CHARS_MIN} characters")
        everyone = [secret.get_secret_value() for secrets in keys.values() for secret in secrets]
        if len(set(everyone)) < len(everyone):
            raise ValueError("a secret stands for two tenants, or twice for one")
        return keys

    @model_validator(mode="after")
    def _open_only_at_home(self) -> Self:
        if not self.keys and not is_loopback(self.host):
            raise ValueError(
                f"PERDURE_HOST {self.host} is reachable from outside: set RUNTIME_API_KEYS_JSON, or listen on 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _operator_is_nobody_else(self) -> Self:
        tenants = {secret.get_secret_value() for secrets in self.keys.values() for secret in secrets}
        if self.operator_key is not None and self.operator_key.get_secret_value() in tenants:
            raise ValueError(
                "PERDURE_OPERATOR_KEY is the secret of a tenant too; give the operators one of their own"
            )
        return self
