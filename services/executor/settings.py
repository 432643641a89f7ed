"""Settings of the executor.

Invariant: the model's key is a secret from the moment it is read: it is never logged, stored or handed to a tool.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, InstanceOf, SecretStr

from libs.chassis.addresses import Http
from libs.chassis.settings import DeploymentPolicy, ServiceSettings, TokensPerDay, reread
from libs.policy.redaction import Redaction
from libs.policy.rules import Policy
from services.executor.egress.profile import NO_PROFILES, Profile, Profiles, parse_profiles
from services.executor.endpoint.key import Configured, Key

# The names of the key, the first before the other.
_KEYS = ("OPENAI_API_KEY", "DASHSCOPE_API_KEY")


def _configured() -> Configured | None:
    found = reread(*_KEYS)
    return Configured(*found) if found is not None else None


def _read_profiles(value: object) -> Profiles:
    return parse_profiles(value) if isinstance(value, str) else NO_PROFILES


class ExecutorSettings(ServiceSettings):
    """An executor without a model starts and waits: history and running tools need none."""

    api_key: Annotated[SecretStr | None, Field(validation_alias=AliasChoices(*_KEYS))] = None
    base_url: Annotated[
        Http | None, Field(validation_alias=AliasChoices("OPENAI_BASE_URL", "DASHSCOPE_BASE_URL"))
    ] = None
    model_id: Annotated[str | None, Field(alias="MODEL_ID")] = None
    fallback_models: Annotated[str, Field(alias="PERDURE_FALLBACK_MODELS")] = ""
    model_profiles: Annotated[InstanceOf[Mapping[str, Profile]], BeforeValidator(_read_profiles)] = Field(
        default_factory=lambda: NO_PROFILES, alias="PERDURE_MODEL_PROFILES"
    )
    model_prices: Annotated[Path | None, Field(alias="PERDURE_MODEL_PRICES")] = None
    record_wire: Annotated[bool, Field(alias="PERDURE_RECORD_WIRE")] = False
    # Slots: a run costs little while its model thinks, so one process holds many.
    slots: Annotated[int, Field(alias="MAX_CONCURRENT_RUNS_PER_REPLICA", ge=1, le=10_000)] = 64
    tenant_tokens_per_day: TokensPerDay = None
    policy: DeploymentPolicy = Policy()

    @cached_property
    def key(self) -> Key | None:
        """The endpoint's key, which masks what else this process knows and nobody else may. One for the whole process."""
        if self.api_key is None:
            return None
        return Key(self.api_key.get_secret_value(), _configured, others=self.secrets)

    @property
    def redaction(self) -> Redaction:
        """Takes out all keys that were in use, too."""
        key = self.key
        return Redaction(lambda: key.secrets) if key is not None else super().redaction

    @property
    def model_configured(self) -> bool:
        return self.api_key is not None and self.model_id is not None
